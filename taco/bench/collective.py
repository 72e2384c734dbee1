"""How fast collectives are: ours, compressed or not, beside the backend's and other implementations, by transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from taco.bench import collective_peers
from taco.bench.collective_arms import Arm, Arms
from taco.bench.collective_case import bytes_of, identical, inputs, relative_error, sets_of, wanted
from taco.bench.collective_timer import Batch, Clock, EventClock, HostClock, batch, still_sound, timed, tried
from taco.comm import crossover
from taco.config import require
from taco.log import LogWriter
from taco.recipes import CollectiveCase, CollectiveGrid, preset
from taco.train.launch import World

__all__ = ["measure_collective"]
# the coarsest codec errs by a tenth; a result this far from the sum is none, and its time means nothing
WRONG = 0.5
Record = tuple[str, dict]
"""Kind and fields."""


def measure_collective(
    source: str,
    captures: Sequence[Path],
    out: Path,
    provenance: dict,
    *,
    here: World,
    grid: CollectiveGrid,
    peers: Path | None = None,
    tables: Path | None = None,
    settings: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> None:
    """Write a row for every case of `grid` and arm that runs on its transport; collective over the default group.

    A row has the case, world_size, arm and codec; us and us_iqr of a call, those of the rank whose median is largest;
    wire_bytes that one rank sends; rel_error to the sum of the inputs in fp32, the largest over the ranks; and
    rank_identical, whether all ranks have the same bits (null for reduce_scatter). Errors and bits are those of a
    result of the timed calls. An arm that raises on a rank becomes a record of kind 'failed' with the reason.

    Rank 0 writes, a case at a time. captures are not used. peers: a file as in collective_peers.py. tables: a folder of
    tables of `taco crossover`; codecs that have one for these ranks get an arm that follows it. settings: variables
    of the environment that NCCL and torch read, for the header. clock: default this device's.
    """
    clock = clock or _clock(here, grid)
    others, found = collective_peers.load(peers) if peers else [], _tables(tables, grid, here)
    config = {
        "source": source, "world_size": here.size, "l2_bytes": clock.l2_bytes, "peers": peers.name if peers else "",
        "tables": {codec: table.key.filename() for codec, table in found.items()},
        "environment": dict(sorted((settings or {}).items())), **asdict(grid),
    }  # fmt: skip
    header = {"name": out.stem, "config": config, "provenance": provenance}
    opened: list[LogWriter] = []
    here.agree(lambda: opened.append(LogWriter(out, header)))
    arms = Arms(grid, here, clock.l2_bytes, others, found)
    for case in grid.cases():
        for kind, record in _measured(case, arms, clock):
            for log in opened:
                log.write(kind, **record)
    for log in opened:
        log.close()


def _tables(folder: Path | None, grid: CollectiveGrid, here: World) -> dict[str, crossover.Crossover]:
    """The tables of the grid's codecs in a folder. Raises `ConfigError` where it has none of them."""
    if folder is None:
        return {}
    dtype = getattr(torch, grid.dtype)
    codecs = dict.fromkeys(codec for part in grid.parts for codec in part.codecs)
    keys = {c: crossover.key_here(here.device, here.transport, here.size, preset(c), dtype) for c in codecs}
    found = {c: crossover.find(folder, key) for c, key in keys.items() if (folder / key.filename()).is_file()}
    names = ", ".join(key.filename() for key in keys.values())
    command = f"torchrun --nproc-per-node {here.size} -m taco crossover --codec NAME --out {folder}"
    require(bool(found), f"--tables {folder}", f"one of {names} there: `{command}`", "tables choose the paths")
    return found


def _clock(here: World, grid: CollectiveGrid) -> Clock:
    """Graphs hold a launch's cost off the times; where NCCL's host threads carry the data there is none to hold off."""
    on_gpu = here.device.type == "cuda"
    return EventClock(here.device, graphs=grid.transport == "nvlink") if on_gpu else HostClock()


def _told(case: CollectiveCase, arm: Arm, arms: Arms) -> dict:
    """What the rows of every kind say of a case and an arm."""
    told = {
        "collective": case.collective, "transport": arms.grid.transport, "world_size": arms.here.size,
        "mib": case.mib, "dtype": case.dtype, "arm": arm.name, "codec": arm.codec,
    }  # fmt: skip
    return told | ({"source": arm.source, "note": arm.note} if arm.source else {})


def _measured(case: CollectiveCase, arms: Arms, clock: Clock) -> Iterator[Record]:
    """The records of a case. Every rank makes the same ones, in the same order."""
    grid, here = arms.grid, arms.here
    xs = inputs(case, here, grid.seed, sets_of(case, here.size, clock.l2_bytes))
    correct = wanted(case, here, grid.seed)
    running: list[tuple[Arm, Batch]] = []
    for arm in arms.of(case):
        ready, reason = tried(lambda arm=arm: arm.make(xs), clock, here)
        if ready is None:
            yield "failed", _told(case, arm, arms) | {"reason": reason}
        else:
            running.append((arm, batch(ready, clock, here, graph=arm.graph)))
    timings = timed([each for _, each in running], clock, here, grid)
    for (arm, each), timing in zip(running, timings, strict=True):
        told, reason = _told(case, arm, arms), still_sound(each.ready, here)
        error = 0.0 if reason else relative_error(each.answer(), correct, here)
        if error > WRONG:
            reason = f"the result of the timed calls is off by {error:.3g} of the sum's norm"
        if reason:
            yield "failed", told | {"reason": reason}
            continue
        same = None if case.collective == "reduce_scatter" else identical(each.answer(), here)
        found = {"bytes": bytes_of(case, here.size), "wire_bytes": arm.wire_bytes, "rank_identical": same}
        path = {"path": arm.path()} if arm.path else {}
        yield "row", told | asdict(timing) | found | {"rel_error": error} | path

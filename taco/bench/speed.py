"""How fast the codecs are on a GPU: against a copy of the same bytes, and against other implementations."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from taco.bench import speed_case, speed_peers
from taco.bench.peer_files import failure
from taco.bench.speed_case import dtype_of, numel_of
from taco.bench.speed_peers import Peer
from taco.bench.speed_timer import GpuTimer, Timer, Timing, Work, gpu, sets_for
from taco.codec import coder
from taco.log import LogWriter
from taco.recipes import SPEED, SpeedCase, SpeedGrid, preset

__all__ = ["gpu", "measure_codec_speed"]
COPY = "copy"
# bytes into the target's memory: an odd number of 4 KiB pages beside a whole one
COPY_SHIFTS = (0, 37 * 4096)
Record = tuple[str, dict]
"""Kind and fields."""


def measure_codec_speed(
    source: str,
    captures: Sequence[Path],
    out: Path,
    provenance: dict,
    *,
    grid: SpeedGrid = SPEED,
    peers: Path | None = None,
    compiled: bool = True,
    timer: Timer | None = None,
) -> None:
    """Write a row for every case of `grid`, compiled reference, peer and distinct number of bytes copied.

    A row has us and us_iqr of a call, the bytes that it must move, and copy_us of a copy of as many, timed in turns
    with it; arm is 'ours', 'compile', 'copy' or a peer's. Rows of part 'launch' have the time of small calls: arm
    'eager' is the host's, 'graph' that in a CUDA graph. An arm that raises becomes a record of kind 'failed' with the
    reason. peers: a file as in speed_peers.py. captures are not used. timer: default the current GPU's.
    Raises `ConfigError` without a CUDA GPU and `RuntimeError` if an answer is not the reference's.
    """
    timer = timer or GpuTimer()
    others = speed_peers.load(peers) if peers else []
    for case in grid.cases():
        if case.mib == grid.mib[0]:  # the answer to check does not depend on the size to time
            speed_case.check(case, timer.device, grid.seed)
    config = {"source": source, "l2_bytes": timer.l2_bytes, "peers": peers.name if peers else "", **asdict(grid)}
    log = LogWriter(out, {"name": "codec_speed", "config": config, "provenance": provenance})
    sizes = tuple(m for m in grid.mib if m == grid.compared_mib)
    records = itertools.chain(
        _ours(grid, timer),
        _launches(grid, timer),
        _compared(speed_peers.compiled(grid) if compiled else [], sizes, grid, timer),
        _compared([p for p in others if p.op in grid.ops], grid.mib, grid, timer),
    )
    for kind, record in _once(records):
        log.write(kind, **record)
    log.close()


def _row(case: SpeedCase, arm: str, timing: Timing, **more) -> dict:
    return {"part": "operation", **asdict(case), "arm": arm, **asdict(timing), **more}


def _beside_copy(work: Work, grid: SpeedGrid, timer: Timer) -> tuple[Timing, dict, dict]:
    """(timing of the work, fields that compare it with a copy of its bytes, the copy's own row).

    The copy is the faster of two: where source and target lie badly to each other in memory, one takes up to 1.6 times
    as long as usual (seen on an H200 at a few sizes).
    """
    both = [speed_case.copies(work.nbytes, timer, grid.seed, shift) for shift in COPY_SHIFTS]
    mine, *copied = timer.interleaved([work, *both], grid.replays)
    copy = min(copied, key=lambda timing: timing.us)
    case = SpeedCase(op=COPY, codec="", dtype="uint8", mib=work.nbytes / 2**21)
    fields = {"bytes": work.nbytes, "copy_us": copy.us, "copy_us_iqr": copy.us_iqr}
    return mine, fields, _row(case, COPY, copy, **fields)


def _ours(grid: SpeedGrid, timer: Timer) -> Iterator[Record]:
    for case in grid.cases():
        timing, fields, copy = _beside_copy(speed_case.work(case, timer, grid.seed), grid, timer)
        yield "row", _row(case, "ours", timing, path=coder(preset(case.codec)).path, **fields)
        yield "row", copy


def _once(records: Iterable[Record]) -> Iterator[Record]:
    """All records, but of the copies only the first of every number of bytes."""
    seen = set()
    for kind, record in records:
        if record["arm"] != COPY or record["bytes"] not in seen:
            yield kind, record
        if record["arm"] == COPY:
            seen.add(record["bytes"])


def _launches(grid: SpeedGrid, timer: Timer) -> Iterator[Record]:
    """Small calls, each on one set of operands: the time to reach the kernel is what counts, not the data's way."""
    for case in grid.launches():
        work = speed_case.work(case, timer, grid.seed, sets=1)
        arms = {"eager": timer.host(work.sets[0]), "graph": timer.interleaved([work], grid.replays)[0]}
        for arm, timing in arms.items():
            path = coder(preset(case.codec)).path
            yield "row", _row(case, arm, timing, path=path, bytes=work.nbytes) | {"part": "launch"}


def _compared(peers: list[Peer], sizes: Sequence[int], grid: SpeedGrid, timer: Timer) -> Iterator[Record]:
    """The records of every peer at every size in MiB, in the grid's first dtype."""
    for peer in peers:
        for mib in sizes:
            case = SpeedCase(op=peer.op, codec=peer.codec, dtype=grid.dtypes[0], mib=mib)
            told = {"source": peer.source, "note": peer.note}
            try:
                timing, fields, copy = _beside_copy(_peer_work(peer, case, grid, timer), grid, timer)
            except Exception as error:  # whatever others' code raises, it is the answer for this arm
                told["reason"] = failure(error)
                yield "failed", {"part": "operation", **asdict(case), "arm": peer.arm, **told}
            else:
                yield "row", _row(case, peer.arm, timing, **fields, **told)
                yield "row", copy


def _peer_work(peer: Peer, case: SpeedCase, grid: SpeedGrid, timer: Timer) -> Work:
    """The peer's operation on as many sets of operands as ours has."""
    generator = torch.Generator(timer.device).manual_seed(grid.seed)

    def make():
        return peer.make(speed_case.data(1, numel_of(case), dtype_of(case), generator)[0])

    first = make()
    nbytes = peer.bytes_moved(case, first())
    more = [make() for _ in range(sets_for(nbytes, timer.l2_bytes) - 1)]
    return Work(sets=(first, *more), nbytes=nbytes)

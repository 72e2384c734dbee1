"""Which path is fastest at which size, as measured on one machine: a table, its key and provenance, and its file.

    path                  what runs
    uncompressed          the backend's own collective
    symmetric             torch's two-shot all-reduce over symmetric memory     symmetric_one_shot: its one-shot
    fused_uncompressed    taco's kernels without a codec
    unfused               taco's compressed algorithms over the backend
    fused                 taco's compressed kernels

Sizes are bytes of the full tensor before compression, as in `min_bytes`. `taco crossover` measures
(taco/comm/crossover_measure.py); `choose` keeps the promise of DESIGN.md: no size is slower than 0.98 times the best
uncompressed path, as far as the measured times are within 1% of the true ones and these straight lines between sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from taco.comm.machine import device_name
from taco.config import Codec, ConfigError, codec_from_dict, require, to_dict
from taco.config.check import one_of
from taco.recipes import PRESETS

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
UNCOMPRESSED = ("uncompressed", "symmetric", "symmetric_one_shot", "fused_uncompressed")
COMPRESSED = ("unfused", "fused")
MEASURED = UNCOMPRESSED + COMPRESSED
SYMMETRIC_PATHS = ("symmetric", "symmetric_one_shot")
FUSED_PATHS = ("fused", "fused_uncompressed")
# transport: where fused kernels exchange packets, '' where they cannot
MEMORY_OF = {"auto": "auto", "host": "host", "tcp": ""}
VERSION = 1
# a compressed path must have been measured this much faster: a noise of 2% in either time then costs 2% at most
CLEARLY = 0.98


def exists(path: str, collective: str) -> bool:
    """Whether a collective has a path: torch's symmetric ones are all-reduces."""
    return path in MEASURED and (collective == "all_reduce" or path not in SYMMETRIC_PATHS)


@dataclass(frozen=True, kw_only=True)
class Key:
    """What a table holds for. transport: a label, e.g. 'nccl auto'. node_size: 0 unless ranks span nodes. nccl: its
    version, '' for another backend."""

    device: str
    transport: str
    world_size: int
    codec: Codec
    dtype: str
    node_size: int = 0
    torch: str
    nccl: str

    def command(self) -> str:
        """What measures such a table, but for where it is written. A codec that is no preset is named as a file."""
        transport = self.transport.partition(" ")[2]
        options = f" --transport {transport}" if transport not in ("", "auto") else ""
        options += f" --node-size {self.node_size}" if self.node_size else ""
        start = f"torchrun --nproc-per-node {self.world_size} -m taco crossover"
        codec = self.codec.name if PRESETS.get(self.codec.name) == self.codec else f"{self.codec.name}.json"
        return f"{start} --codec {codec} --dtype {self.dtype}{options}"

    def filename(self) -> str:
        """A readable name of a file that no other key has."""
        plain = _plain(self)
        if plain["codec"].get("clip") == 1:
            del plain["codec"]["clip"]  # tables from before codecs had a clip keep their names
        data = json.dumps(plain, sort_keys=True).encode()
        parts = (self.device, self.transport, f"{self.world_size}x", self.codec.name, self.dtype)
        readable = "-".join(re.sub(r"[^A-Za-z0-9.]+", "_", part).strip("_") for part in parts)
        return f"{readable}-{hashlib.sha256(data).hexdigest()[:12]}.json"


def key_here(
    device: torch.device, transport: str, world_size: int, codec: Codec, dtype: torch.dtype, node_size: int = 0
) -> Key:
    """The key of tensors on `device` of this machine, with the installed versions. transport: 'auto', 'host', 'tcp'."""
    cuda = device.type == "cuda"
    return Key(
        device=device_name(device),
        transport=f"{'nccl' if cuda else 'gloo'} {transport if cuda else ''}".strip(),
        world_size=world_size,
        codec=codec,
        dtype=str(dtype).removeprefix("torch."),
        node_size=node_size,
        torch=torch.__version__,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if cuda else "",
    )


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """Microseconds: times[collective][size in bytes][path]. provenance: date, hardware, commit, as text.

    Raises ConfigError for an unknown collective or path, no sizes, or times that are not positive.
    """

    key: Key
    times: Mapping[str, Mapping[int, Mapping[str, float]]]
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for collective, by_size in self.times.items():
            one_of("collective", collective, COLLECTIVES, "these are measured")
            require(bool(by_size), f"no sizes of {collective}", "at least one", "a choice compares times")
            for size, by_path in by_size.items():
                require(
                    any(path in UNCOMPRESSED for path in by_path) and all(exists(p, collective) for p in by_path),
                    f"paths {sorted(by_path)} of {collective} at {size} bytes",
                    f"an uncompressed one at least, of {', '.join(p for p in MEASURED if exists(p, collective))}",
                    "compression must have something to beat",
                )
                require(
                    size > 0 and all(us > 0 for us in by_path.values()),
                    f"{dict(by_path)} us of {collective} at {size} bytes",
                    "positive numbers",
                    "they are times",
                )

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether the times are of messages of `dtype`: those of another one cost other times."""
        return str(dtype) == f"torch.{self.key.dtype}"

    def choose(self, collective: str, nbytes: int, *, without: Collection[str] = ()) -> str:
        """The path of a collective on `nbytes`; none of `without`.

        Between two measured sizes a time is interpolated on a straight line (a latency and a rate). The uncompressed
        path with the least time is taken, unless a compressed one is faster than every uncompressed one at both
        measured sizes; below the smallest size always the former. Beyond the largest its winner stays.
        Raises ValueError for a collective that was not measured, or if no uncompressed path is left.
        """
        if collective not in self.times:
            raise ValueError(
                f"got {collective!r}; need one of {', '.join(self.times)}; because others were not measured"
            )
        by_size = self.times[collective]
        sizes = sorted(by_size)
        at = bisect_left(sizes, nbytes)
        low, high = sizes[max(0, at - 1)], sizes[min(at, len(sizes) - 1)]
        if nbytes < sizes[0] or nbytes in by_size:
            low = high
        elif nbytes > sizes[-1]:
            low = high = sizes[-1]
        share = (nbytes - low) / (high - low) if high > low else 0.0
        usable = [p for p in MEASURED if p in by_size[low] and p in by_size[high] and p not in without]
        plain = [path for path in usable if path in UNCOMPRESSED]
        if not plain:
            raise ValueError(
                f"got no uncompressed path for {collective} of {nbytes} bytes without {sorted(without)}; need one at "
                f"{low} and {high} bytes; because compression must have something to beat"
            )
        best = {size: min(by_size[size][path] for path in plain) for size in (low, high)}
        faster = [
            path
            for path in usable
            if path in COMPRESSED and all(by_size[size][path] <= CLEARLY * best[size] for size in (low, high))
        ]
        candidates = faster if faster and nbytes >= sizes[0] else plain
        return min(candidates, key=lambda path: (1 - share) * by_size[low][path] + share * by_size[high][path])

    def crossing(self, collective: str) -> int | None:
        """The smallest measured size from which on a compressed path is chosen at every measured one; None: nowhere."""
        found = None
        for size in sorted(self.times[collective], reverse=True):
            if self.choose(collective, size) not in COMPRESSED:
                break
            found = size
        return found

    def about(self) -> dict:
        """What the table is of and where it comes from, as JSON data."""
        return {"key": _plain(self.key), "provenance": dict(self.provenance)}

    def digest(self) -> str:
        """The same for tables that choose alike, on every rank."""
        data = {
            "key": _plain(self.key),
            "times": {c: {str(s): dict(p) for s, p in by.items()} for c, by in self.times.items()},
        }
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

    def save(self, folder: Path) -> Path:
        """Write the table into `folder` under its key's name, all of it or nothing; returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.key.filename()
        times = {c: {str(size): dict(paths) for size, paths in by.items()} for c, by in self.times.items()}
        data = {
            "kind": "crossover", "version": VERSION, **self.about(), "times_us": times,
        }  # fmt: skip
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        part.replace(path)
        return path


def _plain(key: Key) -> dict:
    return {**asdict(key), "codec": to_dict(key.codec)}


def load(path: str | Path) -> Crossover:
    """Read a table. Raises ConfigError for a file that is absent or not one."""
    path = Path(path)
    require(path.is_file(), f"no file {path}", "a table that `taco crossover` wrote", "paths are chosen by its times")
    try:
        data = json.loads(path.read_text())
        if (data["kind"], data["version"]) != ("crossover", VERSION):
            raise ValueError(f"kind {data['kind']!r}, version {data['version']!r}")
        times = {c: {int(size): paths for size, paths in by.items()} for c, by in data["times_us"].items()}
        key = Key(**{**data["key"], "codec": codec_from_dict(data["key"]["codec"])})
        return Crossover(key=key, times=times, provenance=data["provenance"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"got {path}; need a table that `taco crossover` wrote, version {VERSION}; because {error}"
        ) from error


def find(folder: Path, key: Key) -> Crossover:
    """The table of `key` in `folder`. Raises ConfigError where there is none: it says how to measure it."""
    path = folder / key.filename()
    require(
        path.is_file(),
        f"no table {path.name} in {folder}",
        f"one: {key.command()} --out {folder}",
        "paths are chosen by times measured with this device, transport, codec and these versions",
    )
    table = load(path)
    require(table.key == key, f"{path} of {table.key}", f"{key}", "a table holds for what it was measured on")
    return table

"""What each part of the codec buys: one field at a time changed around presets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from taco.bench import captures as capture_files
from taco.bench import synthetic
from taco.bench.captures import Place
from taco.bench.sums import two_shot_sqnr_db
from taco.codec import coder
from taco.codec.quality import sqnr_db
from taco.config import GroupCodec
from taco.log import LogWriter
from taco.recipes import PRESETS

SETS = ("gauss", "outliers-100x")
AXES: dict[str, tuple] = {
    "rotation": ("none", "hadamard", "signed"),
    "adaptive_scale": (False, True),
    "group": (32, 64, 128, 256, 512),
    "payload": ("e4m3", "e5m2", "int8", "int6", "int4"),
    "scale": ("fp32", "bf16", "e8m0"),
    "rounding": ("nearest", "stochastic"),
    "clip": (1.0, 0.95, 0.9, 0.85, 0.8),
}
# preset -> the axes around it. Only integers can be clipped, and what it does to them depends on their bits.
BASES: dict[str, tuple[str, ...]] = {
    "taco": tuple(axis for axis in AXES if axis != "clip"),
    "int8": tuple(AXES),
    "int6": ("clip",),
    "int4": ("clip",),
}


def arms() -> Iterator[tuple[str, str, object, GroupCodec]]:
    """(base, axis, value, codec); a base's own value of every axis is among them."""
    for base, axes in BASES.items():
        for axis in axes:
            for value in AXES[axis]:
                yield base, axis, value, replace(PRESETS[base], name=f"{base}/{axis}={value}", **{axis: value})


def measure_ablation(
    source: str,
    captures: Sequence[Path],
    out: Path,
    provenance: dict,
    *,
    rows: int = 64,
    channels: int = 4096,
    ranks: int = 4,
    limit: int = 1 << 15,
) -> None:
    """Write a row for every arm on two synthetic sets and on every captured run and role.

    sqnr_db: mean over tensors of one encode and decode. two_shot_sqnr_db: mean over collectives of a two-shot
    all-reduce (encode each rank's part, sum and encode again, decode) against the exact sum; null where one rank was
    captured.
    rows, channels, ranks: size and number of parts of the synthetic sets. limit: elements used of a captured tensor.
    """
    config = {"source": source, "rows": rows, "channels": channels, "ranks": ranks, "limit": limit}
    log = LogWriter(out, {"name": "ablation", "config": config, "provenance": provenance})
    places = {
        Place(name): [[synthetic.dataset(name, rows, channels, part=r).tensor for r in range(ranks)]] for name in SETS
    }
    places |= capture_files.by_collective(capture_files.read(captures, limit))
    for base, axis, value, codec in arms():
        for place, collectives in places.items():
            log.write("row", base=base, axis=axis, value=value, **place._asdict(), **_measure(codec, collectives))
    log.close()


def _measure(codec: GroupCodec, collectives: list[list[Tensor]]) -> dict:
    chosen = coder(codec)
    tensors = [t for parts in collectives for t in parts]
    shared = [parts for parts in collectives if len(parts) > 1]
    return {
        "bytes_per_element": sum(chosen.nbytes(t.numel(), t.dtype) for t in tensors) / sum(t.numel() for t in tensors),
        "sqnr_db": capture_files.mean(sqnr_db(t, chosen.roundtrip(t)) for t in tensors),
        "two_shot_sqnr_db": capture_files.mean(two_shot_sqnr_db(codec, parts) for parts in shared) if shared else None,
    }

"""What each codec keeps of a tensor, and for how many bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from taco.bench import captures as capture_files
from taco.bench import synthetic
from taco.bench.sums import mean_sums_db
from taco.codec import coder
from taco.codec.authors import README, RELEASED, AuthorsTaco
from taco.codec.quality import bulk_sqnr_db, max_error, small_sqnr_db, sqnr_db
from taco.config import Codec, GroupCodec, NoCodec
from taco.log import LogWriter
from taco.recipes import PRESETS

BF16_BYTES = 2.0
# what the authors' repository runs under the name tahquant: grouped symmetric INT4, Hadamard and pivot swap off
COCCL_TAHQUANT = GroupCodec(name="tahquant", payload="int4", rotation="none", scale="fp32")


@dataclass(frozen=True)
class Arm:
    """One codec under one label: `nbytes` of a tensor's message, `roundtrip` what its receiver gets.

    config: of ours, which can sum packets.
    """

    codec: str
    label: str
    nbytes: Callable[[Tensor], float]
    roundtrip: Callable[[Tensor], Tensor]
    config: Codec | None = None


def _ours(config: Codec, label: str = "ours") -> Arm:
    chosen = coder(config)
    if isinstance(config, NoCodec):
        # the reference of every ratio: the message as bf16
        return Arm(config.name, label, lambda x: BF16_BYTES * x.numel(), lambda x: x.to(torch.bfloat16).to(x.dtype))
    return Arm(config.name, label, lambda x: chosen.nbytes(x.numel(), x.dtype), chosen.roundtrip, config)


def _published(config: AuthorsTaco) -> Arm:
    return Arm(config.name, "authors-code", lambda x: config.bytes_per_element() * x.numel(), config.roundtrip)


def arms() -> list[Arm]:
    """Every preset, then the authors' published semantics."""
    ours = [_ours(config) for config in PRESETS.values()]
    return [*ours, _published(RELEASED), _published(README), _ours(COCCL_TAHQUANT, "authors-code")]


def measure_fidelity(
    source: str,
    captures: Sequence[Path],
    out: Path,
    provenance: dict,
    *,
    rows: int = 256,
    channels: int = 4096,
    limit: int = 1 << 16,
) -> None:
    """Write a row for every codec and data set, and for every codec, captured run and role.

    rows, channels: size of the synthetic sets. limit: elements used of each captured tensor. bytes_per_element is of
    the whole message; 'none' is the message as bf16. SQNR in dB; of captured tensors its mean, and the largest error.
    bulk_sqnr_db is of the channels that are not outliers, or of the 99% of captured elements that are smallest.
    Captured tensors also have their step, their number of ranks, and the SQNR of the sum over these (taco.bench.sums).
    """
    config = {"source": source, "rows": rows, "channels": channels, "limit": limit}
    log = LogWriter(out, {"name": "codec_fidelity", "config": config, "provenance": provenance})
    captured = capture_files.by_collective(capture_files.read(captures, limit))
    for arm in arms():
        for row in _synthetic_rows(arm, rows, channels):
            log.write("row", **row)
        for place, collectives in captured.items():
            tensors = [t for parts in collectives for t in parts]
            row = _row(arm, place.dataset, "captured", place.role, tensors) | mean_sums_db(arm.config, collectives)
            row["bulk_sqnr_db"] = capture_files.mean(small_sqnr_db(x, arm.roundtrip(x)) for x in tensors)
            log.write("row", step=place.step, **row)
    log.close()


def _synthetic_rows(arm: Arm, rows: int, channels: int) -> Iterator[dict]:
    for name in synthetic.NAMES:
        data = synthetic.dataset(name, rows, channels)
        row = _row(arm, name, "synthetic", "", [data.tensor])
        if data.outliers:
            row["bulk_sqnr_db"] = bulk_sqnr_db(data.tensor, arm.roundtrip(data.tensor), data.outliers)
        yield row


def _row(arm: Arm, dataset: str, tensors: str, role: str, data: list[Tensor]) -> dict:
    decoded = [arm.roundtrip(x) for x in data]
    bytes_per_element = sum(arm.nbytes(x) for x in data) / sum(x.numel() for x in data)
    return {
        "codec": arm.codec,
        "label": arm.label,
        "dataset": dataset,
        "tensors": tensors,
        "role": role,
        "bytes_per_element": bytes_per_element,
        "ratio_to_bf16": BF16_BYTES / bytes_per_element,
        "sqnr_db": capture_files.mean(sqnr_db(x, y) for x, y in zip(data, decoded, strict=True)),
        "bulk_sqnr_db": None,
        "max_error": max(max_error(x, y) for x, y in zip(data, decoded, strict=True)),
    }

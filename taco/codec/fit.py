"""Data-driven choice of a codec: measure candidates on a run's own tensors, take the cheapest that is good enough."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from taco.codec import quality
from taco.codec.base import Coder
from taco.codec.factory import coder
from taco.config import Codec, ConfigError, GroupCodec

GROUPS = (32, 64, 128, 256, 512)
PAYLOADS = ("int4", "int6", "int8", "e4m3")


def default_candidates() -> tuple[GroupCodec, ...]:
    """Payload x rotation x group size; integers with a bf16 scale, FP8 (whose SQNR ignores the scale) with E8M0."""
    return tuple(
        GroupCodec(
            name=f"{payload}-{rotation}-g{group}",
            payload=payload,
            rotation=rotation,
            group=group,
            scale="e8m0" if payload == "e4m3" else "bf16",
        )
        for payload in PAYLOADS
        for rotation in ("signed", "none")
        for group in GROUPS
    )


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What was chosen, and a row for every candidate.

    Row: codec, axis, bytes_per_element, sqnr_db (of the worst tensor), sqnr_db_mean (without those that arrive
    exactly, as zeros do), meets (the target).
    axis 'last' groups neighbours in memory; 'first' groups along the first dimension, which a message would have to be
    transposed for: it is measured, and never chosen.
    """

    codec: Codec
    table: tuple[dict, ...] = field(repr=False)


def fit(
    tensors: Iterable[Tensor] | Mapping[str, Tensor], target_db: float, candidates: Sequence[Codec] | None = None
) -> Fit:
    """The codec with the fewest bytes among those that keep every tensor at `target_db` dB or better.

    tensors: captured messages, fp32/bf16/fp16, or a mapping of names to them, as `safetensors.torch.load_file` reads
    the file of `taco train --capture`. Equal bytes: the higher SQNR wins.
    Raises `ConfigError` if there are no tensors or no candidate reaches the target.
    """
    tensors = list(tensors.values() if isinstance(tensors, Mapping) else tensors)
    if not tensors or not all(t.numel() for t in tensors):
        raise ConfigError(
            f"got {len(tensors)} tensors or an empty one; need captured messages; "
            "because candidates are measured on them"
        )
    chosen = default_candidates() if candidates is None else tuple(candidates)
    table = [
        row | {"meets": row["sqnr_db"] >= target_db}
        for config in chosen
        for axis in ("last", "first")
        if (row := _measure(coder(config), axis, tensors))
    ]
    able = [
        (row["bytes_per_element"], -row["sqnr_db"], row["codec"])
        for row in table
        if row["meets"] and row["axis"] == "last"
    ]
    if not able:
        best = max((row["sqnr_db"] for row in table if row["axis"] == "last"), default=math.nan)
        raise ConfigError(
            f"got target_db={target_db} with a best candidate of {best:.2f} dB; need a lower target or other "
            "candidates; because no candidate keeps every tensor that well"
        )
    name = min(able)[2]
    return Fit(codec=next(c for c in chosen if c.name == name), table=tuple(table))


def _measure(candidate: Coder, axis: str, tensors: Sequence[Tensor]) -> dict | None:
    """One row of the table; None for the first axis of tensors without a second one."""
    if axis == "first":
        tensors = [t.reshape(-1, t.shape[-1]).t() for t in tensors if t.dim() > 1]
    if not tensors:
        return None
    values = [quality.sqnr_db(t, candidate.roundtrip(t)) for t in tensors]
    inexact = [v for v in values if v != math.inf] or values
    total = sum(candidate.nbytes(t.numel(), t.dtype) for t in tensors)
    return {
        "codec": candidate.config.name,
        "axis": axis,
        "bytes_per_element": total / sum(t.numel() for t in tensors),
        "sqnr_db": min(values),
        "sqnr_db_mean": sum(inexact) / len(inexact),
    }

"""Codecs: how a message is compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taco.config.check import one_of, positive, require

FLOATS = ("e4m3", "e5m2")
PAYLOADS = (*FLOATS, "int8", "int6", "int4")
ROTATIONS = ("none", "hadamard", "signed")
SCALES = ("fp32", "bf16", "e8m0")
ROUNDINGS = ("nearest", "stochastic")
MIN_GROUP, MAX_GROUP, MIN_BLOCK = 32, 2048, 16


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How a message is compressed. `name` is what logs and tables call it."""

    name: str


@dataclass(frozen=True, kw_only=True)
class NoCodec(Codec):
    """The tensor's own bytes in its own dtype."""

    name: str = "none"


@dataclass(frozen=True, kw_only=True)
class CastCodec(Codec):
    """Plain cast to FP8, no scale: 1 byte an element."""

    payload: Literal["e4m3", "e5m2"] = "e4m3"

    def __post_init__(self) -> None:
        one_of("payload", self.payload, FLOATS, "only FP8 holds a value without a scale")


@dataclass(frozen=True, kw_only=True)
class TensorCodec(Codec):
    """One absmax scale (fp32) for the whole message."""

    payload: Literal["e4m3", "e5m2", "int8"] = "e4m3"

    def __post_init__(self) -> None:
        one_of("payload", self.payload, (*FLOATS, "int8"), "the payload is one byte")


@dataclass(frozen=True, kw_only=True)
class GroupCodec(Codec):
    """The group codec: rotate each group of `group` elements, scale it by its absmax, round to `payload`.

    The paper (arXiv 2604.24088) is the point e4m3, 128, hadamard, fp32, adaptive_scale.

    rotation: 'hadamard' is the Sylvester transform over sqrt(size), 'signed' puts fixed pseudo-random
        signs before it. `rotation_size` (power of two, divides `group`) rotates blocks smaller than
        the group; 0 means the whole group.
    scale: the stored dtype of the group's scale; bf16 and e8m0 round up.
    adaptive_scale: also send the paper's alpha (fp32), computed from the RMS before the rotation.
    intra_payload: payload of the first, intra-node level of a hierarchical collective (SDP4Bit's
        INT8 before INT4); empty means the same payload at both levels.
    clip: the scale is that of clip * absmax, 0 < clip <= 1, and coefficients beyond the range become its end: the
        others get finer steps. For integer payloads; plain torch codes it on every device, because the kernels scale
        by the whole absmax. A first level with `intra_payload` is not clipped.
    difference: encode the difference to the last value sent (SDP4Bit's weights); only for a message
        that repeats every step, so only the role dp_weight accepts it.
    """

    payload: str = "int8"
    group: int = 128
    rotation: str = "signed"
    rotation_size: int = 0
    scale: str = "bf16"
    adaptive_scale: bool = False
    rounding: str = "nearest"
    intra_payload: str = ""
    difference: bool = False
    clip: float = 1.0

    def __post_init__(self) -> None:
        one_of("payload", self.payload, PAYLOADS, "these payloads have a wire format")
        one_of("rotation", self.rotation, ROTATIONS, "these rotations are defined")
        one_of("scale", self.scale, SCALES, "these scale formats have a wire format")
        one_of("rounding", self.rounding, ROUNDINGS, "these roundings are defined")
        one_of("intra_payload", self.intra_payload, ("", *PAYLOADS), "it is a payload or empty")
        sizes = (("group", self.group, MIN_GROUP), ("rotation_size", self.rotation_size or self.group, MIN_BLOCK))
        for name, value, least in sizes:
            require(
                isinstance(value, int) and value > 0 and value & (value - 1) == 0 and least <= value <= MAX_GROUP,
                f"{name}={value!r}",
                f"a power of two from {least} to {MAX_GROUP}",
                "the Hadamard transform and the kernels are defined for those",
            )
        require(
            self.rotation_size <= self.group,
            f"rotation_size={self.rotation_size}",
            f"at most group={self.group}",
            "a rotation may not cross a group",
        )
        self._check_clip()

    def _check_clip(self) -> None:
        number = isinstance(self.clip, (int, float)) and not isinstance(self.clip, bool)
        require(
            number and 0 < self.clip <= 1,
            f"clip={self.clip!r}",
            "a number above 0, at most 1",
            "it is the share of the absmax that the payload's range covers",
        )
        require(
            self.clip == 1 or self.payload not in FLOATS,
            f"clip={self.clip!r} with payload={self.payload!r}",
            "clip=1 or an integer payload",
            "steps of a float are relative: a smaller scale makes none finer and only saturates the largest",
        )


@dataclass(frozen=True, kw_only=True)
class AsymmetricCodec(Codec):
    """Min/max quantisation per group: q = round((x - lo) / step), step = (hi - lo) / (2^bits - 1).

    metadata: the stored dtype of lo and step.
    """

    bits: int = 8
    group: int = 128
    metadata: Literal["fp16", "bf16", "fp32"] = "bf16"

    def __post_init__(self) -> None:
        one_of("bits", self.bits, (4, 6, 8), "these widths have planes")
        one_of("metadata", self.metadata, ("fp16", "bf16", "fp32"), "these formats have a wire format")
        require(
            self.group in (16, 32, 64, 128, 256, 512),
            f"group={self.group!r}",
            "a power of two, 16..512",
            "planes are 16-byte aligned",
        )


@dataclass(frozen=True, kw_only=True)
class TahQuantCodec(Codec):
    """TAH-Quant (arXiv 2506.01352): entropy-chosen INT3/INT4 tiles, pivot swap and Hadamard for spiky tiles.

    tile: consecutive channels; low_fraction: share of tiles (lowest entropy) that get INT3;
    pivot_ratio: a tile whose largest magnitude is at least this times its second is rotated.
    """

    tile: int = 64
    low_fraction: float = 0.2
    pivot_ratio: float = 2.0

    def __post_init__(self) -> None:
        one_of("tile", self.tile, (32, 64), "the pivot index is sent in 6 bits")
        require(0 <= self.low_fraction <= 1, f"low_fraction={self.low_fraction}", "0..1", "it is a share of tiles")
        positive("it is a ratio of magnitudes", pivot_ratio=self.pivot_ratio)


NONE = NoCodec()

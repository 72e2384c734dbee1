"""Inputs, comparisons and virtual communicators that the tests of taco.comm share."""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from taco.codec import coder
from taco.comm import VirtualCommunicator
from taco.config import Codec, GroupCodec
from taco.recipes import preset

STOCHASTIC = GroupCodec(name="int8-stochastic", rounding="stochastic")


def parts_of(world_size: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What every rank puts in: each rank can make all of it."""
    generator = torch.Generator().manual_seed(len(shape) + world_size)
    return [(torch.randn(shape, generator=generator) * (r + 1)).to(dtype) for r in range(world_size)]


def digest(x: Tensor) -> str:
    form = f"{x.dtype}{list(x.shape)}".encode()
    return hashlib.sha256(form + x.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def codec_of(name: str) -> Codec:
    return STOCHASTIC if name == STOCHASTIC.name else preset(name)


def equal(a: Tensor, b: Tensor) -> bool:
    """Same bits (NaN included), dtype and shape."""
    return a.dtype == b.dtype and digest(a) == digest(b)


def virtual(ways: int, codec, **options) -> VirtualCommunicator:
    return VirtualCommunicator(ways, preset(codec) if isinstance(codec, str) else codec, role="r", **options)


def gaussian(ways: int, *shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(ways)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(ways)]


def sqnr_db(exact: Tensor, y: Tensor) -> float:
    return 10 * math.log10(exact.double().square().sum() / (exact.double() - y.double()).square().sum())


def round_trip(codec, x: Tensor) -> Tensor:
    packer = coder(codec)
    return packer.decode(packer.encode(x), x.numel(), x.dtype).view(x.shape)

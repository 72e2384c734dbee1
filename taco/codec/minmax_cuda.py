"""The min/max codecs' kernels: torch.ops.taco.{minmax, tahquant}_{encode, decode_sum, decode_sum_encode}.

They equal asymmetric.py and tahquant.py bit for bit on CUDA tensors and, compiled from the same source, on CPU tensors.
Each is one launch for all rows, tahquant_decode_sum_encode two. Fake implementations serve torch.compile and opcheck.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, library

from taco.codec import cuda, wire
from taco.config import AsymmetricCodec, TahQuantCodec

# the numbers of enum Metadata in kernels/range.cuh
METADATA = {"fp16": 0, "bf16": 1, "fp32": 2}


@lru_cache(maxsize=1)
def load() -> None:
    """Load the library and register the fakes, once a process. Raises `BuildError` if it is missing or foreign."""
    cuda.load()
    library.register_fake("taco::minmax_encode", _fake_encode)
    library.register_fake("taco::minmax_decode_sum", _fake_decode_sum)
    library.register_fake("taco::minmax_decode_sum_encode", _fake_decode_sum_encode)
    library.register_fake("taco::tahquant_encode", _fake_tahquant_encode)
    library.register_fake("taco::tahquant_decode_sum", _fake_decode_sum)
    library.register_fake("taco::tahquant_decode_sum_encode", _fake_decode_sum_encode)


@torch.compiler.assume_constant_result
def loaded() -> bool:
    """True, once `load` is done; a constant to torch.compile."""
    load()
    return True


def encode(rows: Tensor, config: AsymmetricCodec) -> Tensor:
    """rows [P, numel] fp32/bf16/fp16 -> P Packets uint8 [P, nbytes] on the same device."""
    loaded()
    return torch.ops.taco.minmax_encode(rows.contiguous(), *_settings(config))


def decode_sum(packets: Tensor, config: AsymmetricCodec, numel: int, dtype: torch.dtype) -> Tensor:
    """packets uint8 [P, N >= 1, nbytes] -> [P, numel] of `dtype`: sums over N in index order, in fp32, rounded once."""
    loaded()
    return torch.ops.taco.minmax_decode_sum(cuda.aligned(packets), numel, dtype, *_settings(config))


def decode_sum_encode(packets: Tensor, config: AsymmetricCodec, numel: int) -> Tensor:
    """packets uint8 [P, N >= 1, nbytes], as `encode` makes them -> P Packets uint8 [P, nbytes] of their fp32 sums."""
    loaded()
    return torch.ops.taco.minmax_decode_sum_encode(cuda.aligned(packets), numel, *_settings(config))


def tahquant_encode(rows: Tensor, config: TahQuantCodec, low: int) -> Tensor:
    """rows [P, numel] fp32/bf16/fp16, low: INT3 tiles a row -> P Packets uint8 [P, nbytes].

    One cooperative launch, on at most as many blocks as are resident at once; histograms and tile counts need about
    25 KiB of scratch memory a row, which is freed on return.
    """
    loaded()
    return torch.ops.taco.tahquant_encode(rows.contiguous(), config.tile, low, config.pivot_ratio)


def tahquant_decode_sum(packets: Tensor, config: TahQuantCodec, low: int, numel: int, dtype: torch.dtype) -> Tensor:
    """packets uint8 [P, 1 <= N <= 512, nbytes] -> [P, numel] of `dtype`: sums over N in order, fp32, rounded once."""
    loaded()
    return torch.ops.taco.tahquant_decode_sum(cuda.aligned(packets), numel, dtype, config.tile, low)


def tahquant_decode_sum_encode(packets: Tensor, config: TahQuantCodec, low: int, numel: int) -> Tensor:
    """packets uint8 [P, 1 <= N <= 512, nbytes] -> P Packets uint8 [P, nbytes] of their fp32 sums.

    Two launches with the fp32 sums between them: the encoder reads its input twice.
    """
    loaded()
    return torch.ops.taco.tahquant_decode_sum_encode(cuda.aligned(packets), numel, config.tile, low, config.pivot_ratio)


def _settings(config: AsymmetricCodec) -> tuple[int, int, int]:
    return config.bits, config.group, METADATA[config.metadata]


def _nbytes(numel: int, bits: int, group: int, metadata: int) -> int:
    name = next(name for name, number in METADATA.items() if number == metadata)
    config = AsymmetricCodec(name="operator", bits=bits, group=group, metadata=name)
    return wire.asymmetric_layout(config, numel).total


def _fake_encode(rows: Tensor, bits: int, group: int, metadata: int) -> Tensor:
    return rows.new_empty(rows.shape[0], _nbytes(rows.shape[1], bits, group, metadata), dtype=torch.uint8)


def _fake_tahquant_encode(rows: Tensor, tile: int, low: int, pivot_ratio: float) -> Tensor:
    form = wire.tahquant_layout(tile, -(-rows.shape[1] // tile), low)
    return rows.new_empty(rows.shape[0], form.total, dtype=torch.uint8)


def _fake_decode_sum(packets: Tensor, numel: int, dtype: torch.dtype, *settings: int) -> Tensor:
    return packets.new_empty(packets.shape[0], numel, dtype=dtype)


def _fake_decode_sum_encode(packets: Tensor, numel: int, *settings: float) -> Tensor:
    return packets.new_empty(packets.shape[0], packets.shape[2])

"""TAH-Quant (arXiv 2506.01352): tiles of INT3 or INT4 chosen by entropy; a spiky tile is swapped and rotated first.

Per tile of consecutive channels, padded with zeros at the end of a message:

1. entropy E = -sum p log p, p = |x| / sum|x|; the floor(low_fraction * tiles) tiles of a packet with the lowest E (the
   earlier tile first when equal) get INT3, the others INT4: the paper's second version, which allocates per tile.
   Each step is one IEEE fp32 operation: sums are trees of adjacent pairs, p is |x| * (1 / sum), and the logarithm is a
   series, so that E and with it the choice of tiles has the same bits on every device.
2. m1, m2 = largest and second largest |x|; if m1 >= pivot_ratio * m2 > 0 or m2 = 0 < m1, the pivot swaps places with
   element 0 and the tile is multiplied by the orthonormal Hadamard matrix.
3. min/max quantisation with fp16 zero and scale, as in asymmetric.py. A tile that is not finite decodes to NaN.

    Packet: [INT3 payload2][INT3 payload1][INT4 payload4][head: a byte a tile][lo][step]

head: bits 0-5 the pivot's index, bit 6 set for INT3, bit 7 set for a rotated tile. Payload sections hold the tiles of
their width in tile order, so the size of a packet follows from its number of elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taco.codec import minmax_cuda, reference, wire
from taco.codec.asymmetric import quantise, ranges
from taco.codec.backend import KernelCoder
from taco.config import TahQuantCodec

INT3, ROTATED, INDEX = 64, 128, 63
SQRT_HALF_BITS = 0x3F3504F3  # fp32 sqrt(1/2)


def logarithm(x: Tensor) -> Tensor:
    """x fp32, normal and positive -> log x, with a relative error below 1e-6 and the same bits on every device.

    x = 2^k m with m in [sqrt(1/2), sqrt(2)), t = (m - 1) / (m + 1): log x = k log 2 + 2 (t + t^3/3 + t^5/5 + t^7/7).
    """
    bits = x.view(torch.int32)
    k = (bits - SQRT_HALF_BITS) >> 23
    m = (bits - (k << 23)).view(torch.float32)
    t = (m - 1.0) / (m + 1.0)
    z = t * t
    series = ((z * (1 / 7) + 1 / 5) * z + 1 / 3) * z + 1.0
    return k.float() * math.log(2) + (t + t) * series


def entropies(x: Tensor) -> Tensor:
    """x fp32 [tile, n] -> nats >= 0 [n]; 0 for a tile of zeros, -1 for one that is not finite (it needs no bits)."""
    magnitude = x.abs()
    total = reference.tree_sum(magnitude).clamp(min=reference.SMALLEST_SCALE)
    p = magnitude * reference.over(1.0, total)
    entropy = -reference.tree_sum(p * logarithm(p.clamp(min=reference.SMALLEST_SCALE)))
    # rounding can take p above 1, and a maximum with 0 may be either zero
    return (entropy.clamp(min=0.0) + 0.0).nan_to_num(nan=-1.0)


def pivots(x: Tensor, ratio: float) -> tuple[Tensor, Tensor]:
    """x fp32 [tile, n] -> bool [n], which tiles are rotated, and int64 [n], where the largest magnitude is."""
    magnitude = x.abs()
    first, index = magnitude.max(0)
    second = magnitude.scatter(0, index[None], -1.0).amax(0)
    return (first > 0) & (first >= ratio * second), index


def swap_first(x: Tensor, index: Tensor) -> Tensor:
    """x [tile, n] with element index[i] and element 0 of every column i exchanged; index 0 changes nothing."""
    out = x.clone()
    out.scatter_(0, index[None], x[:1])
    out[0] = x.gather(0, index[None])[0]
    return out


class TahQuantCoder(KernelCoder):
    """TAH-Quant's forward codec. Tiles are decoded one by one, so sums are formed of decoded values."""

    seeded = False
    config: TahQuantCodec

    def __init__(self, config: TahQuantCodec, backend: str = "auto") -> None:
        super().__init__(config, backend)
        self.align = config.tile

    def _counts(self, numel: int) -> tuple[int, int]:
        """Tiles in a packet, and how many of them are INT3."""
        tiles = -(-numel // self.config.tile)
        return tiles, int(self.config.low_fraction * tiles)

    def _layout(self, numel: int) -> wire.Layout:
        return wire.tahquant_layout(self.config.tile, *self._counts(numel))

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return self._layout(numel).total

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        count, numel = rows.shape
        if self._on_kernels(rows):
            return minmax_cuda.tahquant_encode(rows, self.config, self._counts(numel)[1])
        x = reference.columns(rows, self.config.tile)
        tiles, low = self._counts(numel)
        narrow = torch.zeros(count, tiles, dtype=torch.bool, device=x.device)
        narrow.scatter_(1, torch.sort(entropies(x).view(count, tiles), dim=1, stable=True).indices[:, :low], True)
        narrow = narrow.view(-1)
        rotated, index = pivots(x, self.config.pivot_ratio)
        index = torch.where(rotated, index, 0)
        x = torch.where(rotated, reference.fwht(swap_first(x, index), self.config.tile), x)
        levels = torch.where(narrow, 7.0, 15.0)
        lo, step = ranges(x, levels, torch.float16)
        codes = quantise(x, lo, step, levels).t()
        head = index.to(torch.uint8) | narrow * INT3 | rotated * ROTATED
        parts = [
            *wire.pack_planes(codes[narrow].reshape(count, low * self.config.tile), 3),
            *wire.pack_planes(codes[~narrow].reshape(count, (tiles - low) * self.config.tile), 4),
            *(part.view(torch.uint8).view(count, -1) for part in (head.to(torch.uint8), lo, step)),
        ]
        return self._layout(numel).assemble(parts, x.device)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if self._on_kernels(packets):
            return self._kernel_sums(packets[:, None], numel, dtype)
        form, tile = self._layout(numel), self.config.tile
        head = form.section(packets, "head").reshape(-1)
        narrow = (head & INT3) != 0
        codes = torch.empty(len(head), tile, dtype=torch.uint8, device=packets.device)
        for name, bits, chosen in (("int3_", 3, narrow), ("int4_", 4, ~narrow)):
            codes[chosen] = wire.unpack_planes(wire.payload_sections(packets, form, name, bits), bits).reshape(-1, tile)
        lo, step = (form.section(packets, n).contiguous().view(torch.float16).float().view(-1) for n in ("lo", "step"))
        y = lo + codes.t().float() * step
        rotated = (head & ROTATED) != 0
        y = torch.where(rotated, swap_first(reference.fwht(y.contiguous(), tile), (head & INDEX).long()), y)
        return y.t().reshape(len(packets), -1)[:, :numel]

    def _kernel_sums(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return minmax_cuda.tahquant_decode_sum(packets, self.config, self._counts(numel)[1], numel, dtype)

    def _sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if self._on_kernels(packets):
            return self._kernel_sums(packets[None], numel, dtype)[0]
        return super()._sum(packets, numel, dtype)

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        if self._on_kernels(packets):
            return minmax_cuda.tahquant_decode_sum_encode(packets, self.config, self._counts(numel)[1], numel)
        return super()._sum_encode(packets, numel, dtype, seeds)

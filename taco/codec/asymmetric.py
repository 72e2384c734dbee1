"""Min/max quantisation per group: Flash Communication (arXiv 2412.04964) and TAH-Quant's backward pass.

    lo = round_down(min x);  step = round_up((max x - lo) / (2^bits - 1));  q = round((x - lo) * (1 / step))
    y  = lo + q * step

lo and step are rounded to the metadata dtype in the directions that keep every x within range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from taco.codec import minmax_cuda, reference, wire
from taco.codec.backend import KernelCoder
from taco.config import AsymmetricCodec

METADATA = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def toward(x: Tensor, dtype: torch.dtype, *, up: bool) -> Tensor:
    """x fp32 -> the nearest value of `dtype` not below x (up) or not above it; what overflows becomes infinite."""
    y = x.to(dtype)
    if dtype == torch.float32:
        return y
    wrong = y.float() < x if up else y.float() > x
    # the next value away from zero is one bit pattern further, the next towards zero one back
    away = (y.view(torch.int16) < 0) != up
    bits = y.view(torch.int16) + wrong * (2 * away.to(torch.int16) - 1)
    return bits.to(torch.int16).view(dtype)


def ranges(x: Tensor, levels: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x fp32 [group, n], levels fp32 [n] = 2^bits - 1 -> lo and step [n] of `dtype`.

    Both are NaN where the group is not finite or its range does not fit `dtype`.
    """
    # a sum with +0 is +0 for both zeros, of which a minimum may be either
    low, high = x.amin(0) + 0.0, x.amax(0)
    lo = toward(low, dtype, up=False)
    span = high - lo.float()
    step = (span / levels).clamp(min=reference.SMALLEST_SCALE)
    step = torch.where(span == 0, 0.0, step)
    step = toward(step, dtype, up=True)
    bad = ~(lo.isfinite() & step.isfinite() & span.isfinite())
    return lo.masked_fill(bad, math.nan), step.masked_fill(bad, math.nan)


def quantise(x: Tensor, lo: Tensor, step: Tensor, levels: Tensor) -> Tensor:
    """x fp32 [group, n] -> codes uint8 [group, n] in 0..levels; 0 where step is 0 or NaN."""
    step = step.float()
    usable = step > 0
    y = torch.where(usable, (x - lo.float()) * reference.over(1.0, step), 0.0)
    return torch.minimum(torch.round(y).clamp(min=0.0), levels).to(torch.uint8)


class AsymmetricCoder(KernelCoder):
    """Min/max codec. A short last group is filled with its last element, which keeps its range."""

    seeded = False
    sliceable = True
    config: AsymmetricCodec

    def __init__(self, config: AsymmetricCodec, backend: str = "auto") -> None:
        super().__init__(config, backend)
        self.align = config.group

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return wire.asymmetric_layout(self.config, numel).total

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        if self._on_kernels(rows):
            return minmax_cuda.encode(rows, self.config)
        config, (count, numel) = self.config, rows.shape
        short = -numel % config.group
        x = reference.columns(torch.cat([rows, rows[:, -1:].expand(-1, short)], 1) if short else rows, config.group)
        levels = torch.full((x.shape[1],), 2.0**config.bits - 1, device=x.device)
        lo, step = ranges(x, levels, METADATA[config.metadata])
        codes = quantise(x, lo, step, levels).t().reshape(count, -1)
        meta = [m.view(torch.uint8).view(count, -1) for m in (lo, step)]
        return wire.asymmetric_layout(config, numel).assemble([*wire.pack_planes(codes, config.bits), *meta], x.device)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if self._on_kernels(packets):
            return minmax_cuda.decode_sum(packets[:, None], self.config, numel, dtype)
        config, form = self.config, wire.asymmetric_layout(self.config, numel)
        codes = wire.unpack_planes(wire.payload_sections(packets, form, "payload", config.bits), config.bits)
        kind = METADATA[config.metadata]
        lo, step = (form.section(packets, n).contiguous().view(kind).float().unsqueeze(-1) for n in ("lo", "step"))
        y = lo + codes.reshape(*lo.shape[:2], config.group).float() * step
        return y.view(len(packets), -1)[:, :numel]

    def _sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if self._on_kernels(packets):
            return minmax_cuda.decode_sum(packets[None], self.config, numel, dtype)[0]
        return super()._sum(packets, numel, dtype)

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        if self._on_kernels(packets):
            return minmax_cuda.decode_sum_encode(packets, self.config, numel)
        return super()._sum_encode(packets, numel, dtype, seeds)

"""Coders without groups: the tensor's own bytes, a plain FP8 cast, one scale for the whole message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from taco.codec import reference, wire
from taco.codec.base import Coder
from taco.config import CastCodec, NoCodec, TensorCodec


class NoCoder(Coder):
    """The tensor's own bytes, padded to 16."""

    seeded = False
    linear: ClassVar[bool] = True
    sliceable = True
    config: NoCodec

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return wire.align16(numel * dtype.itemsize)

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        form = wire.layout(("payload", rows.shape[1] * rows.dtype.itemsize))
        return form.assemble([rows.contiguous().view(torch.uint8)], rows.device)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return packets[:, : numel * dtype.itemsize].clone(memory_format=torch.contiguous_format).view(dtype)

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        sums = [self._sum(each, numel, dtype).to(dtype) for each in packets]
        return self._encode(torch.stack(sums), seeds)


class CastCoder(Coder):
    """Round to FP8 as it is: larger values saturate, NaN and Inf become NaN."""

    seeded = False
    linear: ClassVar[bool] = True
    sliceable = True
    config: CastCodec

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return wire.align16(numel)

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        target = reference.TARGET[self.config.payload]
        x = rows.float()
        y = x.clamp(-target, target).masked_fill(x.isinf(), math.nan).to(reference.FP8[self.config.payload])
        return wire.layout(("payload", rows.shape[1])).assemble([y.view(torch.uint8)], rows.device)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return reference.load_payload(packets[:, :numel], self.config.payload)


class TensorCoder(Coder):
    """One absmax scale (fp32): q = round(x / s), s = max|x| / T. A message that is not finite decodes to NaN."""

    seeded = False
    linear: ClassVar[bool] = True
    config: TensorCodec

    def _layout(self, numel: int) -> wire.Layout:
        return wire.layout(("payload", numel), ("scale", 4 if numel else 0))

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return self._layout(numel).total

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        x = rows.float()
        absmax = x.abs().amax(1, keepdim=True)
        s = reference.under(absmax, reference.TARGET[self.config.payload]).clamp(min=reference.SMALLEST_SCALE)
        finite = absmax < math.inf
        usable = finite & (absmax > 0)
        y = torch.where(usable, x * reference.over(1.0, s), 0.0)
        s = torch.where(usable, s, 0.0).masked_fill(~finite, math.nan)
        codes = reference.round_payload(y, self.config.payload, None)
        return self._layout(rows.shape[1]).assemble([codes, s.view(torch.uint8)], rows.device)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        form = self._layout(numel)
        s = form.section(packets, "scale").contiguous().view(torch.float32)
        return reference.load_payload(form.section(packets, "payload"), self.config.payload) * s

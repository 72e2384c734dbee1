"""The authors' published semantics of the TACO codec, for comparisons only: it is not a preset and never trains.

Source: hpdps-group/COCCL, commit 680bb4d, taco.cu. What differs from `taco`:

- a value that is not finite after the transform becomes 0, so one NaN silently zeroes its group;
- a short last group stores as many coefficients as it has elements, and the decoder takes the rest as 0;
- s is clamped to [1e-12, 1e6] and max|z| floored at 1e-12, so very large and very small data lose their scale;
- quotients are clamped to +-448 whatever the target range (which ruins the README's configuration).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from taco.codec import reference
from taco.codec.reference import FP8


@dataclass(frozen=True, kw_only=True)
class AuthorsTaco:
    """One configuration of the published kernel.

    target: T, the range that the absmax is scaled to. maximum: F_max of alpha. clip: the bound on quotients.
    """

    name: str = "taco"
    group: int = 128
    payload: str = "e4m3"
    target: float = 448.0
    maximum: float = 448.0
    clip: float = 448.0

    def bytes_per_element(self) -> float:
        """One byte and two fp32 scales a group."""
        return 1 + 8 / self.group

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x any shape -> FP8 codes [numel], fp32 s [groups], fp32 alpha [groups]."""
        flat = x.detach().reshape(-1)
        numel, z = flat.numel(), reference.columns(flat, self.group)
        groups = z.shape[1]
        count = torch.full((groups,), float(self.group), device=x.device)
        count[-1] = numel - (groups - 1) * self.group
        mean = (z.square().sum(0) / count + reference.LAMBDA).clamp(min=1e-12)
        alpha = (self.maximum / mean.sqrt()).nan_to_num(nan=reference.ALPHA_LOW)
        alpha = alpha.clamp(reference.ALPHA_LOW, reference.ALPHA_HIGH)
        z = reference.fwht(z * alpha, self.group)
        largest = z.abs().nan_to_num(nan=0.0, posinf=math.inf).amax(0).clamp(min=1e-12)
        s = (largest / self.target).clamp(1e-12, 1e6)
        q = (z.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) / s).clamp(-self.clip, self.clip).to(FP8[self.payload])
        return q.t().reshape(-1)[:numel], s, alpha

    def decode(self, codes: Tensor, s: Tensor, alpha: Tensor, dtype: torch.dtype) -> Tensor:
        """Inverse of `encode` -> [numel] of `dtype`."""
        c = reference.columns(codes.float(), self.group) * s
        y = (reference.fwht(c, self.group) / alpha.clamp(min=1e-12)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        return y.t().reshape(-1)[: codes.numel()].to(dtype)

    def roundtrip(self, x: Tensor) -> Tensor:
        """What the receiver of x gets; same shape and dtype."""
        return self.decode(*self.encode(x), x.dtype).view(x.shape)


RELEASED = AuthorsTaco()
# taco_AR.config and taco_AG.config of the README: 57734 is a typo of 57344, and '1' selects E4M3
README = AuthorsTaco(name="taco-readme", group=256, target=57734.0, maximum=57734.0)

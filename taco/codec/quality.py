"""How far a decoded tensor is from the original. Everything is computed in fp64 and returned as a float."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def sqnr_db(x: Tensor, y: Tensor) -> float:
    """10 log10(sum x^2 / sum (x - y)^2) in dB of equal shapes; inf if y equals x, NaN if y or x is not finite."""
    _same_shape(x, y)
    x, y = x.double(), y.double()
    signal, noise = float(x.square().sum()), float((x - y).square().sum())
    if math.isnan(noise) or math.isinf(signal):
        return math.nan
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def bulk_sqnr_db(x: Tensor, y: Tensor, outlier_channels: Sequence[int]) -> float:
    """SQNR in dB of the channels (last dimension) that are not in `outlier_channels`: what small channels keep.

    Raises `ValueError` if every channel is an outlier.
    """
    _same_shape(x, y)
    keep = torch.ones(x.shape[-1], dtype=torch.bool, device=x.device)
    keep[torch.as_tensor(outlier_channels, dtype=torch.long, device=x.device)] = False
    if not keep.any():
        raise ValueError(
            f"got all {x.shape[-1]} channels as outliers; need one that is not; because its error is measured"
        )
    return sqnr_db(x[..., keep], y[..., keep])


def small_sqnr_db(x: Tensor, y: Tensor, share: float = 0.99) -> float:
    """SQNR in dB of the `share` of elements that are smallest in magnitude: what is left of them beside large ones.

    Where its channels are not known; x of any shape, nan for none.
    """
    _same_shape(x, y)
    x, y = x.double().reshape(-1), y.double().reshape(-1)
    count = int(share * x.numel())
    keep = x.abs().argsort(stable=True)[:count]
    return sqnr_db(x[keep], y[keep]) if count else math.nan


def max_error(x: Tensor, y: Tensor) -> float:
    """Largest |x - y|; 0 for empty tensors, NaN if one of them is NaN."""
    _same_shape(x, y)
    return float((x.double() - y.double()).abs().max()) if x.numel() else 0.0


def crest_db(x: Tensor, group: int) -> Tensor:
    """x -> fp32 [numel // group]: 20 log10(max|x| / rms) in dB of every whole group, NaN for a group of zeros."""
    groups = x.detach().reshape(-1)[: x.numel() // group * group].float().view(-1, group)
    return 20 * torch.log10(groups.abs().amax(1) / groups.square().mean(1).sqrt())


def _same_shape(x: Tensor, y: Tensor) -> None:
    if x.shape != y.shape:
        raise ValueError(
            f"got shapes {list(x.shape)} and {list(y.shape)}; need equal ones; because they are compared by element"
        )

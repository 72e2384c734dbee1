"""AdamW over parameters that may be DTensors on several meshes, and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from taco.config import Train


def learning_rate(step: int, train: Train) -> float:
    """Rate of step 1..steps: linear over `warmup` steps to `lr`, then half a cosine to `min_lr` at the last step."""
    if step <= train.warmup:
        return train.lr * step / train.warmup
    progress = (step - train.warmup) / max(1, train.steps - train.warmup)
    return train.min_lr + (train.lr - train.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def _decays(name: str, parameter: nn.Parameter) -> bool:
    """Matrices decay; biases and norm weights (one-dimensional) do not, as in GPT-3 (arXiv 2005.14165)."""
    return parameter.ndim >= 2 and not name.endswith(".bias")


def adamw(named: Iterable[tuple[str, nn.Parameter]], train: Train) -> torch.optim.AdamW:
    """AdamW for (name, parameter) pairs, each parameter once. A group per (decay, mesh): fused kernels take no mix.

    The fused implementation runs where torch has one for every parameter's device and dtype.
    """
    groups: dict[tuple, list[nn.Parameter]] = {}
    for name, parameter in named:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((_decays(name, parameter), mesh), []).append(parameter)
    parameters = [p for group in groups.values() for p in group]
    fused = all(p.device.type in ("cpu", "cuda") and p.dtype.is_floating_point for p in parameters)
    return torch.optim.AdamW(
        [{"params": group, "weight_decay": train.weight_decay * decays} for (decays, _), group in groups.items()],
        lr=train.lr,
        betas=(train.beta1, train.beta2),
        fused=fused,
    )


def set_learning_rate_(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate

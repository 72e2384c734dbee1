"""Synthetic tensors for what codecs meet: light and heavy tails, tiny values, massive channels, an offset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

OUTLIER_SCALE = 0.02


@dataclass(frozen=True, eq=False)
class Dataset:
    """tensor: fp32 [rows, channels]. outliers: the massive channels, empty if there are none."""

    name: str
    tensor: Tensor
    outliers: tuple[int, ...] = ()


def _laplace(rows: int, channels: int, generator: Generator) -> Tensor:
    u = torch.rand(rows, channels, generator=generator) - 0.5
    return -u.sign() * torch.log1p(-2 * u.abs())


def _student_t3(rows: int, channels: int, generator: Generator) -> Tensor:
    normal = torch.randn(4, rows, channels, generator=generator)
    return normal[0] / (normal[1:].square().sum(0) / 3).sqrt()


def _normal(rows: int, channels: int, generator: Generator) -> Tensor:
    return torch.randn(rows, channels, generator=generator)


def _massive(count: int, ratio: float) -> Callable[[int, int, Generator], tuple[Tensor, tuple[int, ...]]]:
    def make(rows: int, channels: int, generator: Generator) -> tuple[Tensor, tuple[int, ...]]:
        x = OUTLIER_SCALE * _laplace(rows, channels, generator)
        chosen = torch.randperm(channels, generator=generator)[:count]
        x[:, chosen] *= ratio
        return x, tuple(sorted(chosen.tolist()))

    return make


# name -> (seed, generator). Outliers: a Laplace bulk of scale 0.02 with 8 channels at 100, or 4 at 1000 times it.
_SETS: dict[str, tuple[int, Callable]] = {
    "gauss": (1, _normal),
    "gauss-small": (2, lambda *args: 1e-3 * _normal(*args)),
    "laplace": (3, _laplace),
    "student-t3": (4, _student_t3),
    "outliers-100x": (5, _massive(8, 100.0)),
    "outliers-1000x": (6, _massive(4, 1000.0)),
    "gauss-mean": (7, lambda *args: 3 + _normal(*args)),
}
NAMES = tuple(_SETS)


def dataset(name: str, rows: int = 256, channels: int = 4096, *, part: int = 0) -> Dataset:
    """The data set called `name`, the same on every machine. part: independent data of the same law.

    Raises `ValueError` for an unknown name.
    """
    if name not in _SETS:
        raise ValueError(
            f"got data set {name!r}; need one of {', '.join(NAMES)}; because data sets are looked up by name"
        )
    seed, make = _SETS[name]
    made = make(rows, channels, torch.Generator().manual_seed(seed + 1000 * part))
    return Dataset(name, *made) if isinstance(made, tuple) else Dataset(name, made)

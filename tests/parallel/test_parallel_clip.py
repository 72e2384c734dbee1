"""Clipping in one process; that every grid has the same norm is checked with the grids."""

from __future__ import annotations

import pytest
import torch

from taco.parallel.clip import clip_gradients_
from taco.parallel.virtual import VIRTUAL_DIM


def with_gradients() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((4, 6), (8,), (2, 2))]
    for parameter in parameters[:2]:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return parameters


def test_equals_torch() -> None:
    ours, torchs = with_gradients(), with_gradients()
    norm = clip_gradients_(ours, 0.5)
    expected = torch.nn.utils.clip_grad_norm_(torchs, 0.5)
    assert norm == pytest.approx(float(expected), rel=1e-6)
    for a, b in zip(ours[:2], torchs[:2], strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_small_gradients_keep_their_bits() -> None:
    parameters = with_gradients()
    before = [p.grad.clone() for p in parameters[:2]]
    clip_gradients_(parameters, 1e6)
    assert all(torch.equal(p.grad, grad) for p, grad in zip(parameters, before, strict=False))


def test_uncounted_parameters_are_scaled_but_not_counted() -> None:
    parameters = with_gradients()
    copy = torch.nn.Parameter(torch.zeros(4, 6))
    copy.grad = parameters[0].grad.clone()
    alone = clip_gradients_(with_gradients(), 0.5)
    assert clip_gradients_([*parameters, copy], 0.5, uncounted=[copy]) == alone
    assert torch.equal(copy.grad, parameters[0].grad)


def test_virtual_shards_add_up_to_the_whole() -> None:
    parameters = with_gradients()
    setattr(parameters[0], VIRTUAL_DIM, 1)
    expected = clip_gradients_(with_gradients(), 1.0)
    assert clip_gradients_(parameters, 1.0, virtual=2) == pytest.approx(expected, rel=1e-6)


def test_nan_gradient_gives_nan_norm() -> None:
    parameters = with_gradients()
    parameters[1].grad[3] = float("nan")
    assert clip_gradients_(parameters, 1.0) != clip_gradients_(with_gradients(), 1.0)
    assert torch.isnan(torch.tensor(clip_gradients_(parameters, 1.0)))

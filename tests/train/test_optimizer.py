"""The schedule at its corners, and what decays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from taco.config import Train
from taco.train.optimizer import adamw, learning_rate, set_learning_rate_

TRAIN = Train(steps=110, warmup=10, lr=1e-3, min_lr=1e-4)


@pytest.mark.parametrize(("step", "rate"), [(1, 1e-4), (5, 5e-4), (10, 1e-3), (60, 5.5e-4), (110, 1e-4), (111, 1e-4)])
def test_learning_rate_warms_up_then_falls_to_its_minimum(step, rate):
    assert learning_rate(step, TRAIN) == pytest.approx(rate, rel=1e-12)


def test_learning_rate_without_warm_up_starts_at_the_top():
    train = Train(steps=1, warmup=0, lr=1e-3, min_lr=1e-4)
    assert learning_rate(1, train) == pytest.approx(1e-4)
    assert learning_rate(1, Train(steps=10**6, warmup=0, lr=1e-3)) == pytest.approx(1e-3, rel=1e-5)


def test_only_matrices_decay_and_a_parameter_is_optimized_once():
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    optimizer = adamw(model.named_parameters(), TRAIN)
    decaying = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert decaying == {id(model[0].weight), id(model[1].weight)}
    assert sum(len(g["params"]) for g in optimizer.param_groups) == 5


def test_step_is_adamw():
    """One step against the update written out (arXiv 1711.05101), in float64."""
    weight = nn.Parameter(torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4))
    before, grad = weight.detach().clone(), torch.linspace(2, -3, 12, dtype=torch.float64).view(3, 4)
    optimizer = adamw([("w", weight)], TRAIN)
    set_learning_rate_(optimizer, 0.01)
    weight.grad = grad.clone()
    optimizer.step()
    # after one step both bias-corrected moments are the gradient and its square
    expected = before * (1 - 0.01 * TRAIN.weight_decay) - 0.01 * grad / (grad.abs() + 1e-8)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-12, atol=1e-14)

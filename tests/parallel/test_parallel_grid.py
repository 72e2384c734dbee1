"""Every process grid trains like one process: losses of 20 AdamW steps and the gradient of every parameter."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, QWEN, batch, gradients, make, train
from torch import Tensor

from taco.config import Model, Parallel, Policy
from taco.models import build
from taco.parallel import setup
from taco.parallel.layers import LocalView, SequenceShard

STEPS = 20
TOLERANCE = 1e-5  # fp32 sums of another order; a missing or doubled share is wrong by more than 0.1
UNTIED_GPT, UNTIED_QWEN = replace(GPT, tied=False), replace(QWEN, tied=False)
DEEP_GPT, DEEP_QWEN = replace(GPT, layers=4), replace(QWEN, layers=4)
SP = {"tp": 2, "sequence_parallel": True}
GRIDS = {
    2: [
        (GPT, Parallel(tp=2)),
        (UNTIED_QWEN, Parallel(tp=2)),
        (GPT, Parallel(**SP, microbatches=2)),
        (QWEN, Parallel(**SP)),
        (UNTIED_GPT, Parallel(dp=2, microbatches=2)),
        (QWEN, Parallel(dp=2)),
        (GPT, Parallel(pp=2, microbatches=4)),
        (UNTIED_QWEN, Parallel(pp=2, microbatches=4)),
        (DEEP_QWEN, Parallel(pp=2, microbatches=2, schedule="interleaved")),
    ],
    4: [
        (QWEN, Parallel(tp=4)),
        (GPT, Parallel(tp=4, sequence_parallel=True)),
        (DEEP_GPT, Parallel(pp=4, microbatches=4)),
    ],
    8: [(GPT, Parallel(tp=8)), (QWEN, Parallel(**SP, pp=2, dp=2, microbatches=2))],
}


def grid_body(rank: int, world_size: int, cases: list[tuple[Model, Parallel]]) -> list[dict]:
    return [train(make(model, parallel), STEPS) for model, parallel in cases]


def scales(reference: dict[str, Tensor]) -> dict[str, float]:
    """What an error is relative to: the gradient's largest element. Keys without rotary positions shift all scores of
    a query alike, so the gradient of their bias is zero but for rounding: there it is that of the queries."""
    sizes = {name: grad.abs().max().item() for name, grad in reference.items()}
    return {
        name: sizes[name.replace("k_proj", "q_proj")] if name.endswith("attn.k_proj.bias") else size
        for name, size in sizes.items()
    }


def gradient_error(got: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    size = scales(reference)
    return max((got[name] - reference[name]).abs().max().item() / size[name] for name in got)


@pytest.mark.parametrize("world_size", GRIDS)
def test_grid_equals_one_process(world_size: int) -> None:
    cases = GRIDS[world_size]
    results = run_ranks(world_size, grid_body, cases, timeout=120.0)
    for i, (model, parallel) in enumerate(cases):
        reference = train(make(model, Parallel(microbatches=parallel.microbatches)), STEPS)
        seen: set[str] = set()
        for rank, result in enumerate(results):
            where = f"{model.name} {parallel} rank {rank}"
            got = result[i]
            assert got["losses"] == pytest.approx(reference["losses"], rel=TOLERANCE), where
            assert got["norms"][0] == pytest.approx(reference["norms"][0], rel=TOLERANCE), where
            assert gradient_error(got["gradients"], reference["gradients"]) < TOLERANCE, where
            seen |= set(got["gradients"])
        assert seen == set(reference["gradients"])
        assert all(result[i]["losses"] == results[0][i]["losses"] for result in results)
        assert all(result[i]["norms"] == results[0][i]["norms"] for result in results)


def unsummed_body(rank: int, world_size: int) -> dict[str, Tensor]:
    """Sequence parallelism without the sum of the norms' gradients over the ranks."""
    correct = SequenceShard.local_parameters
    SequenceShard.local_parameters = LocalView.local_parameters
    try:
        par = make(QWEN, Parallel(**SP))
        par.step(*batch(0), 1)
        return gradients(par)
    finally:
        SequenceShard.local_parameters = correct


def test_tolerance_catches_unsummed_norm_gradients() -> None:
    par = make(QWEN)
    par.step(*batch(0), 1)
    reference = gradients(par)
    got = run_ranks(2, unsummed_body)[0]
    wrong = {name for name in got if gradient_error({name: got[name]}, reference) > TOLERANCE}
    assert wrong == {name for name in got if "norm" in name}


def eval_body(rank: int, world_size: int, cases: list[tuple[Model, Parallel]]) -> list[float]:
    losses = []
    for model, parallel in cases:
        par = make(model, parallel)
        before = par.eval_loss(*batch(0, parallel, par.dp_rank), 2)
        par.step(*batch(0, parallel, par.dp_rank), parallel.microbatches)
        losses += [before, par.eval_loss(*batch(0, parallel, par.dp_rank), 4)]
    return losses


def test_evaluation_equals_one_process_and_leaves_no_gradient() -> None:
    cases = [
        (DEEP_GPT, Parallel(**SP)),
        (DEEP_GPT, Parallel(dp=2)),
        (DEEP_GPT, Parallel(pp=2, microbatches=2, schedule="interleaved")),
    ]
    alone = make(DEEP_GPT)
    expected = alone.eval_loss(*batch(0))
    assert all(p.grad is None for _, p in alone.named_parameters())
    for losses in run_ranks(2, eval_body, cases):
        assert losses == pytest.approx([expected] * len(losses), rel=TOLERANCE)


def test_bad_batches_and_grids_are_named() -> None:
    par = make(GPT)
    tokens, targets = batch(0)
    with pytest.raises(ValueError, match="equal parts"):
        par.step(tokens, targets, 3)
    with pytest.raises(ValueError, match="mesh"):
        setup(GPT, partial(build, GPT, 3), Parallel(tp=2), Policy())
    with pytest.raises(ValueError, match="virtual ranks share"):
        make(GPT, Parallel(virtual_tp=2, sequence_parallel=True))
    with pytest.raises(ValueError, match="1 processes for pp=2"):
        make(GPT, Parallel(pp=2, microbatches=2))


def bf16_body(rank: int, world_size: int, cases: list[tuple[Model, Parallel]]) -> list[list[float]]:
    return [train(make(model, parallel, dtype=torch.bfloat16), 3)["losses"] for model, parallel in cases]


def test_bfloat16_runs_on_every_axis_near_float32() -> None:
    cases = [
        (QWEN, Parallel(**SP)),
        (GPT, Parallel(tp=2)),
        (QWEN, Parallel(dp=2)),
        (GPT, Parallel(pp=2, microbatches=2)),
    ]
    references = [train(make(model), 3)["losses"] for model, _ in cases]
    for result in run_ranks(2, bf16_body, cases):
        for losses, reference in zip(result, references, strict=True):
            assert losses == pytest.approx(reference, rel=0.01)

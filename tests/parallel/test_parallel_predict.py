"""The most probable next token is the same for whole and sharded logits, on every process grid."""

from __future__ import annotations

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, QWEN, batch, make, train

from taco.config import ConfigError, Parallel
from taco.parallel.predict import best

GRIDS = [
    (GPT, Parallel(tp=2)),
    (QWEN, Parallel(virtual_tp=2)),
    (GPT, Parallel(dp=2)),
    (GPT, Parallel(tp=2, sequence_parallel=True)),
    (GPT, Parallel(pp=2, microbatches=2)),
]
TRAINED = 10  # an untrained model's predictions say little: this one has some right


def test_shards_choose_as_whole_logits_do() -> None:
    logits = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(1))
    whole = best(logits)
    assert torch.equal(whole[0], logits.argmax(-1))
    torch.testing.assert_close(whole[1], logits.log_softmax(-1).amax(-1))
    shards = best(logits.chunk(4, -1))
    assert torch.equal(shards[0], whole[0])
    torch.testing.assert_close(shards[1], whole[1])


def test_the_first_of_equal_logits_wins_between_shards_too() -> None:
    logits = torch.zeros(2, 8)
    logits[0, [3, 5]] = logits[1, [6, 7]] = 1.0
    assert best(logits)[0].tolist() == best(logits.chunk(4, -1))[0].tolist() == [3, 6]


def found(model, parallel: Parallel) -> tuple[list[float], list]:
    """(loss and accuracy, next tokens where one rank sees the end of a whole sequence) after a few steps."""
    par = make(model, parallel)
    train(par, TRAINED)
    parts = parallel.microbatches
    seen = par.evaluate(*batch(0, parallel, par.dp_rank), parts)
    whole = parallel.pp == 1 and not parallel.sequence_parallel
    return list(seen), [x.tolist() for x in par.next_tokens(batch(0)[0])] if whole else []


def body(rank: int, world_size: int, cases: list) -> list:
    return [found(model, parallel) for model, parallel in cases]


def test_every_grid_predicts_as_one_process_does() -> None:
    real = [case for case in GRIDS if case[1].world_size == 2]
    virtual = [case for case in GRIDS if case[1].world_size == 1]
    ranks = run_ranks(2, body, real, timeout=120.0)
    results = [(case, rank[i]) for i, case in enumerate(real) for rank in ranks]
    for (model, parallel), (seen, tokens) in results + [(case, found(*case)) for case in virtual]:
        expected, alone = found(model, Parallel(microbatches=parallel.microbatches))
        where = f"{model.name} {parallel}"
        assert expected[1] > 0.02, where  # chance is 1 in 256
        assert seen == pytest.approx(expected, rel=1e-4), where
        if tokens:
            assert tokens[0] == alone[0], where
            assert tokens[1] == pytest.approx(alone[1], abs=1e-4), where


def test_accuracy_is_the_share_of_right_predictions_and_eval_loss_counts_none() -> None:
    par = make(GPT, Parallel(virtual_tp=4))
    train(par, TRAINED)
    tokens, targets = batch(3)
    loss, accuracy = par.evaluate(tokens, targets, 2)
    assert loss == par.eval_loss(tokens, targets, 2)
    right = sum((par.next_tokens(tokens[:, : i + 1])[0] == targets[:, i]).sum().item() for i in range(tokens.shape[1]))
    assert accuracy == right / targets.numel()
    assert all(p.grad is not None for _, p in par.named_parameters())


def test_a_pipeline_has_no_next_token() -> None:
    par = make(GPT)
    par.parallel = Parallel(pp=2, microbatches=2)
    with pytest.raises(ConfigError, match="one stage"):
        par.next_tokens(batch(0)[0])

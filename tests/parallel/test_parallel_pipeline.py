"""Pipeline stages: how blocks are shared out, and compressed messages between stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed import run_ranks
from parallel_cases import BATCH, GPT, QWEN, SEQ, batch, gradients, make, policy, train

from taco.codec import coder
from taco.config import ConfigError, Parallel
from taco.parallel.mesh import stage_layers

DEEP = replace(QWEN, layers=5)


def test_stage_layers_cover_all_blocks_once() -> None:
    for layers in range(1, 9):
        for stages in range(1, layers + 1):
            parts = [stage_layers(layers, stages, stage) for stage in range(stages)]
            assert [i for part in parts for i in part] == list(range(layers))
            assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_fewer_layers_than_stages_is_an_error() -> None:
    with pytest.raises(ConfigError, match="layers=3 with 4 pipeline stages"):
        stage_layers(3, 4, 0)


CASES = [
    (QWEN, Parallel(pp=2, microbatches=4), "int8"),
    (DEEP, Parallel(pp=2, microbatches=2, schedule="interleaved"), "int8"),
    (GPT, Parallel(pp=2, microbatches=4), "tahquant"),
]


def compressed_body(rank: int, world_size: int) -> list[dict]:
    results = []
    for model, parallel, codec in CASES:
        par = make(model, parallel, policy(pp=codec))
        loss = par.step(*batch(0, parallel), parallel.microbatches)
        wire = par.meter.totals()
        evaluated = par.eval_loss(*batch(0, parallel), parallel.microbatches)
        results.append({"loss": loss, "wire": wire, "evaluated": evaluated, "gradients": gradients(par)})
    return results


def test_compressed_messages_cost_the_formula_and_keep_the_loss() -> None:
    ranks = run_ranks(2, compressed_body)
    for i, (model, parallel, name) in enumerate(CASES):
        results = [rank[i] for rank in ranks]
        reference = make(model)
        expected = reference.step(*batch(0), 1)
        exact = gradients(reference)
        stages = 4 if parallel.schedule == "interleaved" else 2
        numel = BATCH // parallel.microbatches * SEQ * model.hidden
        for role, shift in (("pp_forward", 0), ("pp_backward", 1)):
            codec = getattr(policy(pp=name), role)
            size = coder(codec).nbytes(numel, torch.float32)
            for rank, result in enumerate(results):
                sends = [s for s in range(stages - 1) if (s + shift) % 2 == rank]
                total = result["wire"].get(role, {"wire": 0, "raw": 0})
                assert total["wire"] == len(sends) * parallel.microbatches * size
                assert total["raw"] == len(sends) * parallel.microbatches * numel * 4
        loose = 1e-3 if name == "int8" else 0.02
        for result in results:
            assert result["loss"] == results[0]["loss"] != expected
            assert result["loss"] == pytest.approx(expected, rel=loose)
            # evaluation sends the same packets as training, and adds microbatches in the same order
            assert result["evaluated"] == pytest.approx(result["loss"], rel=1e-6)
        if name == "int8":
            for result in results:
                for key, grad in result["gradients"].items():
                    if exact[key].norm() > 1e-6:
                        assert (grad - exact[key]).norm() < 0.1 * exact[key].norm(), key


def shared_body(rank: int, world_size: int) -> list[int]:
    """Both parts of a rank count in one pair of communicators: their seeds differ and their paths add up."""
    grid = Parallel(pp=2, virtual_tp=2, microbatches=2, schedule="interleaved")
    par = make(replace(QWEN, layers=4), grid, policy(tp="int8"))
    par.step(*batch(0, grid), 2)
    both = par.communicators["tp_forward"], par.communicators["tp_backward"]
    assert [sum(comm.paths.values()) for comm in both] == [comm.calls for comm in both]
    return [comm.calls for comm in both]


def test_both_parts_of_an_interleaved_rank_share_their_communicators() -> None:
    ends, blocks = 1, 2 * 2  # a rank has two blocks, the embedding (forward) or the head (backward)
    first, last = run_ranks(2, shared_body)
    assert first == [2 * (blocks + ends), 2 * blocks]
    assert last == [2 * blocks, 2 * (blocks + ends)]


def order_body(rank: int, world_size: int, schedule: str) -> list[str]:
    """What a rank sends and receives in evaluation, in the order of its calls."""
    order: list[str] = []
    par = make(replace(QWEN, layers=4), Parallel(pp=2, microbatches=2, schedule=schedule))
    comm = par.communicators["pp_forward"]
    for name in ("isend", "irecv"):
        call = getattr(comm, name)
        setattr(
            comm, name, lambda *args, _call=call, _name=name, **more: (order.append(_name), _call(*args, **more))[1]
        )
    par.eval_loss(*batch(0), 4)
    return order


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_evaluation_never_waits_in_a_circle(schedule: str) -> None:
    """Each call meets its counterpart in the order of calls, as on one stream of NCCL."""
    first, second = run_ranks(2, order_body, schedule)
    assert len(first) == (4 if schedule == "1f1b" else 12)
    assert [{"isend": "irecv", "irecv": "isend"}[call] for call in first] == second


def few_body(rank: int, world_size: int) -> None:
    par = make(QWEN, Parallel(pp=2, microbatches=2))
    with pytest.raises(ConfigError, match="microbatches=1 with pp=2"):
        par.step(*batch(0), 1)
    odd = make(replace(QWEN, layers=4), Parallel(pp=2, microbatches=2, schedule="interleaved"))
    tokens, targets = batch(0)
    with pytest.raises(ConfigError, match="a multiple of 2"):
        odd.step(tokens[:6], targets[:6], 3)


def test_too_few_or_uneven_microbatches_are_named() -> None:
    run_ranks(2, few_body)


def tied_body(rank: int, world_size: int) -> torch.Tensor:
    par = make(GPT, Parallel(pp=2, tp=2, microbatches=2), policy(pp="int8", tp="int8"))
    train(par, 10)
    [weight] = [p for name, p in par.named_parameters() if name == "transformer.wte.weight"]
    return weight.to_local().detach()


def test_tied_copies_of_first_and_last_stage_stay_equal() -> None:
    first, second, third, fourth = run_ranks(4, tied_body)
    assert torch.equal(first, third)
    assert torch.equal(second, fourth)
    assert not torch.equal(first, second)

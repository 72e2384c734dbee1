"""FSDP2 through Communicators: codecs on gradients and weights, weight differences, resuming."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from distributed import run_ranks
from parallel_cases import GPT, QWEN, batch, gradients, make, parameters, policy, train

from taco.codec import coder
from taco.comm import wire_bytes
from taco.config import Parallel
from taco.parallel.data import GatherDifferences
from taco.recipes import preset

DP2 = Parallel(dp=2)
SDP4BIT = policy(dp="sdp4bit")


def gathers(par) -> list[GatherDifferences]:
    return [gather for differences in par._differences for gather in differences.gathers.values()]


def difference_body(rank: int, world_size: int) -> dict:
    """What the ranks computed with after each step, and what the owners hold."""
    par = make(GPT, DP2, SDP4BIT)
    optimizer = torch.optim.AdamW([p for _, p in par.named_parameters()], lr=1e-3, foreach=True)
    history = []
    for step in range(3):
        par.zero_grad()
        par.step(*batch(step, DP2, par.dp_rank), 1)
        used = [gather.last.clone() for gather in gathers(par)]
        owned = [torch.cat([p._local_tensor.flatten() for p in gather.parameters]).clone() for gather in gathers(par)]
        history.append({"used": used, "owned": owned, "wire": par.meter.take()})
        optimizer.step()
        if step == 1:  # evaluation sends the change, so the next step need not
            par.eval_loss(*batch(step, DP2, par.dp_rank))
            history[-1]["evaluation"] = par.meter.take()
            par.eval_loss(*batch(step, DP2, par.dp_rank))
    return {"history": history, "sizes": [gather.numel() for gather in gathers(par)]}


def test_weight_differences_follow_the_equation_and_are_sent_once_per_change() -> None:
    ranks = run_ranks(2, difference_body)
    sizes = ranks[0]["sizes"]
    codec = preset("sdp4bit-weight")
    for step in range(3):
        now = [rank["history"][step] for rank in ranks]
        for group, size in enumerate(sizes):
            used = now[0]["used"][group]
            assert torch.equal(used, now[1]["used"][group])
            owned = torch.cat([now[0]["owned"][group], now[1]["owned"][group]])
            assert owned.numel() == used.numel() == 2 * size
            if step == 0:
                assert torch.equal(used, owned)
                continue
            last = ranks[0]["history"][step - 1]["used"][group]
            differences = (owned - last).chunk(2)
            decoded = [coder(codec).decode(coder(codec).encode(d), size, torch.float32) for d in differences]
            assert torch.equal(used, last + torch.cat(decoded))
    first, second, third = ranks[0]["history"]
    expected = sum(wire_bytes("all_gather", "auto", 2 * n, torch.float32, 2, codec) for n in sizes)
    assert second["wire"]["dp_weight"]["wire"] == second["evaluation"]["dp_weight"]["wire"] == expected
    assert "dp_weight" not in first["wire"]
    assert "dp_weight" not in third["wire"]


def own_optimizer_body(rank: int, world_size: int) -> list[dict]:
    """A user's own loop, without and with weight differences: only `step` can know that weights will change."""
    results = []
    for codecs in (policy(), SDP4BIT):
        par = make(GPT, DP2, codecs)
        before = parameters(par)
        optimizer = torch.optim.AdamW([p for _, p in par.named_parameters()], lr=1e-3, foreach=True)
        losses = []
        for step in range(16):
            par.zero_grad()
            losses.append(par.step(*batch(step, DP2, par.dp_rank), 1))
            optimizer.step()
        after = parameters(par)
        # a vector's gradients can share a group with ones so large that four bits make them zero
        moved = [(after[name] - x).abs().max().item() for name, x in before.items() if x.dim() > 1]
        results.append({"losses": losses, "moved": moved})
    return results


def test_a_plain_optimizer_trains_through_weight_differences() -> None:
    for plain, coded in run_ranks(2, own_optimizer_body):
        assert plain["losses"][-1] < plain["losses"][0] - 0.1
        assert coded["losses"] == pytest.approx(plain["losses"], rel=2e-3)  # unsent weights would keep the first loss
        assert coded["losses"] != plain["losses"]
        assert min(coded["moved"]) > 5e-3


def codec_body(rank: int, world_size: int, names: list[str]) -> list[dict]:
    results = []
    for name in names:
        par = make(QWEN, DP2, policy(dp=name))
        par.step(*batch(0, DP2, par.dp_rank), 1)
        results.append({"gradients": gradients(par), "wire": par.meter.totals()})
    return results


@pytest.mark.parametrize(("name", "error"), [("int8", 0.01), ("sdp4bit-gradient", 0.2)])
def test_compressed_gradients_are_near_and_fewer_bytes(name: str, error: float) -> None:
    """error: the codec's relative error (43.8 and 18 dB) with room, over all parameters: groups cross their borders."""
    plain, coded = run_ranks(2, codec_body, ["none", name])[0]
    grad, got = (torch.cat([g.flatten() for g in result["gradients"].values()]) for result in (plain, coded))
    assert 0 < (got - grad).norm() < error * grad.norm()
    assert coded["wire"]["dp_gradient"]["wire"] < 0.3 * plain["wire"]["dp_gradient"]["wire"]
    assert coded["wire"]["dp_gradient"]["raw"] == plain["wire"]["dp_gradient"]["wire"]


def resume_body(rank: int, world_size: int, folder: str, parallel: Parallel) -> dict:
    par, optimizer = fresh(parallel)
    losses = steps(par, optimizer, range(3))
    par.eval_loss(*batch(9, parallel, par.dp_rank), parallel.microbatches)
    state = par.state_dict()
    dcp.save(state | optimizer_state(par, optimizer), checkpoint_id=folder)
    losses = steps(par, optimizer, range(3, 6))
    again, other = fresh(parallel)
    steps(again, other, range(1))  # makes optimizer state, and a state of differences to overwrite
    state = again.state_dict()
    moments = optimizer_state(again, other)
    both = state | moments
    dcp.load(both, checkpoint_id=folder)
    again.load_state_dict(both)
    for group in other.state.values():
        group["step"].fill_(3)
    return {"losses": losses, "resumed": steps(again, other, range(3, 6)), "weights": parameters(par)}


def fresh(parallel: Parallel):
    par = make(QWEN, parallel, policy(dp="sdp4bit", tp="int8", pp="int8"))
    optimizer = torch.optim.AdamW([p for _, p in par.named_parameters()], lr=1e-3, foreach=True)
    return par, optimizer


def optimizer_state(par, optimizer) -> dict:
    names = {id(p): name for name, p in par.named_parameters()}
    return {
        f"{names[id(p)]}.{key}": state[key] for p, state in optimizer.state.items() for key in ("exp_avg", "exp_avg_sq")
    }


def steps(par, optimizer, which: range) -> list[float]:
    losses = []
    for step in which:
        par.zero_grad()
        losses.append(par.step(*batch(step, par.parallel, par.dp_rank), par.parallel.microbatches))
        par.clip_(1.0)
        optimizer.step()
    return losses


@pytest.mark.parametrize("parallel", [DP2, Parallel(dp=2, tp=2), Parallel(pp=2, dp=2, microbatches=2)])
def test_resume_with_differences_is_bit_equal(tmp_path: Path, parallel: Parallel) -> None:
    for result in run_ranks(parallel.world_size, resume_body, str(tmp_path / "checkpoint"), parallel):
        assert result["resumed"] == result["losses"]


def misused_body(rank: int, world_size: int) -> str:
    """Evaluation between backward and the optimizer's step would leave the step unsent."""
    par, optimizer = fresh(DP2)
    par.step(*batch(0, DP2, par.dp_rank), 1)
    par.eval_loss(*batch(0, DP2, par.dp_rank))
    optimizer.step()
    with pytest.raises(RuntimeError, match="evaluation after the optimizer's step") as error:
        par.step(*batch(1, DP2, par.dp_rank), 1)
    return str(error.value)


def test_unsent_change_is_an_error() -> None:
    assert all("changed after they were sent" in text for text in run_ranks(2, misused_body))


def nan_body(rank: int, world_size: int) -> list[float]:
    par, optimizer = fresh(DP2)
    par.step(*batch(0, DP2, par.dp_rank), 1)
    optimizer.step()
    with torch.no_grad():
        next(par.named_parameters())[1]._local_tensor.fill_(math.nan)
    return [par.eval_loss(*batch(9, DP2, par.dp_rank)), par.step(*batch(1, DP2, par.dp_rank), 1)]


def test_weights_of_a_diverged_run_have_not_changed_for_being_nan() -> None:
    assert all(math.isnan(loss) for losses in run_ranks(2, nan_body) for loss in losses)


def forgotten_body(rank: int, world_size: int) -> list[bool]:
    """Without its difference state a resumed run starts with an exact gather."""
    par, optimizer = fresh(DP2)
    steps(par, optimizer, range(2))
    par.load_state_dict({name: p.data for name, p in par.named_parameters()})
    par.step(*batch(2, DP2, par.dp_rank), 1)
    owned = [torch.cat([p._local_tensor.flatten() for p in gather.parameters]) for gather in gathers(par)]
    return [torch.equal(g.last.chunk(2)[rank], own) for g, own in zip(gathers(par), owned, strict=True)]


def test_without_difference_state_the_first_gather_is_exact() -> None:
    assert all(all(same) for same in run_ranks(2, forgotten_body))


def hierarchical_body(rank: int, world_size: int) -> dict:
    par = make(GPT, Parallel(dp=4, node_size=2), SDP4BIT)
    result = train(par, 4)
    return {"paths": dict(par.communicators["dp_gradient"].paths), "losses": result["losses"]}


def test_gradients_are_hierarchical_across_nodes() -> None:
    reference = train(make(GPT), 4)["losses"]
    for result in run_ranks(4, hierarchical_body):
        assert set(result["paths"]) == {"hierarchical"}
        assert result["losses"] == pytest.approx(reference, rel=5e-3)


def missing_body(rank: int, world_size: int) -> str:
    par = make(GPT, DP2, SDP4BIT)
    state = par.state_dict()
    state.pop("transformer.ln_f.weight")
    with pytest.raises(ValueError, match=r"without transformer\.ln_f\.weight") as error:
        par.load_state_dict(state)
    return str(error.value)


def test_missing_parameter_is_named() -> None:
    assert all("need every parameter" in text for text in run_ranks(2, missing_body))

"""Tensor-parallel styles: bytes, replicated state, strangers' models and plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, QWEN, batch, make, policy, train, whole
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as torch_parallel
from torch.distributed.tensor.parallel import parallelize_module
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from taco.comm import wire_bytes
from taco.config import ConfigError, Parallel, Policy
from taco.models import build
from taco.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    TensorComm,
    parallelize,
)
from taco.recipes import preset

TP4 = Parallel(tp=4)
TOLERANCE = 1e-5


def bytes_body(rank: int, world_size: int) -> list[dict]:
    totals = []
    for sequence_parallel in (False, True):
        par = make(QWEN, Parallel(tp=4, sequence_parallel=sequence_parallel), policy(tp="int8"))
        par.step(*batch(0), 1)
        totals.append(par.meter.totals())
    return totals


def test_bytes_of_a_step_equal_the_formula() -> None:
    tokens, _ = batch(0)
    numel, ends = tokens.numel() * QWEN.hidden, 1
    each = {
        collective: wire_bytes(collective, "auto", numel, torch.float32, 4, preset("int8"))
        for collective in ("all_reduce", "all_gather", "reduce_scatter")
    }
    reduces = 2 * QWEN.layers + ends  # with the embedding's forward and the head's backward
    statistics = wire_bytes("all_gather", "auto", 4 * 2 * tokens.numel(), torch.float32, 4, preset("none"))
    for plain, sequence in run_ranks(4, bytes_body):
        for role in ("tp_forward", "tp_backward"):
            assert plain[role]["messages"] == reduces
            assert plain[role]["wire"] == reduces * each["all_reduce"]
            # each reduction becomes a pair, one half of it in the other direction
            assert sequence[role]["messages"] == 2 * reduces
            assert sequence[role]["wire"] == reduces * (each["all_gather"] + each["reduce_scatter"])
        assert plain["exact"] == {"wire": statistics, "raw": statistics, "messages": 1}
        assert sequence["exact"]["messages"] == 1 + 2 * QWEN.layers + 1  # and one for each norm


def replicas_body(rank: int, world_size: int) -> dict:
    par = make(QWEN, Parallel(tp=4, sequence_parallel=True), policy(tp="int4"))
    losses = train(par, 50)["losses"]
    copies = {name: p.to_local().detach() for name, p in par.named_parameters() if p.placements == (Replicate(),)}
    return {"copies": copies, "losses": losses, "norm": par.clip_(1.0)}


def test_replicated_parameters_stay_bit_identical_for_50_compressed_steps() -> None:
    first, *others = run_ranks(4, replicas_body, timeout=120.0)
    assert len(first["copies"]) == 2 * QWEN.layers + 1
    assert first["losses"][-1] < first["losses"][0]
    for other in others:
        assert other["losses"] == first["losses"]
        assert other["norm"] == first["norm"]
        for name, value in first["copies"].items():
            assert torch.equal(other["copies"][name], value), name


def placements_body(rank: int, world_size: int) -> dict:
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize(build(GPT, 3), mesh, Policy())
    assert model.lm_head._parameters["weight"] is model.transformer.wte._parameters["weight"]
    assert isinstance(model.transformer.h["0"].attn.q_proj.weight, DTensor)
    assert isinstance(model.transformer.h["0"].attn.q_proj, nn.Linear)
    return {"placements": {n: p.placements for n, p in model.named_parameters()}, "text": repr(model)}


def test_parameters_are_dtensors_and_the_print_shows_the_recipe() -> None:
    for result in run_ranks(2, placements_body):
        placements = result["placements"]
        block = "transformer.h.0."
        assert placements["transformer.wte.weight"] == (Shard(0),)
        assert placements[block + "attn.q_proj.weight"] == (Shard(0),)
        assert placements[block + "attn.q_proj.bias"] == (Shard(0),)
        assert placements[block + "attn.c_proj.weight"] == (Shard(1),)
        assert placements[block + "attn.c_proj.bias"] == (Replicate(),)
        assert placements[block + "ln_1.weight"] == (Replicate(),)
        for text in ("ColwiseLinear", "RowwiseLinear", "VocabShardedEmbedding", "ReplicatedLayerNorm"):
            assert text in result["text"]


def tiny_qwen2(pad: int | None = None) -> Qwen2ForCausalLM:
    torch.manual_seed(5)
    config = Qwen2Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=256, max_position_embeddings=64, attn_implementation="sdpa", tie_word_embeddings=True,
        pad_token_id=pad,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def stranger_body(rank: int, world_size: int, pad: int | None) -> dict:
    """A Hugging Face model under its own loss, from other random weights on every rank but the first."""
    model = tiny_qwen2(pad)
    if rank > 0:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    model = parallelize(model, init_device_mesh("cpu", (2,)), Policy(), loss_parallel=False)
    tokens, _ = batch(0)
    out = model(input_ids=tokens, labels=tokens)
    out.loss.backward()
    return {
        "loss": out.loss.item(),
        "logits": out.logits.detach(),
        "gradients": {name: whole(p.grad) for name, p in model.named_parameters()},
    }


@pytest.mark.parametrize("pad", [None, 53, 177])
def test_hugging_face_qwen2_matches_its_own_forward_and_backward(pad: int | None) -> None:
    """pad: an id of the text in the first and in the second rank's rows, whose embedding learns nothing."""
    model = tiny_qwen2(pad)
    tokens, _ = batch(0)
    assert pad is None or (tokens == pad).any()
    out = model(input_ids=tokens, labels=tokens)
    out.loss.backward()
    for result in run_ranks(2, stranger_body, pad):
        assert result["loss"] == pytest.approx(out.loss.item(), rel=TOLERANCE)
        torch.testing.assert_close(result["logits"], out.logits, rtol=0, atol=TOLERANCE)
        for name, parameter in model.named_parameters():
            error = (result["gradients"][name] - parameter.grad).abs().max() / parameter.grad.abs().max()
            assert error < TOLERANCE, name


class Gated(nn.Module):
    """Not a decoder: two projections of one input, and one back."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.left, self.right, self.out = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.left(x)) * self.right(x))


def plan_body(rank: int, world_size: int, prepared: bool) -> dict:
    mesh = init_device_mesh("cpu", (2,))
    comm = TensorComm.build(mesh, policy(tp="none"))
    plan = {"left": ColwiseParallel(comm=comm), "right": ColwiseParallel(comm=comm), "out": RowwiseParallel(comm=comm)}
    if prepared:
        plan = {"": PrepareModuleInput(comm=comm), **plan}
    model = Gated()
    for style in [plan.pop("")] if prepared else []:
        style._apply(model, mesh)
    parallelize_module(model, mesh, plan)
    x = torch.linspace(-1, 1, 96).view(3, 32).requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return {
        "y": y.detach(),
        "x": x.grad,
        "weights": {n: whole(p.grad) for n, p in model.named_parameters()},
        "messages": comm.communicators["tp_backward"].meter.totals()["tp_backward"]["messages"],
    }


@pytest.mark.parametrize("prepared", [False, True])
def test_styles_work_under_torchs_parallelize_module(prepared: bool) -> None:
    model = Gated()
    x = torch.linspace(-1, 1, 96).view(3, 32).requires_grad_()
    y = model(x)
    y.square().sum().backward()
    for result in run_ranks(2, plan_body, prepared):
        torch.testing.assert_close(result["y"], y.detach(), rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(result["x"], x.grad, rtol=TOLERANCE, atol=TOLERANCE)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(result["weights"][name], parameter.grad, rtol=TOLERANCE, atol=TOLERANCE)
        assert result["messages"] == (1 if prepared else 2)


def errors_body(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    with pytest.raises(ConfigError, match=r"plan key 'h\.\*\.nothing'"):
        parallelize(build(GPT), mesh, Policy(), plan={"h.*.nothing": ColwiseParallel()})
    with pytest.raises(ConfigError, match="Gated with modules left, right, out; need plan="):
        parallelize(Gated(), mesh, Policy())
    with pytest.raises(ConfigError, match="without communicators"):
        parallelize_module(Gated(), mesh, {"left": ColwiseParallel()})
    with pytest.raises(ConfigError, match=r"weight of Linear with dim 0 of 5 on 2 ranks"):
        parallelize(nn.Sequential(nn.Linear(4, 5)), mesh, Policy(), plan={"0": ColwiseParallel()})
    with pytest.raises(ConfigError, match=r"ColwiseParallel on LayerNorm; need nn\.Linear"):
        parallelize(nn.Sequential(nn.LayerNorm(4)), mesh, Policy(), plan={"0": ColwiseParallel()})
    with pytest.raises(ConfigError, match="fused projection c_attn"):
        parallelize(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=32, n_head=4, vocab_size=64)), mesh, Policy())
    with pytest.raises(ConfigError, match="sequence_parallel on a Hugging Face model"):
        parallelize(tiny_qwen2(), mesh, Policy(), sequence_parallel=True)
    with pytest.raises(ConfigError, match=r"policy 'int8'; need a Policy"):
        parallelize(build(GPT), mesh, "int8")
    with pytest.raises(ConfigError, match=r"a mesh of 2 dimensions .*need one of them"):
        parallelize(build(GPT), init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp")), Policy())
    with pytest.raises(ConfigError, match="GPT that is already parallel"):
        parallelize(parallelize(build(GPT), mesh, Policy()), mesh, Policy())
    with pytest.raises(ConfigError, match=r"torch\.distributed\.ColwiseParallel for 'left'; need a style of taco"):
        parallelize(Gated(), mesh, Policy(), plan={"left": torch_parallel.ColwiseParallel()})
    with pytest.raises(ConfigError, match="got 'colwise' for 'left'; need a style of taco"):
        parallelize(Gated(), mesh, Policy(), plan={"left": "colwise"})
    plan = {"0": PrepareModuleInput(), "0.left": ColwiseParallel(), "0.out": RowwiseParallel()}
    with pytest.raises(ConfigError, match=r"with 0\.right \(Linear\); need a style for each in plan="):
        parallelize(nn.Sequential(Gated()), mesh, Policy(), plan=plan)
    for more in ({"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}):
        with pytest.raises(ConfigError, match="an embedding with max_norm"):
            parallelize(nn.Sequential(nn.Embedding(4, 4, **more)), mesh, Policy(), plan={"0": RowwiseParallel()})


def refused_body(rank: int, world_size: int) -> None:
    model, tokens = build(replace(GPT, ffn=127)), batch(0)[0]
    before, classes = model(tokens), [type(module) for module in model.modules()]
    with pytest.raises(ConfigError, match="of 127 on 2 ranks"):
        parallelize(model, init_device_mesh("cpu", (2,)), Policy())
    assert torch.equal(model(tokens), before)
    assert [type(module) for module in model.modules()] == classes
    assert not any(isinstance(p, DTensor) for p in model.parameters())


def test_a_refused_model_is_as_it_was() -> None:
    run_ranks(2, refused_body)


def test_bad_plans_and_models_are_named() -> None:
    run_ranks(2, errors_body)

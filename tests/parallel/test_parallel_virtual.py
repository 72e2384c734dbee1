"""Virtual tensor parallelism is real tensor parallelism, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, QWEN, batch, gradients, make, policy, train
from transformers import Qwen2Config, Qwen2ForCausalLM

from taco.comm import wire_bytes
from taco.config import ConfigError, Parallel
from taco.models import build
from taco.parallel import virtual_cross_entropy, virtual_tp
from taco.recipes import preset

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS, STEPS = 4, 3
CASES = [(GPT, "taco"), (QWEN, "taco"), (GPT, "int8"), (QWEN, "int8")]


def real_body(rank: int, world_size: int) -> list[dict]:
    results = []
    for model, codec in CASES:
        par = make(model, Parallel(tp=world_size, microbatches=2), policy(tp=codec))
        results.append(train(par, STEPS) | {"wire": par.meter.totals()})
    return results


def test_equals_real_ranks_bit_for_bit() -> None:
    real = run_ranks(WAYS, real_body)
    for i, (model, codec) in enumerate(CASES):
        par = make(model, Parallel(virtual_tp=WAYS, microbatches=2), policy(tp=codec))
        virtual = train(par, STEPS)
        for rank in range(WAYS):
            got = real[rank][i]
            where = f"{model.name} {codec} rank {rank}"
            assert got["losses"] == virtual["losses"], where
            assert got["norms"] == virtual["norms"], where
            assert got["gradients"].keys() == virtual["gradients"].keys()
            for name, grad in got["gradients"].items():
                assert torch.equal(grad, virtual["gradients"][name]), f"{where} {name}"
        for role in ("tp_forward", "tp_backward"):
            assert par.meter.totals()[role] == real[0][i]["wire"][role]


GRIDS = [{"dp": 2}, {"pp": 2, "microbatches": 2}]


def combined_body(rank: int, world_size: int, axis: str) -> list[dict]:
    """First step of each grid with two real or virtual TP ranks in every cell."""
    results = []
    for grid in GRIDS:
        par = make(GPT, Parallel(**grid, **{axis: 2}), policy(tp="int8"))
        loss = par.step(*batch(0, par.parallel, par.dp_rank), par.parallel.microbatches)
        results.append({"loss": loss, "gradients": gradients(par)})
    return results


def test_equals_real_ranks_inside_data_and_pipeline_parallelism() -> None:
    real, virtual = run_ranks(4, combined_body, "tp"), run_ranks(2, combined_body, "virtual_tp")
    for i, grid in enumerate(GRIDS):
        for rank, result in enumerate(real):
            expected = virtual[rank // 2][i]
            assert result[i]["loss"] == expected["loss"], grid
            for name, grad in result[i]["gradients"].items():
                assert torch.equal(grad, expected["gradients"][name]), f"{grid} {name}"


def test_codec_changes_numbers() -> None:
    """The equality above would be empty if messages went around the codec."""
    losses = {
        name: make(GPT, Parallel(virtual_tp=2), policy(tp=name)).step(*batch(0), 1) for name in ("none", "taco", "int8")
    }
    assert len(set(losses.values())) == 3
    assert losses["int8"] == pytest.approx(losses["none"], rel=1e-3)


def test_messages_per_step_are_two_a_layer_and_the_ends() -> None:
    par = make(GPT, Parallel(virtual_tp=WAYS), policy(tp="int8"))
    tokens, targets = batch(0)
    par.step(tokens, targets, 1)
    messages = 2 * GPT.layers + 1  # each block twice; the embedding forward, the head backward
    each = wire_bytes("all_reduce", "auto", tokens.numel() * GPT.hidden, torch.float32, WAYS, preset("int8"))
    for role in ("tp_forward", "tp_backward"):
        total = par.meter.totals()[role]
        assert total["messages"] == messages
        assert total["wire"] == messages * each


def test_observer_sees_every_partial_sum_by_name() -> None:
    seen: dict[tuple[str, str], int] = {}

    def observer(role: str, name: str, x: torch.Tensor) -> None:
        seen[role, name] = seen.get((role, name), 0) + 1

    make(GPT, Parallel(virtual_tp=2), policy(tp="int8"), observer=observer).step(*batch(0), 1)
    assert seen["tp_forward", "transformer.h.1.attn.c_proj"] == 2
    assert seen["tp_backward", "transformer.h.1.attn"] == 2
    assert seen["tp_backward", "lm_head"] == 2
    assert len(seen) == 2 * (2 * GPT.layers + 1)


def test_sizes_that_do_not_divide_are_named() -> None:
    with pytest.raises(ConfigError, match="heads=8 on 3 ranks"):
        virtual_tp(build(GPT), 3, policy(tp="int8"))


def test_a_refused_model_is_as_it_was() -> None:
    model = build(replace(GPT, vocab=258))
    before = model(batch(0)[0])
    with pytest.raises(ConfigError, match="of 258 on 4 virtual ranks"):
        virtual_tp(model, 4, policy(tp="int8"))
    assert torch.equal(model(batch(0)[0]), before)
    assert not any(hasattr(p, "virtual_dim") for p in model.parameters())
    virtual_tp(model, 2, policy(tp="int8"))


def test_a_padding_id_learns_nothing() -> None:
    tokens, targets = batch(0)
    model = build(replace(GPT, tied=False))
    model.transformer.wte.padding_idx = tokens[0, 0].item()
    virtual_tp(model, 4, policy())
    virtual_cross_entropy(model(tokens), targets).backward()
    rows = model.transformer.wte.weight.grad.abs().sum(-1)
    assert rows[tokens[0, 0]] == 0
    assert (rows[tokens[tokens != tokens[0, 0]]] > 0).all()


def test_what_cannot_be_virtual_is_named() -> None:
    with pytest.raises(ConfigError, match="policy 'int8'; need a Policy"):
        virtual_tp(build(GPT), 2, "int8")
    routed = build(QWEN)
    routed.blocks["1"].mlp.gate = torch.nn.Linear(QWEN.hidden, 4)
    with pytest.raises(ConfigError, match=r"Qwen with model\.layers\.1\.mlp\.gate \(Linear\)"):
        virtual_tp(routed, 2, policy())
    with pytest.raises(ConfigError, match="GPT that is already parallel"):
        virtual_tp(virtual_tp(build(GPT), 2, policy()), 2, policy())
    small = Qwen2Config(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(ConfigError, match=r"Hugging Face's Qwen2ForCausalLM; need a model of taco\.models"):
        virtual_tp(Qwen2ForCausalLM(small), 2, policy())

"""Hugging Face families whose names are Llama's: their own gradients, or an error before anything is changed."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from distributed import run_ranks
from parallel_cases import whole
from torch.distributed.device_mesh import init_device_mesh

from taco.config import ConfigError, Policy
from taco.parallel import parallelize

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
HEAD = {"head_dim": 16}
# configuration class, its further fields
TRAINED = {"Llama": {}, "Mistral": {}, "Qwen2": {}, "Qwen3": HEAD, "Granite": {}, "Cohere": {}}
REFUSED = {
    "Mixtral": ({"num_local_experts": 4}, r"model\.layers\.0\.mlp\.gate"),
    "Qwen3Moe": (HEAD | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, r"\.mlp\.gate"),
    "Starcoder2": ({}, r"model\.layers\.0\.mlp\.c_fc"),
    "Gemma": (HEAD, "RowwiseParallel on GemmaTextScaledWordEmbedding|RowwiseParallel on Gemma"),
    "Phi": ({}, r"self_attn\.dense"),
    "Phi3": ({}, r"self_attn\.qkv_proj"),
    "Olmo2": ({}, r"self_attn\.q_norm with parameters .*need \(8,\), the size of one head"),
}


def tiny(family: str, more: dict) -> torch.nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **more)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def step(model: torch.nn.Module) -> float:
    tokens = torch.randint(1, 256, (4, 16), generator=torch.Generator().manual_seed(1))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.item()


def trained_body(rank: int, world_size: int, family: str) -> list[str]:
    """Parameters whose gradients differ from those of the whole model."""
    model = tiny(family, TRAINED[family])
    alone = copy.deepcopy(model)
    parallelize(model, init_device_mesh("cpu", (world_size,)), Policy(), loss_parallel=False)
    assert step(model) == pytest.approx(step(alone), rel=1e-5)
    names, pairs = [], zip(model.named_parameters(), alone.parameters(), strict=True)
    for (name, parameter), expected in pairs:
        if (whole(parameter.grad) - expected.grad).norm() > 1e-4 * expected.grad.norm():
            names.append(name)
    return names


@pytest.mark.parametrize("family", TRAINED)
def test_gradients_are_those_of_the_whole_model(family: str) -> None:
    assert run_ranks(2, trained_body, family) == [[], []]


def refused_body(rank: int, world_size: int, family: str) -> None:
    more, words = REFUSED[family]
    model = tiny(family, more)
    before = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(ConfigError, match=words):
        parallelize(model, init_device_mesh("cpu", (world_size,)), Policy(), loss_parallel=False)
    assert {name: type(module) for name, module in model.named_modules()} == before


@pytest.mark.parametrize("family", REFUSED)
def test_what_a_plan_by_names_would_get_wrong_is_refused(family: str) -> None:
    run_ranks(2, refused_body, family)

"""README's examples do what they say, on gloo ranks instead of GPUs."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import torch
from distributed import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from taco.parallel import parallelize
from taco.recipes import policy

README = Path(__file__).resolve().parents[1] / "README.md"
TOKENS = torch.arange(48).view(2, 24) * 11 % 64


def example(part: str) -> str:
    """The one Python block of the README that has `part`, for the CPU."""
    blocks = [b for b in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL) if part in b]
    assert len(blocks) == 1
    return blocks[0].replace('"cuda"', '"cpu"')


def hugging_face(kind: str) -> PreTrainedModel:
    torch.manual_seed(5)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(vocab_size=64, num_key_value_heads=4, **sizes))
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_key_value_heads=2, tie_word_embeddings=True, **sizes))


class Blocks(torch.nn.Module):
    """A residual stack with the names of the README's plan."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.blocks = torch.nn.ModuleList(torch.nn.Module() for _ in range(2))
        for block in self.blocks:
            block.mlp = torch.nn.Sequential()
            block.mlp.up, block.mlp.down = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block.mlp(x)
        return x


def plan_body(rank: int, world_size: int) -> list[torch.Tensor]:
    """Gradients under the README's plan, without compression and on a one-dimensional mesh."""
    mesh = {"tp": init_device_mesh("cpu", (world_size,))}
    names = {"model": Blocks(), "mesh": mesh, "parallelize": parallelize, "policy": lambda tp: policy()}
    exec(example("plan = {"), names)
    names["model"](TOKENS[:, :16].float().repeat(1, 2)).square().sum().backward()
    return [p.grad.full_tensor() for p in names["model"].parameters()]


def test_a_plan_of_ones_own_trains_like_the_whole_model() -> None:
    model = Blocks()
    model(TOKENS[:, :16].float().repeat(1, 2)).square().sum().backward()
    for gradients in run_ranks(2, plan_body):
        for found, parameter in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-4 * parameter.grad.abs().max().item())


def first_body(rank: int, world_size: int) -> tuple[dict, dict]:
    names = {"model": hugging_face("qwen2"), "tokens": TOKENS[rank // 2 :][:1]}
    exec(example("Meter()").replace("(2, 4)", "(2, 2)"), names)
    return names["meter"].totals(), {name: p.grad.full_tensor() for name, p in names["model"].named_parameters()}


def test_the_first_example_averages_gradients_over_the_data_parallel_ranks() -> None:
    model, (first, *others) = hugging_face("qwen2"), run_ranks(4, first_body)
    sum(model(input_ids=row, labels=row).loss / 2 for row in TOKENS[:, None]).backward()
    totals, gradients = first
    assert totals["dp_gradient"]["messages"] == len(gradients)
    assert 0 < totals["tp_forward"]["wire"] < totals["tp_forward"]["raw"] / 3.9
    for name, p in model.named_parameters():
        assert (gradients[name] - p.grad).norm() < 0.1 * p.grad.norm(), name
        assert all(torch.equal(gradients[name], other[name]) for _, other in others)


def save_body(rank: int, world_size: int, kind: str, folder: str) -> None:
    model = parallelize(hugging_face(kind), init_device_mesh("cpu", (2,)), policy(tp="int8"), loss_parallel=False)
    with contextlib.chdir(folder):
        exec(example("save_pretrained"), {"model": model, "torch": torch})


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
@torch.no_grad()
def test_a_parallelized_hugging_face_model_is_saved(kind: str, tmp_path: Path) -> None:
    run_ranks(2, save_body, kind, str(tmp_path))
    saved, model = type(hugging_face(kind)).from_pretrained(tmp_path / "out"), hugging_face(kind).eval()
    assert torch.equal(saved.eval()(TOKENS).logits, model(TOKENS).logits)


def gpt2_body(rank: int, world_size: int, folder: str) -> tuple[float, torch.Tensor]:
    names: dict = {}
    with contextlib.chdir(folder):
        exec(example("load_hf("), names)
    return names["loss"].item(), names["tokens"]


@torch.no_grad()
def test_a_gpt2_is_trained_a_step_and_saved(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = GPT2LMHeadModel(GPT2Config(n_positions=128, n_embd=32, n_layer=2, n_head=4)).eval()
    model.save_pretrained(tmp_path / "gpt2")
    (first, tokens), (second, same) = run_ranks(2, gpt2_body, str(tmp_path))
    assert torch.equal(tokens, same)

    def loss(model: GPT2LMHeadModel) -> float:
        logits = model(tokens[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item()

    saved = GPT2LMHeadModel.from_pretrained(tmp_path / "gpt2-trained").eval()
    assert first == second == pytest.approx(loss(model), rel=1e-3)
    assert saved.config.vocab_size == 50257
    assert loss(saved) < loss(model) - 1e-3

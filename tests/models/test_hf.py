"""Hugging Face checkpoints: the same logits as transformers, both directions."""

import json

import pytest
import torch
from distributed import run_ranks
from safetensors.torch import load_file, save_file
from torch.distributed.device_mesh import init_device_mesh
from transformers import GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

from taco import models
from taco.config import ConfigError
from taco.models import load_hf, save_hf
from taco.models.hf import config_from_hf
from taco.parallel import parallelize
from taco.recipes import MODELS, policy

TOKENS = torch.arange(48).view(2, 24) * 11 % 61


def reference(arch: str, *, tied: bool, seed: int = 0, vocab: int = 61):
    """transformers' model on random weights of a size at which every tensor matters to the logits."""
    torch.manual_seed(seed)
    if arch == "gpt":
        config = GPT2Config(
            vocab_size=vocab, n_positions=32, n_embd=32, n_layer=2, n_head=4, n_inner=96, initializer_range=0.2,
            tie_word_embeddings=tied, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        )  # fmt: skip
        model = GPT2LMHeadModel(config)
    else:
        config = Qwen2Config(
            vocab_size=vocab, hidden_size=32, intermediate_size=80, num_hidden_layers=2, num_attention_heads=8,
            num_key_value_heads=2, max_position_embeddings=32, tie_word_embeddings=tied, initializer_range=0.2,
            rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        )  # fmt: skip
        model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("arch", ["gpt", "qwen"])
@torch.no_grad()
def test_loaded_weights_give_the_same_logits(arch, tied, tmp_path):
    theirs = reference(arch, tied=tied)
    theirs.save_pretrained(tmp_path)
    ours = load_hf(tmp_path)
    assert ours.config.tied == tied
    want = theirs(TOKENS).logits
    assert want.std() > 0.5
    torch.testing.assert_close(ours(TOKENS), want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("arch", ["gpt", "qwen"])
@torch.no_grad()
def test_saved_weights_give_the_same_logits_in_transformers(arch, tied, tmp_path):
    name = "gpt-mini" if arch == "gpt" else "qwen-mini"
    config = type(MODELS[name])(**{**vars(MODELS[name]), "tied": tied, "layers": 2, "vocab": 96})
    ours = models.build(config, 4)
    for parameter in ours.parameters():
        parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    save_hf(ours, tmp_path)
    cls = GPT2LMHeadModel if arch == "gpt" else Qwen2ForCausalLM
    theirs, info = cls.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    torch.testing.assert_close(theirs.eval()(TOKENS).logits, ours(TOKENS), atol=1e-5, rtol=1e-5)
    back = load_hf(tmp_path).state_dict()
    assert all(torch.equal(value, back[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("arch", ["gpt", "qwen"])
@torch.no_grad()
def test_sharded_checkpoint_loads_whole_and_by_stage(arch, tmp_path):
    theirs = reference(arch, tied=True)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    whole = load_hf(tmp_path)(TOKENS)
    torch.testing.assert_close(whole, theirs(TOKENS).logits, atol=1e-5, rtol=1e-5)
    head = load_hf(tmp_path, layers=range(0, 1), last=False)
    tail = load_hf(tmp_path, layers=range(1, 2), first=False)
    assert torch.equal(tail(head(TOKENS)), whole)


def test_weights_saved_over_a_sharded_checkpoint_are_the_ones_that_load(tmp_path):
    """transformers too reads the whole file before the index."""
    reference("qwen", tied=True).save_pretrained(tmp_path, max_shard_size="20KB")
    ours = load_hf(tmp_path)
    with torch.no_grad():
        ours.model.norm.weight += 1
    save_hf(ours, tmp_path)
    assert (tmp_path / "model.safetensors.index.json").exists()
    theirs = Qwen2ForCausalLM.from_pretrained(tmp_path)
    for loaded in (theirs, load_hf(tmp_path)):
        assert torch.equal(loaded.model.norm.weight, ours.model.norm.weight)


@torch.no_grad()
def test_padded_vocabulary_keeps_the_loss_and_is_cut_at_save(tmp_path):
    """Real GPT-2 logits lie far below zero: rows of zeros would win the softmax, mean rows do not."""
    theirs = reference("gpt", tied=False)
    theirs.lm_head.weight += 3.0 * torch.sign(theirs.transformer.ln_f.bias)  # a common offset, as trained heads have
    theirs.transformer.ln_f.bias -= 6.0 * torch.sign(theirs.transformer.ln_f.bias)
    theirs.save_pretrained(tmp_path / "in")
    ours = load_hf(tmp_path / "in", vocab=64)
    logits, want = ours(TOKENS), theirs(TOKENS).logits
    assert want.mean() < -20
    torch.testing.assert_close(logits[..., :61], want, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(logits[..., 61:], want.mean(-1, keepdim=True).expand(-1, -1, 3), atol=1e-4, rtol=1e-5)
    save_hf(ours, tmp_path / "out", vocab=61)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 61
    assert torch.equal(load_hf(tmp_path / "out").lm_head.weight, theirs.lm_head.weight)
    with pytest.raises(ConfigError, match="at least 61"):
        load_hf(tmp_path / "in", vocab=60)


@torch.no_grad()
def test_checkpoint_without_prefix_and_with_masks_loads(tmp_path):
    """The first GPT-2 checkpoints name tensors without 'transformer.' and store the causal mask."""
    theirs = reference("gpt", tied=True)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    torch.testing.assert_close(load_hf(tmp_path)(TOKENS), theirs(TOKENS).logits, atol=1e-5, rtol=1e-5)


def test_dtype_of_save_and_load(tmp_path):
    ours = load_saved(tmp_path, dtype=torch.bfloat16)
    assert {p.dtype for p in load_hf(tmp_path, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    again = load_hf(tmp_path)
    for mine, theirs in zip(ours.parameters(), again.parameters(), strict=True):
        assert torch.equal(mine.to(torch.bfloat16).float(), theirs)


def load_saved(path, **options):
    config = type(MODELS["qwen-mini"])(**{**vars(MODELS["qwen-mini"]), "layers": 1, "vocab": 16})
    model = models.build(config, 1)
    save_hf(model, path, **options)
    return model


def edit(path, **changes):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type='llama'; need one of gpt2, qwen2"),
        ({"use_sliding_window": True}, "use_sliding_window=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type='yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn"}}, "type='yarn'"),
        ({"intermediate_size": 96}, "shape"),
        ({"num_hidden_layers": 2}, "no tensor model.layers.1"),
    ],
)
def test_unsupported_or_inconsistent_config_is_refused(changes, message, tmp_path):
    load_saved(tmp_path)
    edit(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        load_hf(tmp_path)


def test_missing_and_truncated_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config\.json"):
        config_from_hf(tmp_path)
    load_saved(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ConfigError, match="need a whole safetensors file"):
        load_hf(tmp_path)
    weights.unlink()
    with pytest.raises(ConfigError, match="no file"):
        load_hf(tmp_path)


def test_a_stage_or_a_larger_vocabulary_cannot_be_saved(tmp_path):
    with pytest.raises(ConfigError, match="a checkpoint holds the whole model"):
        save_hf(models.build(MODELS["gpt-mini"], layers=range(0, 2)), tmp_path)
    with pytest.raises(ConfigError, match="at most 1024"):
        save_hf(models.build(MODELS["gpt-mini"]), tmp_path, vocab=2000)
    assert not list(tmp_path.iterdir())


def refused_body(rank: int, world_size: int, folder: str) -> str:
    theirs = reference("qwen", tied=True, vocab=64)
    model = parallelize(theirs, init_device_mesh("cpu", (2,)), policy(), loss_parallel=False)
    with pytest.raises(ConfigError) as error:
        save_hf(model, folder)
    return str(error.value)


def test_models_of_hugging_face_are_told_how_to_be_saved(tmp_path):
    with pytest.raises(
        ConfigError, match=r"Qwen2ForCausalLM.*need for Hugging Face's `model\.save_pretrained\(path\)`"
    ):
        save_hf(reference("qwen", tied=True), tmp_path)
    for text in run_ranks(2, refused_body, str(tmp_path)):
        assert "full_tensor() for k, v in model.state_dict().items()}` on every rank" in text
        assert "`model.save_pretrained(path, state_dict=full)` on rank 0" in text
    assert not list(tmp_path.iterdir())


def sharded_body(rank: int, world_size: int, folder: str) -> None:
    model = models.build(MODELS["gpt-mini"], 3)
    save_hf(parallelize(model, init_device_mesh("cpu", (2,)), policy()), f"{folder}/{rank}", vocab=1000)


def test_a_sharded_model_is_written_once_and_whole(tmp_path):
    run_ranks(2, sharded_body, str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0", "config.json", "model.safetensors"]
    saved, whole = load_hf(tmp_path / "0", vocab=1024).state_dict(), models.build(MODELS["gpt-mini"], 3).state_dict()
    assert all(torch.equal(value[:1000], saved[name][:1000]) for name, value in whole.items())

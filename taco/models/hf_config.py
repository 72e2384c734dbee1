"""The Model of a Hugging Face config.json, and the config.json of a Model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from taco.config import Model, require


def config_from_hf(path: str | Path) -> Model:
    """The Model of a folder's config.json. Raises ConfigError for an architecture or option that is not supported."""
    file = Path(path) / "config.json"
    require(file.is_file(), f"no file {file}", "a Hugging Face checkpoint folder", "the shape is read from it")
    data = json.loads(file.read_text(encoding="utf-8"))
    kind = data.get("model_type")
    require(kind in _READERS, f"model_type={kind!r}", f"one of {', '.join(_READERS)}", "these are implemented")
    return _READERS[kind](data, Path(path).resolve().name)


def _same(data: dict, why: str, **wanted: tuple) -> None:
    for key, allowed in wanted.items():
        value = data.get(key, allowed[0])
        require(value in allowed, f"{key}={value!r}", f"{key} in {allowed}", why)


def _gpt_config(data: dict, name: str) -> Model:
    _same(
        data,
        "the model computes plain GPT-2",
        activation_function=("gelu_new", "gelu_pytorch_tanh"),
        scale_attn_weights=(True,),
        scale_attn_by_inverse_layer_idx=(False,),
        add_cross_attention=(False,),
    )
    hidden, heads = data["n_embd"], data["n_head"]
    return Model(
        name=name,
        arch="gpt",
        layers=data["n_layer"],
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn=data.get("n_inner") or 4 * hidden,
        vocab=data["vocab_size"],
        max_seq=data["n_positions"],
        tied=data.get("tie_word_embeddings", True),
        norm_eps=data.get("layer_norm_epsilon", 1e-5),
    )


def _qwen_config(data: dict, name: str) -> Model:
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    heads, hidden = data["num_attention_heads"], data["hidden_size"]
    _same(data, "the model computes plain Qwen2", hidden_act=("silu",), use_sliding_window=(False,))
    _same(data, "heads split the hidden size", head_dim=(hidden // heads, None))
    _same(rope, "scaled rotary positions are not implemented", rope_type=("default",), type=("default",))
    return Model(
        name=name,
        arch="qwen",
        layers=data["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=data.get("num_key_value_heads") or heads,
        ffn=data["intermediate_size"],
        vocab=data["vocab_size"],
        max_seq=data["max_position_embeddings"],
        tied=data.get("tie_word_embeddings", False),
        rope_theta=float(rope.get("rope_theta", data.get("rope_theta", 1e4))),
        norm_eps=data.get("rms_norm_eps", 1e-6),
    )


_READERS: dict[str, Callable[[dict, str], Model]] = {"gpt2": _gpt_config, "qwen2": _qwen_config}


def config_to_hf(config: Model, vocab: int, dtype: str) -> dict:
    """The config.json that transformers reads, with `vocab` rows and weights of `dtype` (torch's name for it)."""
    shared = {
        "vocab_size": vocab,
        "tie_word_embeddings": config.tied,
        "dtype": dtype,
        "torch_dtype": dtype,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if config.arch == "gpt":
        return shared | {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "activation_function": "gelu_new",
            "n_layer": config.layers,
            "n_embd": config.hidden,
            "n_head": config.heads,
            "n_inner": config.ffn,
            "n_positions": config.max_seq,
            "layer_norm_epsilon": config.norm_eps,
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        }
    return shared | {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "use_sliding_window": False,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.ffn,
        "max_position_embeddings": config.max_seq,
        "rope_theta": config.rope_theta,  # read by transformers 4; the next line by 5
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": config.norm_eps,
    }

"""Named configurations: PRESETS (codecs), MODELS, RUNS and EXPERIMENTS. Free of torch.

A recipe is the only place where a number of an experiment is chosen.
"""

from __future__ import annotations

from taco.config import (
    NONE,
    AsymmetricCodec,
    CastCodec,
    Codec,
    ConfigError,
    GroupCodec,
    Model,
    Policy,
    TahQuantCodec,
    TensorCodec,
)


def _by_name(*items) -> dict:
    return {item.name: item for item in items}


# --- codecs: where each constant comes from is in taco/codec/README.md -----------------------------

_SDP4BIT = {"payload": "int4", "scale": "fp32"}

PRESETS: dict[str, Codec] = _by_name(
    NONE,
    # the paper: FP8, group 128, plain Hadamard, alpha before and s after it (arXiv 2604.24088)
    GroupCodec(name="taco", payload="e4m3", rotation="hadamard", scale="fp32", adaptive_scale=True),
    GroupCodec(name="taco-e5m2", payload="e5m2", rotation="hadamard", scale="fp32", adaptive_scale=True),
    # ours
    GroupCodec(name="int8", payload="int8"),
    GroupCodec(name="int6", payload="int6"),
    GroupCodec(name="int4", payload="int4", group=32),
    GroupCodec(name="fp8", payload="e4m3", rotation="none", scale="e8m0"),
    # baselines
    CastCodec(name="fp8-cast"),
    TensorCodec(name="fp8-tensor"),
    TensorCodec(name="int8-tensor", payload="int8"),
    GroupCodec(name="mxfp8", payload="e4m3", group=32, rotation="none", scale="e8m0"),
    GroupCodec(name="sdp4bit-gradient", rotation="hadamard", rotation_size=32, intra_payload="int8", **_SDP4BIT),
    GroupCodec(name="sdp4bit-weight", group=2048, rotation="none", difference=True, **_SDP4BIT),
    TahQuantCodec(name="tahquant"),
    AsymmetricCodec(name="tahquant-backward", bits=6, group=32, metadata="fp16"),
    AsymmetricCodec(name="flash-int8", bits=8, group=128),
    AsymmetricCodec(name="flash-int4", bits=4, group=32),
)


def preset(name: str) -> Codec:
    """The codec called `name`. Raises `ConfigError` for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(
            f"got codec {name!r}; need one of {', '.join(PRESETS)}; because presets are looked up by name"
        )
    return PRESETS[name]


def policy(*, tp: str = "none", dp: str = "none", pp: str = "none", min_bytes: int = 0, **roles: str) -> Policy:
    """A Policy from preset names.

    tp, pp: both directions. dp: a preset for gradients, or 'sdp4bit' for its weight and gradient codecs.
    roles: a preset for one role, e.g. tp_backward='int4'.
    """
    chosen = {"tp_forward": tp, "tp_backward": tp, "pp_forward": pp, "pp_backward": pp, "dp_gradient": dp}
    if pp == "tahquant":
        chosen["pp_backward"] = "tahquant-backward"
    if dp == "sdp4bit":
        chosen |= {"dp_gradient": "sdp4bit-gradient", "dp_weight": "sdp4bit-weight"}
    chosen |= roles
    return Policy(min_bytes=min_bytes, **{role: preset(name) for role, name in chosen.items()})


# --- models --------------------------------------------------------------------------------------


def _gpt(name: str, layers: int, hidden: int, heads: int, *, vocab: int = 50304, max_seq: int = 2048) -> Model:
    return Model(
        name=name, arch="gpt", layers=layers, hidden=hidden, heads=heads, kv_heads=heads,
        ffn=4 * hidden, vocab=vocab, max_seq=max_seq,
    )  # fmt: skip


def _qwen(name: str, layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, **more) -> Model:
    shape = {"vocab": 151936, "max_seq": 32768, "tied": True, "norm_eps": 1e-6} | more
    return Model(name=name, arch="qwen", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn, **shape)


MODELS: dict[str, Model] = _by_name(
    _gpt("gpt-mini", 4, 128, 8, vocab=1024, max_seq=256),
    _gpt("gpt-125m", 12, 768, 12),
    _gpt("gpt-350m", 24, 1024, 16),
    _gpt("gpt-1.3b", 24, 2048, 16),
    _gpt("gpt-2.7b", 32, 2560, 32),
    _gpt("gpt-6.7b", 32, 4096, 32),
    _gpt("gpt-13b", 40, 5120, 40),
    _qwen("qwen-mini", 4, 128, 16, 8, 352, vocab=1024, max_seq=256),
    _qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4864),
    _qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8960),
    _qwen("qwen2.5-3b", 36, 2048, 16, 2, 11008),
    _qwen("qwen2.5-7b", 28, 3584, 28, 4, 18944, vocab=152064, tied=False),
)

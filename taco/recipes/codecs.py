"""Named codecs, and policies made from them."""

from __future__ import annotations

from taco.config import (
    NONE,
    ROLES,
    AsymmetricCodec,
    CastCodec,
    Codec,
    ConfigError,
    GroupCodec,
    Policy,
    TahQuantCodec,
    TensorCodec,
    require,
)
from taco.recipes.names import by_name

# --- codecs: where each constant comes from is in taco/codec/README.md -----------------------------

_SDP4BIT = {"payload": "int4", "scale": "fp32"}

PRESETS: dict[str, Codec] = by_name(
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
    AsymmetricCodec(name="flash-int4", bits=4, group=64),
)


def preset(name: str) -> Codec:
    """The codec called `name`. Raises `ConfigError` for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(
            f"got codec {name!r}; need one of {', '.join(PRESETS)}; because presets are looked up by name"
        )
    return PRESETS[name]


def policy(
    *, tp: str | Codec = "none", dp: str | Codec = "none", pp: str | Codec = "none", min_bytes: int = 0, **roles
) -> Policy:
    """A Policy from names of presets, or codecs of your own.

    tp, pp: both directions. dp: for gradients, or 'sdp4bit' for its weight and gradient codecs.
    roles: for one role, e.g. tp_backward='int4'. Raises `ConfigError` for an unknown name or role.
    """
    unknown = sorted(set(roles) - set(ROLES))
    require(not unknown, f"role {', '.join(unknown)}", f"one of {', '.join(ROLES)}", "a message has one of these roles")
    chosen = {"tp_forward": tp, "tp_backward": tp, "pp_forward": pp, "pp_backward": pp, "dp_gradient": dp}
    if pp == "tahquant":
        chosen["pp_backward"] = "tahquant-backward"
    if dp == "sdp4bit":
        chosen |= {"dp_gradient": "sdp4bit-gradient", "dp_weight": "sdp4bit-weight"}
    chosen |= roles
    return Policy(min_bytes=min_bytes, **{role: c if isinstance(c, Codec) else preset(c) for role, c in chosen.items()})

"""What is compared on tensor-parallel traffic: ARMS (name -> Policy), and CONTROLS that compress nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from taco.config import ENDS, TENSOR_ROLES, GroupCodec, Parallel, Policy
from taco.recipes.codecs import PRESETS, policy, preset
from taco.recipes.layers import with_layers
from taco.recipes.names import by_name
from taco.recipes.recommended import GUARDED, guarded

# Every preset that is compared in both directions.
TP_CODECS = (
    "taco",
    "taco-e5m2",
    "int8",
    "int6",
    "int4",
    "fp8",
    "fp8-cast",
    "fp8-tensor",
    "mxfp8",
    "sdp4bit-gradient",
    "tahquant",
    "flash-int8",
    "flash-int4",
)


def _variant(base: str, name: str, **changes) -> GroupCodec:
    return replace(PRESETS[base], name=name, **changes)


# A preset with one field changed.
VARIANTS: dict[str, GroupCodec] = by_name(
    _variant("taco", "taco-unrotated", rotation="none"),
    _variant("taco", "taco-signed", rotation="signed"),
    _variant("taco", "taco-one-scale", adaptive_scale=False),
    _variant("taco", "taco-g256", group=256),
    _variant("taco", "taco-stochastic", rounding="stochastic"),
    _variant("int8", "int8-unrotated", rotation="none"),
    _variant("int8", "int8-stochastic", rounding="stochastic"),
    _variant("int6", "int6-unrotated", rotation="none"),
    _variant("int6", "int6-stochastic", rounding="stochastic"),
    _variant("int4", "int4-unrotated", rotation="none"),
    _variant("int4", "int4-clip", clip=0.95),
    _variant("int4", "int4-stochastic", rounding="stochastic"),
)

# Forward codec, backward codec. Which direction needs more bits decides what may be sent with fewer.
SPLITS: dict[str, tuple[str, str]] = {
    "int8-int6": ("int8", "int6"),
    "int8-int4": ("int8", "int4"),
    "int6-int4": ("int6", "int4"),
    "int4-int8": ("int4", "int8"),
}


def _both(*names: str) -> dict[str, Policy]:
    return {name: policy(tp=VARIANTS.get(name, name)) for name in names}


# Around the paper's codec and around ours one change at a time; then one direction at a time.
ABLATION_POLICIES: dict[str, Policy] = _both(
    "taco-unrotated", "taco-signed", "taco-one-scale", "taco-g256", "taco-stochastic", "int8-unrotated",
    "int4-unrotated",
) | {
    "int4-forward": policy(tp_forward="int4"),
    "int4-backward": policy(tp_backward="int4"),
    "taco-forward": policy(tp_forward="taco"),
    "taco-backward": policy(tp_backward="taco"),
}  # fmt: skip

LOOK_STEPS = 200
"""Steps of the runs that the arms' warm-ups are written for."""


def in_steps(chosen: Policy, steps: int) -> Policy:
    """`chosen` in a run of `steps` steps: a warm-up, if it has one, takes the same share of them, one step at least."""
    warm = chosen.warmup_steps * steps // LOOK_STEPS
    return replace(chosen, warmup_steps=max(1, warm)) if chosen.warmup_steps else chosen


def _at_first(codec: str, steps: int, then: Policy) -> Policy:
    """`codec` for so many of a look's steps, which may be most of them, `then` after it."""
    return replace(then, warmup_steps=steps, warmup=preset(codec))


# Few bits but for some blocks (of a model of 12), or for some of the steps (`in_steps`).
EXCEPTIONS: dict[str, Policy] = {
    "int4-ends": with_layers(policy(tp="int4"), dict.fromkeys(TENSOR_ROLES, (ENDS,)), "int8"),
    "int6-ends": with_layers(policy(tp="int6"), dict.fromkeys(TENSOR_ROLES, (ENDS,)), "int8"),
    "int6-first": with_layers(policy(tp="int6"), dict.fromkeys(TENSOR_ROLES, (ENDS, 0)), "int8"),
    "int4-guarded": guarded("int4"),
    "int6-guarded": guarded("int6"),
    "int6-int4-guarded": with_layers(policy(tp_forward="int6", tp_backward="int4"), GUARDED, "int8"),
    "int4-first-last": with_layers(policy(tp="int4"), dict.fromkeys(TENSOR_ROLES, (0, 1, 10, 11)), "int8"),
    "int6-int4-warm": _at_first("int8", 20, policy(tp_forward="int6", tp_backward="int4")),
    "int4-then-int8": _at_first("int4", 120, policy(tp="int8")),
    "int6-then-int8": _at_first("int6", 180, policy(tp="int8")),
}

# Which direction costs what a codec in both costs.
ONE_WAY: dict[str, Policy] = {
    "int6-forward": policy(tp_forward="int6"),
    "int6-backward": policy(tp_backward="int6"),
}

STOCHASTIC = ("taco-stochastic", "int8-stochastic", "int6-stochastic", "int4-stochastic")

# Name -> what tensor-parallel messages are coded with. 'none' is the baseline.
ARMS: dict[str, Policy] = (
    _both(
        "none",
        *TP_CODECS,
        "taco-unrotated",
        "taco-one-scale",
        "taco-g256",
        "int8-tensor",
        "int8-unrotated",
        "int6-unrotated",
        "int4-unrotated",
        "int4-clip",
        *STOCHASTIC,
    )
    | {name: policy(tp_forward=forward, tp_backward=backward) for name, (forward, backward) in SPLITS.items()}
    | {"int8-int4-stochastic": policy(tp_forward="int8", tp_backward=VARIANTS["int4-stochastic"])}
    | EXCEPTIONS
    | ONE_WAY
)


ORDERS = ("reversed", "stepwise")
"""How the sums of a control are rounded otherwise, see `Parallel.virtual_sum`."""


def controls(ways: int, grids: Iterable[int], orders: Iterable[str] = ORDERS) -> dict[str, Parallel]:
    """Grids that compress nothing and differ from `ways` virtual ranks by rounding alone, by the name of their runs.

    At the same seed they start from the same weights and see the same data as the baseline, so that how far their
    losses are apart is chance. grids: other numbers of ranks, 1 for none.
    """
    return {f"vtp{n}-none": Parallel(virtual_tp=n) for n in grids} | {
        f"vtp{ways}-none-{order}": Parallel(virtual_tp=ways, virtual_sum=order) for order in orders
    }

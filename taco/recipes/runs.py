"""Training runs. A name says what differs: model, shape (tp, pp, dp, vtp for virtual_tp), codec, seed."""

from __future__ import annotations

from dataclasses import replace

from taco.config import Data, GroupCodec, Parallel, Policy, Run, Train
from taco.recipes.codecs import PRESETS, policy
from taco.recipes.models import MODELS
from taco.recipes.names import by_name

# Every codec that is compared as a tensor-parallel codec.
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

# --- mini: a size for two CPU cores ---------------------------------------------------------------

MINI_DATA = Data(corpus="data/sotu-mini", seq=64)
MINI_TRAIN = Train(steps=40, batch=4, lr=4e-3, min_lr=4e-4, warmup=4, eval_batches=8)
# Timed runs need only enough steps for a median; the loss is compared within one experiment.
THREED_TRAIN = replace(MINI_TRAIN, steps=12, batch=8)
SCALING_TRAIN = replace(THREED_TRAIN, steps=9, eval_batches=1)


def _accuracy(model: str, ways: int, codec: str, seed: int, data: Data, train: Train, **parallel) -> Run:
    return Run(
        name=f"{model}-vtp{ways}-{codec}-s{seed}",
        model=MODELS[model],
        parallel=Parallel(virtual_tp=ways, **parallel),
        policy=policy(tp=codec),
        data=data,
        train=replace(train, seed=seed),
    )


def _grid(models: dict[str, tuple[int, ...]], data: Data, train: Train, codecs: tuple[str, ...]) -> tuple[Run, ...]:
    """Per model and TP size: the baseline with two seeds (the second is the noise band), then every codec."""
    arms = [("none", 1), ("none", 2), *((c, 1) for c in codecs)]
    return tuple(
        _accuracy(model, ways, codec, seed, data, train)
        for model, all_ways in models.items()
        for ways in all_ways
        for codec, seed in arms
    )


MINI_ACCURACY = _grid({"gpt-mini": (2, 4), "qwen-mini": (2, 4)}, MINI_DATA, MINI_TRAIN, TP_CODECS)


def _variant(base: str, name: str, **changes) -> GroupCodec:
    return replace(PRESETS[base], name=name, **changes)


# One change at a time around the paper's codec and around ours; then one direction at a time.
ABLATION_POLICIES: dict[str, Policy] = {
    c.name: Policy(tp_forward=c, tp_backward=c)
    for c in (
        _variant("taco", "taco-unrotated", rotation="none"),
        _variant("taco", "taco-signed", rotation="signed"),
        _variant("taco", "taco-one-scale", adaptive_scale=False),
        _variant("taco", "taco-g256", group=256),
        _variant("taco", "taco-stochastic", rounding="stochastic"),
        _variant("int8", "int8-unrotated", rotation="none"),
        _variant("int4", "int4-unrotated", rotation="none"),
    )
} | {
    "int4-forward": policy(tp_forward="int4"),
    "int4-backward": policy(tp_backward="int4"),
    "taco-forward": policy(tp_forward="taco"),
    "taco-backward": policy(tp_backward="taco"),
}


def _ablation(model: str, ways: int, data: Data, train: Train) -> tuple[Run, ...]:
    return tuple(
        Run(
            name=f"{model}-vtp{ways}-{name}-s{train.seed}",
            model=MODELS[model],
            parallel=Parallel(virtual_tp=ways),
            policy=chosen,
            data=data,
            train=train,
        )
        for name, chosen in ABLATION_POLICIES.items()
    )


MINI_ABLATION = _ablation("gpt-mini", 2, MINI_DATA, MINI_TRAIN)

# Which roles are compressed: the paper's 3D scheme (TACO on TP, SDP4Bit on DP, TAH-Quant on PP).
THREED_POLICIES = {
    "none": policy(),
    "tp": policy(tp="taco"),
    "dp": policy(dp="sdp4bit"),
    "pp": policy(pp="tahquant"),
    "tp-dp": policy(tp="taco", dp="sdp4bit"),
    "tp-pp": policy(tp="taco", pp="tahquant"),
    "dp-pp": policy(dp="sdp4bit", pp="tahquant"),
    "tp-dp-pp": policy(tp="taco", dp="sdp4bit", pp="tahquant"),
}

MINI_THREED = tuple(
    Run(
        name=f"gpt-mini-tp2pp2dp2-3d-{name}",
        model=MODELS["gpt-mini"],
        parallel=Parallel(tp=2, pp=2, dp=2, microbatches=4),
        policy=chosen,
        data=MINI_DATA,
        train=THREED_TRAIN,
    )
    for name, chosen in THREED_POLICIES.items()
)

SCALING_SHAPES = {
    "tp1": Parallel(),
    "tp2": Parallel(tp=2),
    "pp2": Parallel(pp=2, microbatches=4),
    "dp2": Parallel(dp=2),
    "tp4": Parallel(tp=4),
    "tp2pp2": Parallel(tp=2, pp=2, microbatches=4),
    "tp2dp2": Parallel(tp=2, dp=2),
    "tp8": Parallel(tp=8),
    "tp2pp2dp2": Parallel(tp=2, pp=2, dp=2, microbatches=4),
}

# The codec of every role of a scaling arm.
SCALING_ARMS = {
    "none": policy(),
    "taco": policy(tp="taco", dp="sdp4bit", pp="tahquant"),
    "int8": policy(tp="int8", dp_gradient="int8", pp="int8"),
}


def _scaling(model: str, shapes: tuple[str, ...], data: Data, train: Train) -> tuple[Run, ...]:
    return tuple(
        Run(
            name=f"{model}-{shape}-scaling-{arm}",
            model=MODELS[model],
            parallel=SCALING_SHAPES[shape],
            policy=chosen,
            data=data,
            train=train,
        )
        for shape in shapes
        for arm, chosen in SCALING_ARMS.items()
        if arm == "none" or SCALING_SHAPES[shape].world_size > 1
    )


# the largest shape is the one of MINI_THREED, whose uncompressed and fully compressed runs serve here too
_THREED_SHAPE = "tp2pp2dp2"
MINI_SCALING = _scaling("gpt-mini", tuple(s for s in SCALING_SHAPES if s != _THREED_SHAPE), MINI_DATA, SCALING_TRAIN)
MINI_SCALING_SHARED = tuple(run for run in MINI_THREED if run.name.endswith(("-3d-none", "-3d-tp-dp-pp")))

# The runs whose tensors are captured for codec_fidelity, distribution and ablation.
MINI_CAPTURE = ("gpt-mini-vtp4-none-s1", "qwen-mini-vtp4-none-s1")

# --- full size: GPUs ------------------------------------------------------------------------------

FULL_DATA = Data(corpus="data/english-mix", seq=1024)
FULL_TRAIN = Train(steps=200, batch=16, lr=6e-4, min_lr=6e-5, warmup=20, dtype="bfloat16", eval_batches=16)
FULL_ACCURACY = _grid({"gpt-125m": (2, 4), "qwen-0.5b-tp8": (2, 4)}, FULL_DATA, FULL_TRAIN, TP_CODECS)
FULL_ABLATION = _ablation("gpt-125m", 2, FULL_DATA, FULL_TRAIN)
FULL_THREED = tuple(
    replace(
        run,
        name=run.name.replace("gpt-mini", "gpt-1.3b"),
        model=MODELS["gpt-1.3b"],
        data=FULL_DATA,
        train=replace(FULL_TRAIN, steps=40),
    )
    for run in MINI_THREED
)
FULL_SCALING_TRAIN = replace(FULL_TRAIN, steps=16, eval_batches=1)
# A slower transport stands for a slower cluster; the fastest has no suffix.
FULL_SCALING = tuple(
    replace(run, name=run.name + suffix, parallel=replace(run.parallel, transport=transport))
    for transport, suffix, shapes in (
        ("auto", "", tuple(SCALING_SHAPES)),
        ("host", "-host", ("tp2", "tp4")),
        ("tcp", "-tcp", ("tp2", "tp4")),
    )
    for run in _scaling("gpt-350m", shapes, FULL_DATA, FULL_SCALING_TRAIN)
)
FULL_CAPTURE = ("gpt-125m-vtp4-none-s1",)

RUNS: dict[str, Run] = by_name(
    *MINI_ACCURACY, *MINI_ABLATION, *MINI_THREED, *MINI_SCALING,
    *FULL_ACCURACY, *FULL_ABLATION, *FULL_THREED, *FULL_SCALING,
)  # fmt: skip

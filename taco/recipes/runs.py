"""Training runs. A name says what differs: model, shape (tp, pp, dp, vtp for virtual_tp), codec, seed."""

from __future__ import annotations

from dataclasses import replace

from taco.config import Data, Parallel, Run, Train
from taco.recipes.accuracy import FULL_DATA, FULL_TRAIN, arm, grid
from taco.recipes.arms import ABLATION_POLICIES, TP_CODECS
from taco.recipes.codecs import policy
from taco.recipes.models import MODELS
from taco.recipes.names import by_name
from taco.recipes.queue import FULL_ACCURACY, QUEUED

# --- mini: a size for two CPU cores ---------------------------------------------------------------

MINI_DATA = Data(corpus="data/sotu-mini", seq=64)
MINI_TRAIN = Train(steps=40, batch=4, lr=4e-3, min_lr=4e-4, warmup=4, eval_batches=8, monitor_every=40, generate=8)
# Timed runs need only enough steps for a median; the loss is compared within one experiment.
THREED_TRAIN = replace(MINI_TRAIN, steps=12, batch=8, monitor_every=0, generate=0)
SCALING_TRAIN = replace(THREED_TRAIN, steps=9, eval_batches=1)

MINI_ACCURACY = grid({"gpt-mini": (2, 4), "qwen-mini": (2, 4)}, MINI_DATA, MINI_TRAIN, TP_CODECS)


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


MINI_PROBE = (arm("gpt-mini", 4, "none", 1, MINI_DATA, replace(MINI_TRAIN, sensitivity=True), "-probe"),)
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

# The runs whose tensors are captured for codec_fidelity, distribution and ablation, and the steps that send them.
MINI_CAPTURE = {name: (MINI_TRAIN.steps,) for name in ("gpt-mini-vtp4-none-s1", "qwen-mini-vtp4-none-s1")}

# --- full size: GPUs ------------------------------------------------------------------------------

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
EIGHT_WAYS = (arm("qwen-0.5b-tp8", 8, "none", 1, FULL_DATA, FULL_TRAIN),)
FULL_CAPTURE = {"gpt-125m-vtp4-none-s1": (20, FULL_TRAIN.steps)} | {
    name: (FULL_TRAIN.steps,)
    for name in (
        "gpt-125m-vtp2-none-s1",
        "gpt-125m-vtp4-none-hot-s1",
        "gpt-125m-outliers-vtp4-none-s1",
        EIGHT_WAYS[0].name,
    )
}

RUNS: dict[str, Run] = by_name(
    *MINI_ACCURACY, *MINI_PROBE, *MINI_ABLATION, *MINI_THREED, *MINI_SCALING,
    *FULL_ACCURACY, *EIGHT_WAYS, *QUEUED, *FULL_ABLATION, *FULL_THREED, *FULL_SCALING,
)  # fmt: skip

"""The runs that say what compression costs in loss, at full size, and in which order they are worth their time.

    <model>-vtp<ranks>-<arm>[-code][-16m | -33m | -33m-parent | -33m-fork | -100m]-s<seed>

The suffix is the corpus (none: English) and the tokens of training (none: 3.3 M, a look). A `fork` starts from the
checkpoint that its `parent`, an uncompressed run of the same seed, has halfway: runs part by chance while the loss
falls fastest, which is before that, so that forks show smaller differences than whole runs. All runs of one budget and
seed start from the same weights and see the same data, so arms are compared in pairs; `controls` of the same seed
compress nothing and say how far chance alone goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from taco.config import Data, Parallel, Run, Train
from taco.recipes.arms import ARMS, ORDERS, TP_CODECS, controls, in_steps
from taco.recipes.models import MODELS
from taco.recipes.names import by_name

ENGLISH, CODE = "data/english-docs", "data/source-code"
WAYS = 4
SEEDS = (1, 2, 3)

FULL_DATA = Data(corpus="data/english-mix", seq=1024)
FULL_TRAIN = Train(steps=200, batch=16, lr=6e-4, min_lr=6e-5, warmup=20, dtype="bfloat16", eval_batches=16)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long and on what a run trains. suffix: of its name. from_step: where it leaves the uncompressed run of the
    suffix `parent`, 0 for a run from the first step."""

    suffix: str
    data: Data
    train: Train
    parent: str = ""
    from_step: int = 0

    def schedule(self, model: str, seed: int) -> Train:
        """Its training of a model with a seed."""
        parent = {"from_run": f"{model}-vtp{WAYS}-none{self.parent}-s{seed}", "from_step": self.from_step}
        return replace(self.train, seed=seed, **(parent if self.parent else {}))


def _longer(steps: int, warmup: int) -> Train:
    more = {"log_every": 10, "eval_every": 500, "checkpoint_every": 500, "monitor_every": 1000, "generate": 32}
    return replace(FULL_TRAIN, steps=steps, warmup=warmup, **more)


# both held-out splits are evaluated, the other domain's after the last step
_ENGLISH, _CODE = Data(corpus=ENGLISH, seq=1024, other=CODE), Data(corpus=CODE, seq=1024, other=ENGLISH)
_SCREEN, _FINAL = _longer(2000, 100), _longer(6104, 200)  # 32.8 M and 100.0 M tokens
SHORT = Budget(suffix="-16m", data=_ENGLISH, train=_longer(1000, 100))
PARENT = Budget(suffix="-33m-parent", data=_ENGLISH, train=replace(_SCREEN, keep_checkpoints=0))
FORK = Budget(suffix="-33m-fork", data=_ENGLISH, train=_SCREEN, parent=PARENT.suffix, from_step=_SCREEN.steps // 2)
LOOK = Budget(suffix="", data=FULL_DATA, train=FULL_TRAIN)
SCREEN = Budget(suffix="-33m", data=_ENGLISH, train=_SCREEN)
FINAL = Budget(suffix="-100m", data=_ENGLISH, train=_FINAL)
PROBE = Budget(suffix="-probe", data=FULL_DATA, train=replace(FULL_TRAIN, sensitivity=True))
# a high rate without decay grows outlier channels (arXiv 2405.19279)
HOT = Budget(suffix="-hot", data=FULL_DATA, train=replace(FULL_TRAIN, lr=3e-3, min_lr=3e-4, weight_decay=0.0))
CODE_SCREEN = Budget(suffix="-code-33m", data=_CODE, train=_SCREEN)
CODE_FINAL = Budget(suffix="-code-100m", data=_CODE, train=_FINAL)


def unique(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs without repetitions. Raises ValueError for two different ones of one name."""
    return tuple(by_name(*dict.fromkeys(runs)).values())


def arm(model: str, ways: int, name: str, seed: int, data: Data, train: Train, suffix: str = "") -> Run:
    """The run of one of ARMS. A warm-up lasts its share of the run's steps."""
    return Run(
        name=f"{model}-vtp{ways}-{name}{suffix}-s{seed}",
        model=MODELS[model],
        parallel=Parallel(virtual_tp=ways),
        policy=in_steps(ARMS[name], train.steps),
        data=data,
        train=replace(train, seed=seed),
    )


def grid(models: dict[str, tuple[int, ...]], data: Data, train: Train, codecs: tuple[str, ...]) -> tuple[Run, ...]:
    """Per model and TP size: the baseline with two seeds (the second is the noise band), then every codec."""
    arms = [("none", 1), ("none", 2), *((c, 1) for c in codecs)]
    return tuple(
        arm(model, ways, codec, seed, data, train)
        for model, all_ways in models.items()
        for ways in all_ways
        for codec, seed in arms
    )


def _arms(model: str, names: Iterable[str], seeds: Iterable[int], budget: Budget) -> tuple[Run, ...]:
    """Seed by seed, so that a stop in the middle leaves whole pairs."""
    return tuple(
        arm(model, WAYS, name, seed, budget.data, budget.schedule(model, seed), budget.suffix)
        for seed in seeds
        for name in names
    )


def _controls(
    model: str, grids: tuple[int, ...], seeds: Iterable[int], budget: Budget, orders: tuple[str, ...] = ORDERS
) -> tuple[Run, ...]:
    return tuple(
        Run(
            name=f"{model}-{name}{budget.suffix}-s{seed}",
            model=MODELS[model],
            parallel=parallel,
            policy=ARMS["none"],
            data=budget.data,
            train=budget.schedule(model, seed),
        )
        for seed in seeds
        for name, parallel in controls(WAYS, grids, orders).items()
    )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the queue. why: what is known after it that was not known before."""

    name: str
    why: str
    runs: tuple[Run, ...]


GPT, QWEN, PLANTED = "gpt-125m", "qwen-0.5b-tp8", "gpt-125m-outliers"
# fewer bytes at a loss that looks like the baseline's in a look; the paper's codec and its rival
NEAR = ("taco", "int8", "int8-unrotated", "int6", "fp8", "int6-int4-warm", "int4-guarded")
# where int6's loss comes from, and what may win it back at 2.5 times fewer bytes
SCREENED = (
    "int8", "int6", "int6-guarded", "int6-forward", "int6-backward", "int4-then-int8", "int6-then-int8", "taco", "fp8",
    "int8-unrotated", "int6-int4-warm", "int4-guarded",
)  # fmt: skip
# what a policy costs after the first half of training: every one that is no matter of the first steps
FORKED = (
    "taco", "int8", "int6", "int6-guarded", "int4", "int6-forward", "int6-backward", "fp8", "int8-unrotated",
    "int4-guarded", "int8-int6", "int8-int4", "int6-int4", "int4-int8", "mxfp8", "flash-int8", "flash-int4",
    "fp8-tensor", "sdp4bit-gradient", "tahquant", "taco-e5m2", "taco-stochastic", "int6-stochastic", "int4-stochastic",
    "int4-first-last",
)  # fmt: skip
MANY_SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)
FINALISTS = ("taco", "int8", "int6", "int6-guarded")
# codecs that an outlier in a message harms in different ways, and the same without what protects them
SPIKED = ("taco", "int8", "int6", "int4", "fp8", "fp8-tensor", "mxfp8", "int8-unrotated", "int6-unrotated")
_REST = tuple(name for name in ARMS if name not in ("none", *NEAR))
_UNSCREENED = tuple(name for name in ARMS if name not in ("none", *SCREENED))

QUEUE: tuple[Stage, ...] = (
    Stage(
        name="controls",
        why="whether a baseline is low by chance: runs that compress nothing and differ by rounding alone",
        runs=_arms(GPT, ("none",), SEEDS, LOOK) + _controls(GPT, (1, 2, 3), SEEDS, LOOK),
    ),
    Stage(
        name="pairs",
        why="the arms nearest to the baseline at three seeds",
        runs=_arms(GPT, (*NEAR, "int8-int4"), SEEDS, LOOK),
    ),
    Stage(name="looks", why="every arm once, cheaply: what need not be screened", runs=_arms(GPT, _REST, (1,), LOOK)),
    Stage(
        name="sensitivity",
        why="which blocks and directions need bits",
        runs=_arms(GPT, ("none",), (1,), PROBE) + _arms(PLANTED, ("none",), (1,), PROBE),
    ),
    Stage(
        name="outliers",
        why="what outlier channels do to an arm, planted in the weights and grown at a high rate",
        runs=_arms(PLANTED, ("none", *SPIKED), (1,), LOOK)
        + _controls(PLANTED, (2,), (1,), LOOK)
        + _arms(GPT, ("none", *SPIKED), (1,), HOT)
        + _controls(GPT, (2,), (1,), HOT),
    ),
    Stage(
        name="forks",
        why="what every policy costs in the second half of training, from one checkpoint, with chance held small",
        runs=tuple(
            run
            for seed in SEEDS
            for run in _arms(GPT, ("none",), (seed,), PARENT)
            + _arms(GPT, ("none", *FORKED[:4]), (seed,), FORK)
            + _controls(GPT, (), (seed,), FORK)
            + _arms(GPT, FORKED[4:], (seed,), FORK)
        ),
    ),
    Stage(
        name="seeds",
        why="what compression from the first step costs, over enough seeds to see a third of a per cent",
        runs=_arms(GPT, ("none", *FORKED[:3]), MANY_SEEDS, SHORT),
    ),
    Stage(
        name="screen",
        why="which messages int6 harms and which policy wins it back, at ten times the tokens, with controls",
        runs=_arms(GPT, ("none",), (1,), SCREEN)
        + _controls(GPT, (2,), (1,), SCREEN)
        + _arms(GPT, SCREENED, (1,), SCREEN)
        + _arms(GPT, ("none", *SCREENED), (2,), SCREEN),
    ),
    Stage(
        name="screen-code",
        why="whether the second domain ranks the arms alike",
        runs=_arms(GPT, ("none", *FINALISTS), (1,), CODE_SCREEN) + _controls(GPT, (), (1,), CODE_SCREEN),
    ),
    Stage(
        name="screen-qwen",
        why="whether the second architecture ranks the arms alike",
        runs=_arms(QWEN, ("none", *FINALISTS, "tahquant"), (1,), SCREEN) + _controls(QWEN, (), (1,), SCREEN),
    ),
    Stage(
        name="screen-rest", why="every other arm at the screening budget", runs=_arms(GPT, _UNSCREENED, (1,), SCREEN)
    ),
    Stage(
        name="finals",
        why="the finalists at three seeds and 100 M tokens, with a control each",
        runs=tuple(
            run
            for seed in SEEDS
            for run in _arms(GPT, ("none", *FINALISTS), (seed,), FINAL)
            + _controls(GPT, (), (seed,), FINAL, ("reversed",))
        ),
    ),
    Stage(
        name="finals-qwen",
        why="the finalists on the second architecture",
        runs=_arms(QWEN, ("none", *FINALISTS), SEEDS, FINAL) + _controls(QWEN, (), (1,), FINAL, ("reversed",)),
    ),
    Stage(
        name="finals-code",
        why="the finalists on the second domain",
        runs=_arms(GPT, ("none", *FINALISTS), SEEDS, CODE_FINAL),
    ),
)

# Runs whose tensors are made hard on purpose: they judge codecs, and no claim about training as it is.
STRESS = frozenset(run.name for stage in QUEUE if stage.name == "outliers" for run in stage.runs)

# Every model at two TP sizes with every codec, and what the queue adds.
FULL_ACCURACY = grid({GPT: (2, 4), QWEN: (2, 4)}, FULL_DATA, FULL_TRAIN, TP_CODECS)
QUEUED = unique((*FULL_ACCURACY, *(run for stage in QUEUE for run in stage.runs)))[len(FULL_ACCURACY) :]

"""The runs that say what compression costs in loss, in which order they are worth their time, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taco.config import Run
from taco.recipes.accuracy import (
    CODE_FINAL,
    CODE_FORK,
    CODE_PARENT,
    CODE_SCREEN,
    FINAL,
    FINAL_FORK,
    FINAL_PARENT,
    FORK,
    FULL_DATA,
    FULL_TRAIN,
    HALVES_FORK,
    HALVES_PARENT,
    HOT,
    LOOK,
    PARENT,
    PROBE,
    SCREEN,
    SEEDS,
    SHORT,
    SHORT_FORK,
    SHORT_PARENT,
    SHORT_PROBE,
    Budget,
    arm_runs,
    control_runs,
    grid,
    unique,
)
from taco.recipes.arms import ARMS, ORDERS, TP_CODECS


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the queue. why: what is known after it that was not known before."""

    name: str
    why: str
    runs: tuple[Run, ...]


GPT, QWEN, QWEN_GPT2, PLANTED = "gpt-125m", "qwen-0.5b-tp8", "qwen-0.5b-gpt2", "gpt-125m-outliers"
# fewer bytes at a loss that looks like the baseline's in a look; the paper's codec and its rival
NEAR = ("taco", "int8", "int8-unrotated", "int6", "fp8", "int6-int4-warm", "int4-guarded")
# where int6's loss comes from, and what may win it back at 2.5 times fewer bytes
SCREENED = (
    "int8", "int6", "int6-guarded", "int6-forward", "int6-backward", "int4-then-int8", "int6-then-int8", "taco", "fp8",
    "int8-unrotated", "int6-int4-warm", "int4-guarded",
)  # fmt: skip
# what a policy costs after the first half of training: every one that is no matter of the first steps
FORKED = (
    "int8", "taco", "int6", "int6-guarded", "int6-ends", "int6-first", "int8-int4", "int6-int4-guarded",
    "int4-guarded", "fp8", "int6-forward", "int6-backward", "int8-unrotated", "int6-int4", "int8-int6", "int4-int8",
    "mxfp8", "flash-int8", "tahquant", "taco-unrotated", "taco-one-scale", "int4", "flash-int4", "fp8-tensor",
    "sdp4bit-gradient", "taco-e5m2", "taco-g256",
    "int8-int4-stochastic", "int4-ends", "int4-first-last", "taco-stochastic", "int6-stochastic", "int4-stochastic",
)  # fmt: skip
# a seed's forks are run together: on a GPU a parent that is run again is another one
FORK_SEEDS = (1, 2, 3, 4)
MANY_SEEDS = (1, 2, 3, 4, 5, 6, 7, 8)
FINALISTS = ("taco", "int8", "int6", "int6-guarded")
# codecs that an outlier in a message harms in different ways, and the same without what protects them
SPIKED = ("taco", "int8", "int6", "int4", "fp8", "fp8-tensor", "mxfp8", "int8-unrotated", "int6-unrotated")
_REST = tuple(name for name in ARMS if name not in ("none", *NEAR))
_UNSCREENED = tuple(name for name in ARMS if name not in ("none", *SCREENED))


def _forks(
    model: str, names: Iterable[str], seeds: Iterable[int], left: Budget, fork: Budget, orders: tuple[str, ...] = ORDERS
) -> tuple[Run, ...]:
    """Seed by seed the run that is left, then its forks: uncompressed ones, and one a policy."""
    return tuple(
        run
        for seed in seeds
        for run in arm_runs(model, ("none",), (seed,), left)
        + arm_runs(model, ("none",), (seed,), fork)
        + control_runs(model, (), (seed,), fork, orders)
        + arm_runs(model, names, (seed,), fork)
    )


QUEUE: tuple[Stage, ...] = (
    Stage(
        name="controls",
        why="whether a baseline is low by chance: runs that compress nothing and differ by rounding alone",
        runs=arm_runs(GPT, ("none",), SEEDS, LOOK) + control_runs(GPT, (1, 2, 3), SEEDS, LOOK),
    ),
    Stage(
        name="pairs",
        why="the arms nearest to the baseline at three seeds",
        runs=arm_runs(GPT, (*NEAR, "int8-int4"), SEEDS, LOOK),
    ),
    Stage(
        name="looks", why="every arm once, cheaply: what need not be screened", runs=arm_runs(GPT, _REST, (1,), LOOK)
    ),
    Stage(
        name="outliers",
        why="what outlier channels do to an arm, planted in the weights and grown at a high rate",
        runs=arm_runs(PLANTED, ("none", *SPIKED), (1,), LOOK)
        + control_runs(PLANTED, (2,), (1,), LOOK)
        + arm_runs(GPT, ("none", *SPIKED), (1,), HOT)
        + control_runs(GPT, (2,), (1,), HOT),
    ),
    Stage(
        name="forks",
        why="what every policy costs in the second half of training, from one checkpoint, with chance held small",
        runs=_forks(GPT, FORKED, FORK_SEEDS, PARENT, FORK),
    ),
    Stage(
        name="forks-qwen",
        why="whether the second architecture ranks the policies alike",
        runs=_forks(QWEN_GPT2, (*FINALISTS, "int6-ends", "fp8", "int4", "tahquant"), (1,), HALVES_PARENT, HALVES_FORK),
    ),
    Stage(
        name="forks-code",
        why="whether the second domain ranks the policies alike",
        runs=_forks(GPT, (*FINALISTS, "int6-ends", "fp8", "int4", "tahquant"), (1,), CODE_PARENT, CODE_FORK),
    ),
    Stage(
        name="forks-outliers",
        why="what outlier channels do to a codec once training is under way, with chance held small",
        runs=_forks(PLANTED, SPIKED, (1,), SHORT_PARENT, SHORT_FORK, ("reversed",)),
    ),
    Stage(
        name="sensitivity",
        why="which blocks and directions need bits, where forks start",
        runs=arm_runs(GPT, ("none",), FORK_SEEDS, PROBE) + arm_runs(PLANTED, ("none",), (1,), SHORT_PROBE),
    ),
    Stage(
        name="forks-final",
        why="whether what a policy costs grows with training: the second half of 100 M tokens",
        runs=_forks(GPT, FINALISTS, SEEDS, FINAL_PARENT, FINAL_FORK, ("reversed",)),
    ),
    Stage(
        name="seeds",
        why="what compression from the first step costs, over enough seeds to see a third of a per cent",
        runs=arm_runs(GPT, ("none", *FINALISTS[:3]), MANY_SEEDS, SHORT),
    ),
    Stage(
        name="screen",
        why="which messages int6 harms and which policy wins it back, at ten times the tokens, with controls",
        runs=arm_runs(GPT, ("none",), (1,), SCREEN)
        + control_runs(GPT, (2,), (1,), SCREEN)
        + arm_runs(GPT, SCREENED, (1,), SCREEN)
        + arm_runs(GPT, ("none", *SCREENED), (2,), SCREEN),
    ),
    Stage(
        name="screen-code",
        why="whether the second domain ranks the arms alike",
        runs=arm_runs(GPT, ("none", *FINALISTS), (1,), CODE_SCREEN) + control_runs(GPT, (), (1,), CODE_SCREEN),
    ),
    Stage(
        name="screen-qwen",
        why="whether the second architecture ranks the arms alike",
        runs=arm_runs(QWEN, ("none", *FINALISTS, "tahquant"), (1,), SCREEN) + control_runs(QWEN, (), (1,), SCREEN),
    ),
    Stage(
        name="screen-rest", why="every other arm at the screening budget", runs=arm_runs(GPT, _UNSCREENED, (1,), SCREEN)
    ),
    Stage(
        name="finals",
        why="the finalists at three seeds and 100 M tokens, with a control each",
        runs=tuple(
            run
            for seed in SEEDS
            for run in arm_runs(GPT, ("none", *FINALISTS), (seed,), FINAL)
            + control_runs(GPT, (), (seed,), FINAL, ("reversed",))
        ),
    ),
    Stage(
        name="finals-qwen",
        why="the finalists on the second architecture",
        runs=arm_runs(QWEN, ("none", *FINALISTS), SEEDS, FINAL) + control_runs(QWEN, (), (1,), FINAL, ("reversed",)),
    ),
    Stage(
        name="finals-code",
        why="the finalists on the second domain",
        runs=arm_runs(GPT, ("none", *FINALISTS), SEEDS, CODE_FINAL),
    ),
)

# Runs whose tensors are made hard on purpose: they judge codecs, and no claim about training as it is.
STRESS = frozenset(
    run.name for stage in QUEUE for run in stage.runs if run.model.name == PLANTED or f"{HOT.suffix}-s" in run.name
)

# Every model at two TP sizes with every codec, and what the queue adds.
FULL_ACCURACY = grid({GPT: (2, 4), QWEN: (2, 4)}, FULL_DATA, FULL_TRAIN, TP_CODECS)
QUEUED = unique((*FULL_ACCURACY, *(run for stage in QUEUE for run in stage.runs)))[len(FULL_ACCURACY) :]

"""How the runs are made that say what compression costs in loss, at full size.

    <model>-vtp<ranks>-<arm>[-code][-16m | -33m | -100m][-parent | -fork | -probe]-s<seed>

The suffix is the corpus (none: English) and the tokens of training (none: 3.3 M, a look). A `fork` starts from the
checkpoint that its `parent`, an uncompressed run of the same seed, has halfway: runs part by chance mostly before
that, so that forks show smaller differences than whole runs. All runs of one budget and
seed start from the same weights and see the same data, so arms are compared in pairs; `controls` of the same seed
compress nothing and say how far chance alone goes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from taco.config import Data, Parallel, Run, Train
from taco.recipes.arms import ARMS, ORDERS, controls, in_steps
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


def forks(budget: Budget) -> tuple[Budget, Budget]:
    """The run that forks leave and the forks themselves, which start from its last checkpoint in its first half."""
    steps, every = budget.train.steps, budget.train.checkpoint_every
    left = replace(budget, suffix=f"{budget.suffix}-parent", train=replace(budget.train, keep_checkpoints=0))
    return left, replace(
        budget, suffix=f"{budget.suffix}-fork", parent=left.suffix, from_step=steps // 2 // every * every
    )


def probe(fork: Budget, steps: int = 10) -> Budget:
    """So many steps where forks start, then which messages need bits."""
    short = replace(fork.train, steps=fork.from_step + steps, sensitivity=True)
    return replace(fork, suffix=fork.suffix.replace("-fork", "-probe"), train=short)


def _longer(steps: int, warmup: int) -> Train:
    more = {"log_every": 10, "eval_every": 500, "checkpoint_every": 500, "monitor_every": 1000, "generate": 32}
    return replace(FULL_TRAIN, steps=steps, warmup=warmup, **more)


# both held-out splits are evaluated, the other domain's after the last step
_ENGLISH, _CODE = Data(corpus=ENGLISH, seq=1024, other=CODE), Data(corpus=CODE, seq=1024, other=ENGLISH)
_SCREEN, _FINAL = _longer(2000, 100), _longer(6104, 200)  # 32.8 M and 100.0 M tokens
SHORT = Budget(suffix="-16m", data=_ENGLISH, train=_longer(1000, 100))
LOOK = Budget(suffix="", data=FULL_DATA, train=FULL_TRAIN)
SCREEN = Budget(suffix="-33m", data=_ENGLISH, train=_SCREEN)
FINAL = Budget(suffix="-100m", data=_ENGLISH, train=_FINAL)
# a high rate without decay grows outlier channels (arXiv 2405.19279)
HOT = Budget(suffix="-hot", data=FULL_DATA, train=replace(FULL_TRAIN, lr=3e-3, min_lr=3e-4, weight_decay=0.0))
CODE_SCREEN = Budget(suffix="-code-33m", data=_CODE, train=_SCREEN)
CODE_FINAL = Budget(suffix="-code-100m", data=_CODE, train=_FINAL)
HALVES = replace(SHORT, train=replace(SHORT.train, micro_batch=8))  # of a model whose steps need more memory
SHORT_PARENT, SHORT_FORK = forks(SHORT)
PARENT, FORK = forks(SCREEN)
PROBE, SHORT_PROBE = probe(FORK), probe(SHORT_FORK)
CODE_PARENT, CODE_FORK = forks(CODE_SCREEN)
FINAL_PARENT, FINAL_FORK = forks(FINAL)
HALVES_PARENT, HALVES_FORK = forks(HALVES)


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


def arm_runs(model: str, names: Iterable[str], seeds: Iterable[int], budget: Budget) -> tuple[Run, ...]:
    """Seed by seed, so that a stop in the middle leaves whole pairs."""
    return tuple(
        arm(model, WAYS, name, seed, budget.data, budget.schedule(model, seed), budget.suffix)
        for seed in seeds
        for name in names
    )


def control_runs(
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

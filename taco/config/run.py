"""Data, schedule, and with model, process grid and policy the whole run: what decides a training run's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from taco.config.check import at_least, file_name, one_of, positive, require
from taco.config.grid import Parallel
from taco.config.model import Model
from taco.config.policy import ROLES, TENSOR_ROLES, Policy

DTYPES = ("float32", "bfloat16")
PROMPT_TOKENS = 32
"""Tokens of a held-out sequence that `Train.generate` continues."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Token source.

    corpus: a folder prepared by `taco data`, relative to the working directory. seq: tokens per sample.
    other: a folder of the same tokenizer whose held-out split is evaluated, too, after the last step; '': none.
    """

    corpus: str = "data/sotu-mini"
    seq: int = 128
    other: str = ""

    def __post_init__(self) -> None:
        at_least(2, "a sample needs an input and a target", seq=self.seq)

    @property
    def folders(self) -> tuple[str, ...]:
        """The prepared folders that a run reads."""
        return (self.corpus, self.other) if self.other else (self.corpus,)


@dataclass(frozen=True, kw_only=True)
class Train:
    """One training schedule. batch is global sequences per step; accumulation = batch / (dp * micro_batch) when pp = 1.

    lr in 1/step units of AdamW; cosine from lr to min_lr after `warmup` linear steps over `steps`.
    dtype: compute dtype (parameters and optimizer stay fp32). eval_batches of `batch` sequences.
    checkpoint_every / monitor_every / eval_every in steps, 0 = never (the last step is always evaluated).
    log_every: the log has a record of every so many steps, of the last and of those with a checkpoint; its loss is the
    mean over the steps since the record before, all else is of its own step.
    keep_checkpoints: how many of the newest stay on disk, 0 = all.
    from_run, from_step: the run starts from that run's checkpoint of that step, its weights, moments and place in the
        data, and trains the steps after it (see taco.train.fork); '' and 0: from weights of the seed.
    sensitivity: after the last step, how far low bits in each block and direction alone move the gradient.
    generate: tokens that continue each held-out prompt after the last step, greedily; 0 = none.
    timeout_s: how long a collective may wait for a rank.
    """

    steps: int = 100
    batch: int = 8
    micro_batch: int = 0
    lr: float = 1e-3
    min_lr: float = 1e-4
    warmup: int = 10
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    dtype: str = "float32"
    seed: int = 1
    eval_every: int = 0
    eval_batches: int = 4
    log_every: int = 1
    checkpoint_every: int = 0
    keep_checkpoints: int = 2
    from_run: str = ""
    from_step: int = 0
    monitor_every: int = 0
    generate: int = 0
    sensitivity: bool = False
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        counts = {"steps": self.steps, "batch": self.batch, "eval_batches": self.eval_batches}
        at_least(1, "it is a count", **counts, log_every=self.log_every)
        at_least(
            0,
            "it is a count of steps or sequences; 0 means off or all",
            micro_batch=self.micro_batch,
            warmup=self.warmup,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
            keep_checkpoints=self.keep_checkpoints,
            from_step=self.from_step,
            monitor_every=self.monitor_every,
            generate=self.generate,
            seed=self.seed,
        )
        positive("it is a rate or a time", lr=self.lr, clip=self.clip, timeout_s=self.timeout_s)
        for name in ("min_lr", "weight_decay"):
            value = getattr(self, name)
            require(0 <= value < math.inf, f"{name}={value!r}", "a number >= 0", "it shrinks steps or weights")
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            require(
                0 <= value < 1, f"{name}={value!r}", "a number from 0 up to but without 1", "it weighs a mean's past"
            )
        one_of("dtype", self.dtype, DTYPES, "training runs in these")
        self._check_fork()

    def _check_fork(self) -> None:
        """Raise ConfigError for half a place to start from, or one that leaves no step."""
        require(
            bool(self.from_run) == bool(self.from_step),
            f"from_run={self.from_run!r} with from_step={self.from_step}",
            "both or neither",
            "a checkpoint is of a run and of a step from 1 on",
        )
        require(
            self.from_step < self.steps,
            f"from_step={self.from_step} of steps={self.steps}",
            f"from_step below {self.steps}",
            "the run has the steps after it",
        )
        if self.from_run:
            file_name("from_run", self.from_run, "its checkpoints are in the folder called so")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A named training run: everything that decides its numbers."""

    name: str
    model: Model
    parallel: Parallel = field(default_factory=Parallel)
    policy: Policy = field(default_factory=Policy)
    data: Data = field(default_factory=Data)
    train: Train = field(default_factory=Train)

    def __post_init__(self) -> None:
        m, p, t = self.model, self.parallel, self.train
        file_name("run name", self.name, "the log and the checkpoints are called so")
        ways = p.tp * p.virtual_tp
        for name in ("hidden", "heads", "kv_heads", "ffn", "vocab"):
            value = getattr(m, name)
            require(
                value % ways == 0,
                f"{name}={value} with tensor parallel size {ways}",
                f"{name} to be a multiple of {ways}",
                "each rank holds an equal share",
            )
        _check_features(self)
        stages = p.pp * p.stages_per_rank
        require(
            m.layers >= stages,
            f"layers={m.layers} with {stages} pipeline stages",
            f"at least {stages} layers",
            "every stage holds a layer",
        )
        require(
            self.data.seq <= m.max_seq,
            f"seq={self.data.seq} with max_seq={m.max_seq}",
            f"seq <= {m.max_seq}",
            "positions beyond max_seq do not exist",
        )
        require(
            not p.sequence_parallel or self.data.seq % p.tp == 0,
            f"seq={self.data.seq} with sequence parallel over tp={p.tp}",
            f"seq to be a multiple of {p.tp}",
            "each rank holds an equal slice of the sequence",
        )
        require(
            t.batch % p.dp == 0,
            f"batch={t.batch} with dp={p.dp}",
            f"batch to be a multiple of {p.dp}",
            "each data-parallel rank gets an equal share",
        )
        local = t.batch // p.dp
        parts = p.microbatches if p.pp > 1 else local // (t.micro_batch or local)
        require(
            parts > 0 and local % parts == 0 and (p.pp > 1 or not t.micro_batch or local % t.micro_batch == 0),
            f"{local} sequences per data-parallel rank in microbatches={p.microbatches}, micro_batch={t.micro_batch}",
            "equal microbatches",
            "the loss is the mean over equal parts",
        )

    @property
    def unused(self) -> dict[str, str]:
        """Role -> name of the policy's codec that no message has, because the grid has one rank there."""
        p = self.parallel
        ranks = {"tp": max(p.tp, p.virtual_tp), "dp": p.dp, "pp": p.pp}
        roles = [role for role in ROLES if ranks[role.partition("_")[0]] == 1 and self.policy.compresses(role)]
        return {role: getattr(self.policy, role).name for role in roles}


def _check_features(run: Run) -> None:
    """Raise `ConfigError` where a part of the run rules out a feature of another."""
    p, t = run.parallel, run.train
    require(
        p.virtual_sum == "once" or not run.policy.compresses(*TENSOR_ROLES),
        f"virtual_sum={p.virtual_sum!r} with a tensor-parallel codec",
        "codec none in tp_forward and tp_backward",
        "a compressed message is summed as its packets are",
    )
    run.policy.check_blocks(range(run.model.layers))
    require(
        t.from_run != run.name,
        f"from_run={t.from_run!r} of the run called so",
        "another name for this run (--set name=NEW)",
        "its own checkpoints would be in the way of those that it starts from",
    )
    require(
        run.policy.warmup_steps < t.steps,
        f"warmup_steps={run.policy.warmup_steps} of the policy in {t.steps} steps",
        f"fewer than {t.steps}",
        "the codecs after the warm-up would not be used",
    )
    require(
        not t.sensitivity or (p.virtual_tp > 1 and p.world_size == 1),
        f"sensitivity with virtual_tp={p.virtual_tp}, {p.world_size} processes",
        "virtual_tp above 1 in one process",
        "it compares gradients of whole parameters, with messages of a codec that the run may not have",
    )
    require(
        not t.generate or (p.pp == 1 and not p.sequence_parallel),
        f"generate={t.generate} with pp={p.pp}, sequence_parallel={p.sequence_parallel}",
        "pp=1 without sequence_parallel",
        "sequences grow token by token, and only one rank would see their ends",
    )
    length = min(PROMPT_TOKENS, run.data.seq) + t.generate
    require(
        not t.generate or length <= run.model.max_seq,
        f"generate={t.generate} after a prompt, {length} tokens with max_seq={run.model.max_seq}",
        f"at most {run.model.max_seq} tokens",
        "positions beyond max_seq do not exist",
    )

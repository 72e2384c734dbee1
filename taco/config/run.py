"""Policy, process grid, model, data, schedule: everything that decides the numbers of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field

from taco.config.check import at_least, one_of, positive, require
from taco.config.codec import NONE, Codec

DTYPES = ("float32", "bfloat16")
TRANSPORTS = ("auto", "host", "tcp")

# --- policy and parallelism -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which codec each role and direction uses.

    min_bytes: messages smaller than this (bytes before compression) go uncompressed.
    all_reduce: algorithm of the compressed TP all-reduce; 'auto' is one_shot for two ranks, else two_shot.
    """

    tp_forward: Codec = NONE
    tp_backward: Codec = NONE
    dp_gradient: Codec = NONE
    dp_weight: Codec = NONE
    pp_forward: Codec = NONE
    pp_backward: Codec = NONE
    min_bytes: int = 0
    all_reduce: str = "auto"

    def __post_init__(self) -> None:
        at_least(0, "it is a size in bytes", min_bytes=self.min_bytes)
        one_of(
            "all_reduce", self.all_reduce, ("auto", "one_shot", "two_shot", "hierarchical"), "these algorithms exist"
        )
        for role in ROLES:
            codec = getattr(self, role)
            require(
                isinstance(codec, Codec),
                f"{role}={codec!r}",
                "a Codec",
                "presets are looked up by taco.recipes.preset(name)",
            )
            difference = getattr(codec, "difference", False)
            require(
                not difference or role == "dp_weight",
                f"{role}={codec.name!r}",
                "a codec without difference",
                "only weights are sent again every step",
            )


ROLES = ("tp_forward", "tp_backward", "dp_gradient", "dp_weight", "pp_forward", "pp_backward")


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The process grid: world size = pp * dp * tp, ranks in that order (tp fastest).

    virtual_tp: one process computes this many TP ranks' partial sums and reduces them with the
        wire's numerics; needs tp = 1. node_size: ranks per node for hierarchical collectives
        (0: one node). microbatches: pipeline microbatches per optimizer step and dp rank.
    transport: how GPUs of one host exchange: 'auto' the fastest way there is, 'host' through host memory (like PCIe
        GPUs without peer access), 'tcp' over loopback TCP (like Ethernet). Without effect on CPUs.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    virtual_tp: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    microbatches: int = 1
    node_size: int = 0
    transport: str = "auto"

    def __post_init__(self) -> None:
        one_of("transport", self.transport, TRANSPORTS, "these ways are known")
        at_least(
            1,
            "it counts processes",
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            virtual_tp=self.virtual_tp,
            microbatches=self.microbatches,
        )
        at_least(0, "it counts ranks", node_size=self.node_size)
        one_of("schedule", self.schedule, ("1f1b", "interleaved"), "these schedules are supported")
        require(
            self.virtual_tp == 1 or self.tp == 1,
            f"virtual_tp={self.virtual_tp} with tp={self.tp}",
            "one of them to be 1",
            "virtual ranks replace real ones",
        )
        require(
            self.virtual_tp == 1 or not self.sequence_parallel,
            f"virtual_tp={self.virtual_tp} with sequence_parallel",
            "one of them",
            "virtual ranks share one whole sequence",
        )
        require(
            self.pp == 1 or self.microbatches >= self.pp,
            f"microbatches={self.microbatches} with pp={self.pp}",
            f"microbatches >= {self.pp}",
            "a pipeline with fewer microbatches than stages leaves stages without work",
        )

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def stages_per_rank(self) -> int:
        return 2 if self.schedule == "interleaved" and self.pp > 1 else 1


# --- model, data, training ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder-only transformer.

    arch: 'gpt' is GPT-2/3 (learned positions, LayerNorm, GELU), 'qwen' is Qwen2.5 (RoPE, RMSNorm,
        SwiGLU, grouped-query attention, QKV bias).
    vocab is the embedding's row count (tokens must be below it).
    """

    name: str
    arch: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    max_seq: int
    tied: bool = True
    rope_theta: float = 1e6
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        one_of("arch", self.arch, ("gpt", "qwen"), "these architectures exist")
        at_least(
            1,
            "it is a size",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.kv_heads,
            ffn=self.ffn,
            vocab=self.vocab,
            max_seq=self.max_seq,
        )
        require(
            self.hidden % self.heads == 0,
            f"hidden={self.hidden}, heads={self.heads}",
            "heads to divide hidden",
            "every head has hidden/heads channels",
        )
        require(
            self.heads % self.kv_heads == 0,
            f"heads={self.heads}, kv_heads={self.kv_heads}",
            "kv_heads to divide heads",
            "query heads share key/value heads in equal groups",
        )
        require(
            self.arch != "gpt" or self.kv_heads == self.heads,
            f"kv_heads={self.kv_heads} with arch='gpt'",
            f"kv_heads={self.heads}",
            "GPT-2 has no grouped-query attention",
        )

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, kw_only=True)
class Data:
    """Token source.

    corpus: a folder prepared by `taco data`, relative to the working directory. seq: tokens per sample.
    """

    corpus: str = "data/sotu-mini"
    seq: int = 128

    def __post_init__(self) -> None:
        at_least(2, "a sample needs an input and a target", seq=self.seq)


@dataclass(frozen=True, kw_only=True)
class Train:
    """One training schedule. batch is global sequences per step; accumulation = batch / (dp * micro_batch) when pp = 1.

    lr in 1/step units of AdamW; cosine from lr to min_lr after `warmup` linear steps over `steps`.
    dtype: compute dtype (parameters and optimizer stay fp32). eval_batches of `batch` sequences.
    checkpoint_every / monitor_every / eval_every in steps, 0 = never (the last step is always evaluated).
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
    checkpoint_every: int = 0
    monitor_every: int = 0
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        at_least(1, "it is a count", steps=self.steps, batch=self.batch, eval_batches=self.eval_batches)
        at_least(
            0,
            "it is a count of steps or sequences; 0 means off or all",
            micro_batch=self.micro_batch,
            warmup=self.warmup,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
            monitor_every=self.monitor_every,
            seed=self.seed,
        )
        positive("it is a rate or a time", lr=self.lr, clip=self.clip, timeout_s=self.timeout_s)
        one_of("dtype", self.dtype, DTYPES, "training runs in these")


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
        ways = p.tp * p.virtual_tp
        for name in ("hidden", "heads", "kv_heads", "ffn", "vocab"):
            value = getattr(m, name)
            require(
                value % ways == 0,
                f"{name}={value} with tensor parallel size {ways}",
                f"{name} to be a multiple of {ways}",
                "each rank holds an equal share",
            )
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

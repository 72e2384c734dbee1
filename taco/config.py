"""Everything that can be configured, as frozen dataclasses without torch.

A configuration is valid once it exists: `__post_init__` raises `ConfigError` that says what was
given, what is needed, and why. Names in errors are the field names below.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal

PAYLOADS = ("e4m3", "e5m2", "int8", "int6", "int4")
ROTATIONS = ("none", "hadamard", "signed")
SCALES = ("fp32", "bf16", "e8m0")
ROUNDINGS = ("nearest", "stochastic")
DTYPES = ("float32", "bfloat16")
MIN_GROUP, MAX_GROUP = 16, 2048


class ConfigError(ValueError):
    """A configuration that cannot work. The text says: got, need, why."""


def require(ok: bool, got: str, need: str, why: str) -> None:
    """Raise `ConfigError` unless `ok`."""
    if not ok:
        raise ConfigError(f"got {got}; need {need}; because {why}")


def _one_of(name: str, value: Any, allowed: tuple, why: str) -> None:
    require(value in allowed, f"{name}={value!r}", f"one of {', '.join(map(str, allowed))}", why)


def _at_least(low: int, why: str, **values: Any) -> None:
    for name, value in values.items():
        require(
            isinstance(value, int) and not isinstance(value, bool) and value >= low,
            f"{name}={value!r}",
            f"an integer >= {low}",
            why,
        )


def _positive(why: str, **values: float) -> None:
    for name, value in values.items():
        require(value > 0, f"{name}={value!r}", "a number > 0", why)


# --- codecs -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How a message is compressed. `name` is what logs and tables call it."""

    name: str


@dataclass(frozen=True, kw_only=True)
class NoCodec(Codec):
    """The tensor's own bytes in its own dtype."""

    name: str = "none"


@dataclass(frozen=True, kw_only=True)
class CastCodec(Codec):
    """Plain cast to FP8, no scale: 1 byte an element."""

    payload: Literal["e4m3", "e5m2"] = "e4m3"

    def __post_init__(self) -> None:
        _one_of("payload", self.payload, ("e4m3", "e5m2"), "only FP8 holds a value without a scale")


@dataclass(frozen=True, kw_only=True)
class TensorCodec(Codec):
    """One absmax scale (fp32) for the whole message."""

    payload: Literal["e4m3", "e5m2", "int8"] = "e4m3"

    def __post_init__(self) -> None:
        _one_of("payload", self.payload, ("e4m3", "e5m2", "int8"), "the payload is one byte")


@dataclass(frozen=True, kw_only=True)
class GroupCodec(Codec):
    """The group codec: rotate each group of `group` elements, scale it by its absmax, round to `payload`.

    The paper (arXiv 2604.24088) is the point e4m3, 128, hadamard, fp32, adaptive_scale.

    rotation: 'hadamard' is the Sylvester transform over sqrt(size), 'signed' puts fixed pseudo-random
        signs before it. `rotation_size` (power of two, divides `group`) rotates blocks smaller than
        the group; 0 means the whole group.
    scale: the stored dtype of the group's scale; bf16 and e8m0 round up.
    adaptive_scale: also send the paper's alpha (fp32), computed from the RMS before the rotation.
    intra_payload: payload of the first, intra-node level of a hierarchical collective (SDP4Bit's
        INT8 before INT4); empty means the same payload at both levels.
    difference: encode the difference to the last value sent (SDP4Bit's weights); only for a message
        that repeats every step, so only the role dp_weight accepts it.
    """

    payload: str = "int8"
    group: int = 128
    rotation: str = "signed"
    rotation_size: int = 0
    scale: str = "bf16"
    adaptive_scale: bool = False
    rounding: str = "nearest"
    intra_payload: str = ""
    difference: bool = False

    def __post_init__(self) -> None:
        _one_of("payload", self.payload, PAYLOADS, "these payloads have a wire format")
        _one_of("rotation", self.rotation, ROTATIONS, "these rotations are defined")
        _one_of("scale", self.scale, SCALES, "these scale formats have a wire format")
        _one_of("rounding", self.rounding, ROUNDINGS, "these roundings are defined")
        _one_of("intra_payload", self.intra_payload, ("", *PAYLOADS), "it is a payload or empty")
        for name, value in (("group", self.group), ("rotation_size", self.rotation_size or self.group)):
            require(
                isinstance(value, int) and value > 0 and value & (value - 1) == 0 and MIN_GROUP <= value <= MAX_GROUP,
                f"{name}={value!r}",
                f"a power of two from {MIN_GROUP} to {MAX_GROUP}",
                "the Hadamard transform and 16-byte sections are defined for those",
            )
        require(
            self.rotation_size <= self.group,
            f"rotation_size={self.rotation_size}",
            f"at most group={self.group}",
            "a rotation may not cross a group",
        )


@dataclass(frozen=True, kw_only=True)
class AsymmetricCodec(Codec):
    """Min/max quantisation per group: q = round((x - lo) / ((hi - lo) / (2^bits - 1))); `metadata` is the dtype of lo and step."""

    bits: int = 8
    group: int = 128
    metadata: Literal["fp16", "bf16", "fp32"] = "bf16"

    def __post_init__(self) -> None:
        _one_of("bits", self.bits, (4, 6, 8), "these widths have planes")
        _one_of("metadata", self.metadata, ("fp16", "bf16", "fp32"), "these formats have a wire format")
        require(
            self.group in (16, 32, 64, 128, 256, 512),
            f"group={self.group!r}",
            "a power of two, 16..512",
            "planes are 16-byte aligned",
        )


@dataclass(frozen=True, kw_only=True)
class TahQuantCodec(Codec):
    """TAH-Quant (arXiv 2506.01352): entropy-chosen INT3/INT4 tiles, pivot swap and Hadamard for spiky tiles.

    tile: consecutive channels; low_fraction: share of tiles (lowest entropy) that get INT3;
    pivot_ratio: a tile whose largest magnitude is at least this times its second is rotated.
    """

    tile: int = 64
    low_fraction: float = 0.2
    pivot_ratio: float = 2.0

    def __post_init__(self) -> None:
        _one_of("tile", self.tile, (32, 64), "the pivot index is sent in 6 bits")
        require(0 <= self.low_fraction <= 1, f"low_fraction={self.low_fraction}", "0..1", "it is a share of tiles")
        _positive("it is a ratio of magnitudes", pivot_ratio=self.pivot_ratio)


NONE = NoCodec()


# --- policy and parallelism -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which codec each role and direction uses. `min_bytes`: smaller messages (bytes before compression) go uncompressed.

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
        _at_least(0, "it is a size in bytes", min_bytes=self.min_bytes)
        _one_of(
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
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    virtual_tp: int = 1
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    microbatches: int = 1
    node_size: int = 0

    def __post_init__(self) -> None:
        _at_least(
            1,
            "it counts processes",
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            virtual_tp=self.virtual_tp,
            microbatches=self.microbatches,
        )
        _at_least(0, "it counts ranks", node_size=self.node_size)
        _one_of("schedule", self.schedule, ("1f1b", "interleaved"), "these schedules are supported")
        require(
            self.virtual_tp == 1 or self.tp == 1,
            f"virtual_tp={self.virtual_tp} with tp={self.tp}",
            "one of them to be 1",
            "virtual ranks replace real ones",
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
    """A decoder. `arch` 'gpt' is GPT-2/3 (learned positions, LayerNorm, GELU), 'qwen' is Qwen2.5 (RoPE, RMSNorm, SwiGLU, GQA, QKV bias).

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
        _one_of("arch", self.arch, ("gpt", "qwen"), "these architectures exist")
        _at_least(
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
    """Token source. `corpus` names a prepared corpus or is a path to a prepared folder; relative to the working directory."""

    corpus: str = "data/sotu-mini"
    seq: int = 128

    def __post_init__(self) -> None:
        _at_least(2, "a sample needs an input and a target", seq=self.seq)


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
        _at_least(1, "it is a count", steps=self.steps, batch=self.batch, eval_batches=self.eval_batches)
        _at_least(
            0,
            "it is a count of steps or sequences; 0 means off or all",
            micro_batch=self.micro_batch,
            warmup=self.warmup,
            eval_every=self.eval_every,
            checkpoint_every=self.checkpoint_every,
            monitor_every=self.monitor_every,
            seed=self.seed,
        )
        _positive("it is a rate or a time", lr=self.lr, clip=self.clip, timeout_s=self.timeout_s)
        _one_of("dtype", self.dtype, DTYPES, "training runs in these")


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


# --- to and from plain data -----------------------------------------------------------------------

CODEC_CLASSES = {c.__name__: c for c in (NoCodec, CastCodec, TensorCodec, GroupCodec, AsymmetricCodec, TahQuantCodec)}


def to_dict(config: Any) -> dict:
    """Plain JSON data of a configuration; codecs carry their class under 'type'."""
    if isinstance(config, Codec):
        return {"type": type(config).__name__, **asdict(config)}
    return {f.name: to_dict(v) if is_dataclass(v := getattr(config, f.name)) else v for f in fields(config)}


def _build(cls: type, data: dict, where: str) -> Any:
    known = {f.name for f in fields(cls)}
    unknown = sorted(set(data) - known)
    require(
        not unknown,
        f"unknown field {', '.join(unknown)} in {where}",
        f"fields among {', '.join(sorted(known))}",
        "a misspelt field would be ignored",
    )
    return cls(**data)


def codec_from_dict(data: dict) -> Codec:
    """Inverse of `to_dict` for a codec. Raises `ConfigError` for an unknown type or field."""
    kind = data.get("type")
    _one_of("codec type", kind, tuple(CODEC_CLASSES), "these codecs exist")
    return _build(CODEC_CLASSES[kind], {k: v for k, v in data.items() if k != "type"}, kind)


def run_from_dict(data: dict) -> Run:
    """Inverse of `to_dict` for a run. Raises `ConfigError` for an unknown field at any level."""
    data = dict(data)
    policy = {k: codec_from_dict(v) if isinstance(v, dict) else v for k, v in data.pop("policy", {}).items()}
    parts: dict[str, Any] = {"policy": _build(Policy, policy, "policy")}
    for name, cls in (("model", Model), ("parallel", Parallel), ("data", Data), ("train", Train)):
        if name in data:
            parts[name] = _build(cls, data.pop(name), name)
    return _build(Run, {**data, **parts}, "run")

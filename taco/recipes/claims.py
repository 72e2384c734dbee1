"""What the paper says in public texts, and how each statement is judged here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of the paper's public texts, and how it is judged here.

    threshold: the value (in `unit`) from which it holds.
    """

    id: str
    statement: str
    paper_value: str  # as published; "not published" where only the statement is public
    source: str  # abstract | README | code | ours, which the paper does not make
    experiment: str  # key of EXPERIMENTS, or "" if none measures it
    method: str  # what is compared, in words
    threshold: float
    unit: str


CLAIMS: tuple[Claim, ...] = (
    Claim(
        id="throughput",
        statement="End-to-end training throughput rises by up to 1.87x.",
        paper_value="up to 1.87x",
        source="abstract",
        experiment="scaling",
        method="largest tokens/s of taco over tokens/s of the uncompressed run of the same shape, on GPUs",
        threshold=1.87,
        unit="x",
    ),
    Claim(
        id="wire-bytes",
        statement="TACO sends 1.0625 bytes an element: 1.88x fewer than bfloat16.",
        paper_value="1 + 8/128 bytes",
        source="code",
        experiment="codec_fidelity",
        method="packet bytes of taco over bfloat16 bytes",
        threshold=1.88,
        unit="x",
    ),
    Claim(
        id="near-lossless",
        statement="Training with TACO is near-lossless.",
        paper_value="+0.25% validation loss",
        source="README",
        experiment="accuracy",
        method="mean change of validation loss of taco to the uncompressed runs of the same seeds, longest runs",
        threshold=0.25,
        unit="%",
    ),
    Claim(
        id="better-than-tahquant",
        statement="TAH-Quant on tensor-parallel traffic loses more accuracy than TACO.",
        paper_value="+2.88% against +0.25%",
        source="README",
        experiment="accuracy",
        method="mean change of validation loss of tahquant minus that of taco, outside the seeds' noise",
        threshold=0.0,
        unit="percentage points",
    ),
    Claim(
        id="near-zero",
        statement="Tensor-parallel tensors are dense, near-zero distributions.",
        paper_value="not published",
        source="abstract",
        experiment="distribution",
        method="median share of elements below 0.1 rms per role, against a normal distribution's 7.97%",
        threshold=0.0797,
        unit="share",
    ),
    Claim(
        id="hadamard",
        statement="The Hadamard transform improves the FP8 representation.",
        paper_value="not published",
        source="abstract",
        experiment="ablation",
        method="median SQNR of taco with the plain Hadamard minus without rotation, captured tensors",
        threshold=0.5,
        unit="dB",
    ),
    Claim(
        id="dual-scale",
        statement="Two scales per group (alpha before, s after the transform) represent better than one.",
        paper_value="not published",
        source="abstract",
        experiment="ablation",
        method="median SQNR of taco with alpha minus without, captured tensors",
        threshold=0.1,
        unit="dB",
    ),
    Claim(
        id="fp8-payload",
        statement="An FP8 payload keeps these tensors at least as well as an INT8 payload.",
        paper_value="implied by the payload",
        source="code",
        experiment="codec_fidelity",
        method="median SQNR of taco minus that of int8, captured tensors",
        threshold=0.0,
        unit="dB",
    ),
    Claim(
        id="error-growth",
        statement="Compression errors accumulate over layers and training steps.",
        paper_value="not published",
        source="abstract",
        experiment="accuracy",
        method="mean absolute change of training loss, taco to the same-seed baseline: last over first quarter, and "
        "beyond that of runs that differ by rounding alone",
        threshold=1.0,
        unit="x",
    ),
    Claim(
        id="high-tp",
        statement="The gain is larger at high tensor-parallel degree (4 and more).",
        paper_value="TP >= 4",
        source="README",
        experiment="scaling",
        method="speed-up of taco at TP >= 4 over that at TP 2, on GPUs",
        threshold=1.0,
        unit="x",
    ),
    Claim(
        id="three-d",
        statement="TP, DP and PP compression work together in one 3D-parallel scheme.",
        paper_value="not published",
        source="abstract",
        experiment="threed",
        method="change of validation loss with all three compressed, to the uncompressed run",
        threshold=0.25,
        unit="%",
    ),
    Claim(
        id="int8-loss",
        statement="Switched on halfway, INT8 packets of ours change the loss by less than a twentieth of a per cent.",
        paper_value="not published",
        source="ours",
        experiment="accuracy",
        method="mean change of validation loss of int8, runs that start from one checkpoint halfway",
        threshold=0.05,
        unit="%",
    ),
    Claim(
        id="fewest-bytes",
        statement="A policy sends 2.5 times fewer bytes than bfloat16 for at most 0.1% of the loss.",
        paper_value="not published",
        source="ours",
        experiment="accuracy",
        method="largest wire ratio of a policy with at most that mean change, runs that start from one checkpoint "
        "halfway",
        threshold=2.5,
        unit="x",
    ),
    Claim(
        id="fused-operator",
        statement="One fused operator: one launch to compress, one to decompress.",
        paper_value="1 + 1 launches",
        source="code",
        experiment="",
        method="kernel launches of one encode and one decode on a GPU",
        threshold=1.0,
        unit="launches",
    ),
    Claim(
        id="operator-speed",
        statement="The fused operator of this artifact runs near the speed of memory (goal ours).",
        paper_value="not published",
        source="abstract",
        experiment="codec_speed",
        method="smallest fraction of the rate of a copy of the same bytes, taco encode and decode, bf16 from 64 MiB on",
        threshold=0.92,
        unit="x",
    ),
    Claim(
        id="faster-than-released",
        statement="This artifact's taco kernel is faster than the authors' released one.",
        paper_value="not published",
        source="code",
        experiment="codec_speed",
        method="smallest time of the released kernel over ours at one size in one run, encode and decode",
        threshold=1.0,
        unit="x",
    ),
    Claim(
        id="all-reduce-nvlink",
        statement="Over NVLink our fused INT8 all-reduce of a large tensor halves the best uncompressed time.",
        paper_value="not published",
        source="ours",
        experiment="collective",
        method="smallest time of the fastest of NCCL and torch's symmetric memory over that of int8 fused, bf16, "
        "64 to 256 MiB",
        threshold=2.0,
        unit="x",
    ),
    Claim(
        id="all-reduce-host",
        statement="Through host memory our fused INT8 all-reduce of a large tensor is 1.75 times as fast as NCCL's.",
        paper_value="not published",
        source="ours",
        experiment="collective",
        method="smallest time of NCCL over that of int8 fused, bf16, 16 to 256 MiB",
        threshold=1.75,
        unit="x",
    ),
    Claim(
        id="all-reduce-tcp",
        statement="Over TCP INT8 packets halve the time of the all-reduce of a large tensor.",
        paper_value="not published",
        source="ours",
        experiment="collective",
        method="smallest time of NCCL over that of int8 unfused, bf16, 16 to 64 MiB",
        threshold=2.0,
        unit="x",
    ),
    Claim(
        id="never-slower",
        statement="On the paths that a measured table chooses no collective is slower than the best uncompressed one.",
        paper_value="not published",
        source="ours",
        experiment="collective",
        method="smallest time of the best uncompressed arm over that of the chosen path, every collective, size, codec",
        threshold=0.98,
        unit="x",
    ),
    Claim(
        id="rank-identical",
        statement="All ranks end our all-reduce and all-gather with the same bits.",
        paper_value="not published",
        source="ours",
        experiment="collective",
        method="bitwise comparison of the ranks' results of the timed calls, fused and unfused, every size and codec",
        threshold=1.0,
        unit="share of timed collectives",
    ),
    Claim(
        id="rank-identity",
        statement="All ranks end a compressed all-reduce with identical tensors.",
        paper_value="implied",
        source="code",
        experiment="correctness",
        method="bitwise comparison of the ranks' results, the authors' published semantics",
        threshold=1.0,
        unit="share of checks passed",
    ),
    Claim(
        id="non-finite",
        statement="NaN and Inf reach the receiver.",
        paper_value="implied",
        source="code",
        experiment="correctness",
        method="decoded NaN and Inf, the authors' published semantics",
        threshold=1.0,
        unit="share of checks passed",
    ),
    Claim(
        id="tails",
        statement="A tail shorter than the group is coded as exactly as a full group.",
        paper_value="implied",
        source="code",
        experiment="correctness",
        method="SQNR of tail groups, the authors' published semantics",
        threshold=1.0,
        unit="share of checks passed",
    ),
)

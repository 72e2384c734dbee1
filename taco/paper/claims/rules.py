"""The verdict on each claim, from the numbers of the tables. One rule per claim of taco.recipes.CLAIMS."""

from __future__ import annotations

import math
from collections.abc import Callable

from taco.paper.claims import collective, speed, training
from taco.paper.claims.verdict import UNTESTABLE, Tables, Verdict, absent, finite, judged
from taco.paper.table import Cells, number
from taco.paper.tables.load import mean, median
from taco.recipes.claims import Claim
from taco.recipes.queue import STRESS

# --- speed and bytes --------------------------------------------------------------------------------


def _speed_words(row: Cells) -> str:
    return (
        f"{number(row['speedup']):.2f}x at TP{row['tp']} PP{row['pp']} DP{row['dp']} of {row['model']} over "
        f"{row['transport']} with a wire "
        f"ratio k={number(row['wire_ratio']):.2f}; fewer bytes alone allow {number(row['amdahl_bound']):.2f}x there"
    )


def throughput(claim: Claim, tables: Tables) -> Verdict:
    """The largest speed-up of taco on GPUs; CPU processes share two cores, so their ratio is told but not judged.

    "Up to" is reached or it is not: other shapes, links and implementations than ours may still reach it.
    """
    rows = finite([r for r in tables.rows("scaling", codec="taco") if number(r["world_size"]) > 1], "speedup")
    if not rows:
        return absent("compressed run with an uncompressed one of the same shape")
    gpu = [r for r in rows if r["device"] != "cpu"]
    best = max(gpu or rows, key=lambda r: number(r["speedup"]))
    value, words = number(best["speedup"]), _speed_words(best)
    if not gpu:
        return Verdict(
            UNTESTABLE, f"throughput needs GPUs; the largest ratio of CPU processes is {words}", value, [best]
        )
    if value < claim.threshold:
        return Verdict(UNTESTABLE, f"not reached on the shapes measured: the largest ratio is {words}", value, [best])
    return judged(True, value, f"the largest ratio is {words}", [best])


def high_tp(claim: Claim, tables: Tables) -> Verdict:
    """Speed-up at TP >= 4 over that at TP 2, nothing else in the grid, the best model that has both."""
    rows = finite(tables.rows("scaling", codec="taco", pp="1", dp="1"), "speedup")
    gpu = [r for r in rows if r["device"] != "cpu"]
    pairs = [(high, low) for high in gpu for low in gpu if low["tp"] == "2"]
    pairs = [(high, low) for high, low in pairs if all(high[k] == low[k] for k in ("model", "link"))]
    pairs = [(high, low) for high, low in pairs if number(high["tp"]) >= 4]
    if not pairs:
        return Verdict(
            UNTESTABLE, "needs runs at TP 2 and at TP 4 or more on GPUs; this source has none", math.nan, rows
        )
    high, low = max(pairs, key=lambda p: number(p[0]["speedup"]) / number(p[1]["speedup"]))
    value = number(high["speedup"]) / number(low["speedup"])
    words = f"{_speed_words(high)}, against {number(low['speedup']):.2f}x at TP2"
    return judged(value > claim.threshold, value, words, [high, low])


def wire_bytes(claim: Claim, tables: Tables) -> Verdict:
    """Packet size of taco over bfloat16."""
    rows = tables.rows("codec_fidelity", codec="taco", label="ours")
    if not rows:
        return absent("codec_fidelity row of taco")
    value = median(r["ratio_to_bf16"] for r in rows)
    size = median(r["bytes_per_element"] for r in rows)
    return judged(value >= claim.threshold, value, f"{size:.4f} bytes an element, scales included", rows)


def fused_operator(claim: Claim, tables: Tables) -> Verdict:
    """No experiment counts kernel launches."""
    return Verdict(UNTESTABLE, "launches are counted on a GPU; no experiment of this source does")


# --- what tensors look like and what codecs keep ------------------------------------------------------


def near_zero(claim: Claim, tables: Tables) -> Verdict:
    """The role with the smaller median share of near-zero elements decides, in training as it is."""
    rows = [r for r in tables.rows("distribution", part="tensor") if r.get("run") not in STRESS]
    roles = sorted({r["role"] for r in rows})
    if not rows:
        return absent("captured tensor")
    shares = {role: median(r["near_zero_fraction"] for r in rows if r["role"] == role) for role in roles}
    sizes = {role: median(r["rms"] for r in rows if r["role"] == role) for role in roles}
    words = "; ".join(
        f"{role}: {100 * shares[role]:.1f}% of the elements, median rms {sizes[role]:.1e}" for role in roles
    )
    value = min(shares.values())
    return judged(value > claim.threshold, value, words, rows)


def _gain(rows: list[Cells], key: str, better: str, worse: str) -> tuple[float, list[Cells]]:
    """Median SQNR difference in dB between two values of column `key`, over the captured steps and roles of training as
    it is that have both."""
    found: dict[tuple, dict[str, Cells]] = {}
    for r in finite([r for r in rows if r["role"] and r["dataset"] not in STRESS], "sqnr_db"):
        found.setdefault((r["dataset"], r.get("step"), r["role"]), {})[r[key]] = r
    pairs = [pair for pair in found.values() if better in pair and worse in pair]
    value = median(number(p[better]["sqnr_db"]) - number(p[worse]["sqnr_db"]) for p in pairs)
    return value, [p[v] for p in pairs for v in (better, worse)]


def _ablated(axis: str, better: str, worse: str, words: str) -> Callable[[Claim, Tables], Verdict]:
    """The rule for one field of the paper's codec: what its value adds on captured tensors."""

    def rule(claim: Claim, tables: Tables) -> Verdict:
        value, rows = _gain(tables.rows("ablation", part="sqnr", base="taco", axis=axis), "value", better, worse)
        if not rows:
            return absent(f"ablation of {axis} on captured tensors")
        return judged(value >= claim.threshold, value, f"{words} {value:+.2f} dB of SQNR on captured tensors", rows)

    return rule


def fp8_payload(claim: Claim, tables: Tables) -> Verdict:
    """SQNR of taco against the integer codec that sends fewer bytes."""
    rows = [
        r for r in tables.rows("codec_fidelity", label="ours", tensors="captured") if r["codec"] in ("taco", "int8")
    ]
    value, used = _gain(rows, "codec", "taco", "int8")
    if not used:
        return absent("captured tensor coded by taco and by int8")
    sizes = {c: median(r["bytes_per_element"] for r in used if r["codec"] == c) for c in ("taco", "int8")}
    words = (
        f"taco keeps {value:+.1f} dB against int8, at {sizes['taco']:.4f} against {sizes['int8']:.4f} bytes an element"
    )
    return judged(value > claim.threshold, value, words, used)


# --- what the released code does ----------------------------------------------------------------------


def _released(keyword: str) -> Callable[[Claim, Tables], Verdict]:
    """The rule for a check of the authors' published semantics: the share of its rows that pass."""

    def rule(claim: Claim, tables: Tables) -> Verdict:
        rows = [r for r in tables.rows("correctness", label="authors-code") if keyword in r["rule"]]
        if not rows:
            return absent(f"check of the published semantics for {keyword}")
        value = mean(r["passed"] == "true" for r in rows)
        failed = [r["detail"] for r in rows if r["passed"] != "true"]
        return judged(value >= claim.threshold, value, "; ".join(failed or [r["detail"] for r in rows]), rows)

    return rule


RULES: dict[str, Callable[[Claim, Tables], Verdict]] = {
    "throughput": throughput,
    "wire-bytes": wire_bytes,
    "near-lossless": training.near_lossless,
    "better-than-tahquant": training.better_than_tahquant,
    "near-zero": near_zero,
    "hadamard": _ablated("rotation", "hadamard", "none", "the plain Hadamard adds"),
    "dual-scale": _ablated("adaptive_scale", "true", "false", "alpha adds"),
    "fp8-payload": fp8_payload,
    "error-growth": training.error_growth,
    "high-tp": high_tp,
    "three-d": training.three_d,
    "int8-loss": training.int8_loss,
    "fewest-bytes": training.fewest_bytes,
    "fused-operator": fused_operator,
    "operator-speed": speed.operator_speed,
    "faster-than-released": speed.faster_than_released,
    "all-reduce-nvlink": collective.all_reduce("nvlink"),
    "all-reduce-host": collective.all_reduce("host"),
    "all-reduce-tcp": collective.all_reduce("tcp"),
    "never-slower": collective.never_slower,
    "rank-identical": collective.rank_identical,
    "rank-identity": _released("rank-identity"),
    "non-finite": _released("non-finite"),
    "tails": _released("tail"),
}

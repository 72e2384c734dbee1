"""The verdict on each claim, from the numbers of the tables. One rule per claim of taco.recipes.CLAIMS."""

from __future__ import annotations

import math
from collections.abc import Callable

from taco.paper.claims import collective, speed
from taco.paper.claims.verdict import FAILS, UNTESTABLE, Tables, Verdict, absent, finite, judged
from taco.paper.table import Cells, number
from taco.paper.tables.load import mean, median
from taco.recipes.claims import Claim
from taco.recipes.queue import STRESS

# a loss that moves by tenths of a percent is compared over this many seeds at least
MIN_SEEDS = 3


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


# --- accuracy ---------------------------------------------------------------------------------------


PAIRED = ("model", "tp", "corpus", "planned_tokens", "seed")
"""Columns in which two runs of `accuracy` agree that are compared."""


def _band(rows: list[Cells]) -> float:
    """The larger of what another seed and what rounding alone do to the loss."""
    columns = ("noise_band_pct", "control_band_pct")
    return max((number(r[c]) for c in columns for r in finite(rows, c)), default=math.nan)


def _band_words(band: float) -> str:
    words = f"seeds or rounding alone change it by {band:.2f}%"
    return "no second seed or control gives a noise band" if math.isnan(band) else words


def _judge_losses(ok: bool, value: float, words: str, rows: list[Cells]) -> Verdict:
    """Losses move by fractions of a percent for any reason: a verdict needs enough seeds."""
    seeds = len({r["seed"] for r in rows})
    if seeds < MIN_SEEDS:
        return Verdict(UNTESTABLE, f"{words}; {seeds} of the {MIN_SEEDS} seeds that a verdict needs", value, rows)
    return judged(ok, value, words, rows)


def _diverged(rows: list[Cells], plain: list[Cells]) -> Verdict | None:
    """The verdict where compressed runs (`rows`) end without a finite loss: they have no change to judge, and the
    others' changes do not make up for it. plain: the uncompressed runs of the same experiment."""
    lost = [r for r in rows if not math.isfinite(number(r["val_loss"]))]
    words = f"{len(lost)} of {len(rows)} compressed runs end without a finite loss"
    if lost and len(finite(plain, "val_loss")) < len(plain):
        return Verdict(UNTESTABLE, words + ", and so do uncompressed ones", math.nan, lost)
    return Verdict(FAILS, words, math.nan, lost) if lost else None


def _trained(tables: Tables, **wanted: str) -> list[Cells]:
    """The accuracy table's runs of training as it is, under one policy from its first step."""
    rows = tables.rows("accuracy", part="final", **wanted)
    return [r for r in rows if r["log"] not in STRESS and r.get("shared_tokens") in (None, "", "0")]


def near_lossless(claim: Claim, tables: Tables) -> Verdict:
    """Mean change of the validation loss over the seeds of the longest runs, of the model and grid where it is largest.

    Short runs have not learned what compression could spoil. Above the threshold but inside the noise of runs as long
    nothing can be said.
    """
    runs, plain = (_trained(tables, codec=codec) for codec in ("taco", "none"))
    if diverged := _diverged(runs, plain):
        return diverged
    rows = finite(runs, "delta_pct")
    if not rows:
        return absent("run of taco with its uncompressed twin")
    longest = max(number(r["planned_tokens"]) for r in rows)
    settings: dict[tuple, list[Cells]] = {}
    for r in rows:
        if number(r["planned_tokens"]) == longest:
            settings.setdefault((r["model"], r["tp"], r["corpus"]), []).append(r)
    found = max(settings.values(), key=lambda group: mean(r["delta_pct"] for r in group))
    value, band = mean(r["delta_pct"] for r in found), _band(found)
    pairs = "1 pair" if len(found) == 1 else f"{len(found)} pairs"
    words = f"mean change {value:+.3f}% over {pairs} of runs of {longest / 1e6:.1f} M tokens; {_band_words(band)}"
    if claim.threshold < value <= band:
        return Verdict(UNTESTABLE, words + ", more than the change", value, found)
    return _judge_losses(value <= claim.threshold, value, words, found)


def better_than_tahquant(claim: Claim, tables: Tables) -> Verdict:
    """Mean difference of the two changes; it must leave the seeds' noise to be a verdict."""
    runs = finite(_trained(tables), "delta_pct")
    taco, tah = ({tuple(r[k] for k in PAIRED): r for r in runs if r["codec"] == c} for c in ("taco", "tahquant"))
    shared = sorted(set(taco) & set(tah))
    if not shared:
        return absent("pair of runs with taco and tahquant")
    rows = [side[key] for key in shared for side in (taco, tah)]
    value = mean(number(tah[key]["delta_pct"]) - number(taco[key]["delta_pct"]) for key in shared)
    band = _band(rows)
    words = f"tahquant changes the loss by {value:+.3f} percentage points more than taco; {_band_words(band)}"
    if not abs(value) > band:
        return Verdict(UNTESTABLE, words + ", so the difference is not resolved", value, rows)
    return judged(value > claim.threshold, value, words, rows)


def error_growth(claim: Claim, tables: Tables) -> Verdict:
    """Growth of the training loss's distance to the baseline over the steps of training, in the longest runs that have
    controls. These drift apart, too, and further in longer runs: only a distance beyond theirs is the codec's."""
    ours, plain = (finite(_trained(tables, codec=c), "last_quarter_pct") for c in ("taco", "none"))
    ours = [r for r in ours if number(r["first_quarter_pct"]) > 0]
    if not ours:
        return absent("training curve of taco with its uncompressed twin")
    both = {r["planned_tokens"] for r in ours} & {r["planned_tokens"] for r in plain}
    longest = max(both or {r["planned_tokens"] for r in ours}, key=number)
    rows, controls = ([r for r in found if r["planned_tokens"] == longest] for found in (ours, plain))
    value = median(number(r["last_quarter_pct"]) / number(r["first_quarter_pct"]) for r in rows)
    words = (
        f"in runs of {number(longest) / 1e6:.1f} M tokens the distance of the training loss to the baseline is "
        f"{value:.1f} times as large in the last quarter as in the first; this is over steps, layers are not separated"
    )
    if not controls:
        return Verdict(UNTESTABLE, f"{words}; no control says how far rounding alone drives runs apart", value, rows)
    last, chance = median(r["last_quarter_pct"] for r in rows), max(number(r["last_quarter_pct"]) for r in controls)
    words += f"; {last:.2f}% away in the last quarter, where rounding alone leads up to {chance:.2f}% away"
    if value > claim.threshold and last <= chance:
        return Verdict(UNTESTABLE, words, value, rows)
    return _judge_losses(value > claim.threshold, value, words, rows)


def three_d(claim: Claim, tables: Tables) -> Verdict:
    """Change of the validation loss with TP, DP and PP compressed at once."""
    runs, plain = (tables.rows("threed", compressed=axes) for axes in ("tp+dp+pp", "none"))
    if diverged := _diverged(runs, plain):
        return diverged
    rows = finite(runs, "delta_pct")
    if not rows:
        return absent("run with TP, DP and PP compressed and its uncompressed twin")
    worst = max(rows, key=lambda r: number(r["delta_pct"]))
    value = number(worst["delta_pct"])
    words = f"it trains; largest change {value:+.3f}% at {number(worst['wire_ratio']):.2f} times fewer bytes"
    return _judge_losses(value <= claim.threshold, value, words, rows)


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
    "near-lossless": near_lossless,
    "better-than-tahquant": better_than_tahquant,
    "near-zero": near_zero,
    "hadamard": _ablated("rotation", "hadamard", "none", "the plain Hadamard adds"),
    "dual-scale": _ablated("adaptive_scale", "true", "false", "alpha adds"),
    "fp8-payload": fp8_payload,
    "error-growth": error_growth,
    "high-tp": high_tp,
    "three-d": three_d,
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

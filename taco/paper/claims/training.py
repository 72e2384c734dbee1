"""The claims about training: what compression does to the loss, over steps, and on three axes at once."""

from __future__ import annotations

import math

from taco.paper.claims.verdict import FAILS, UNTESTABLE, Tables, Verdict, absent, finite, judged
from taco.paper.table import Cells, number
from taco.paper.tables.load import mean, median
from taco.recipes.claims import Claim
from taco.recipes.queue import STRESS

MIN_SEEDS = 3
"""A loss that moves by tenths of a percent is compared over this many seeds at least."""

SETTING = ("model", "tp", "corpus", "planned_tokens")
PAIRED = (*SETTING, "seed")
"""Columns in which two runs of `accuracy` agree that are compared."""

LITTLE = 0.1
"""% of the loss that a policy with few bytes may cost (claim `fewest-bytes`)."""


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


def _forks(tables: Tables, **wanted: str) -> list[Cells]:
    """Its runs that share an uncompressed first part and have a change to an uncompressed fork, or diverge."""
    rows = tables.rows("accuracy", part="final", **wanted)
    forks = [r for r in rows if r["log"] not in STRESS and number(r.get("shared_tokens") or "0") > 0]
    return [r for r in forks if not (math.isnan(number(r["delta_pct"])) and math.isfinite(number(r["val_loss"])))]


def _fork_words(rows: list[Cells]) -> str:
    """The largest mean change of forks in words, with how far rounding alone moves them; '' without forks."""
    if not rows:
        return ""
    found = _worst(rows)
    first, seeds = found[0], len({r["seed"] for r in found})
    shared, whole = (number(first[k]) / 1e6 for k in ("shared_tokens", "planned_tokens"))
    return (
        f"switched on after {shared:.1f} of {whole:.1f} M tokens of {first['model']} on {first['corpus']} it changes "
        f"the loss by {_mean_change(found):+.3f}% ({seeds} seed{'s' if seeds > 1 else ''}; rounding alone "
        f"{_chance(found):.3f}%)"
    )


def _chance(rows: list[Cells]) -> float:
    return max((number(r["control_band_pct"]) for r in finite(rows, "control_band_pct")), default=math.nan)


def _mean_change(rows: list[Cells]) -> float:
    """Infinite where a run ends without a finite loss."""
    diverged = any(not math.isfinite(number(r["val_loss"])) for r in rows)
    return math.inf if diverged else mean(r["delta_pct"] for r in rows)


def _worst(rows: list[Cells]) -> list[Cells]:
    """Those of the model, grid, text and budget where the mean change is largest."""
    settings: dict[tuple, list[Cells]] = {}
    for r in rows:
        settings.setdefault((*(r[k] for k in SETTING), r.get("shared_tokens")), []).append(r)
    return max(settings.values(), key=_mean_change)


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
    found = _worst([r for r in rows if number(r["planned_tokens"]) == longest])
    value, band = _mean_change(found), _band(found)
    pairs = "1 pair" if len(found) == 1 else f"{len(found)} pairs"
    words = f"mean change {value:+.3f}% over {pairs} of runs of {longest / 1e6:.1f} M tokens; {_band_words(band)}"
    if later := _fork_words(_forks(tables, codec="taco")):
        words += f"; {later}"
    if claim.threshold < value <= band:
        return Verdict(UNTESTABLE, words + "; the change is within that of chance", value, found)
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


def _depth_words(tables: Tables) -> str:
    """How an error grows over blocks in words, median over the runs of taco that say; '' where none does."""
    ends: dict[str, list[float]] = {"tp_forward": [], "tp_backward": []}
    for role, growth in ends.items():
        runs: dict[str, list[Cells]] = {}
        for r in tables.rows("pareto", part="depth", codec="taco", role=role):
            if not STRESS.intersection(r["log"].split("; ")):
                runs.setdefault(r["log"], []).append(r)
        for rows in runs.values():
            first, last = (number(pick(rows, key=lambda r: number(r["layer"]))["error"]) for pick in (min, max))
            growth.append(last / first if role == "tp_forward" else first / last)
    if not all(ends.values()):
        return ", over steps; layers are not separated"
    forward, backward = (median(growth) for growth in ends.values())
    return (
        f"; over layers the states' error grows {forward:.1f} times from the first block to the last, the gradients' "
        f"{backward:.1f} times from the last to the first"
    )


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
        f"{value:.1f} times as large in the last quarter as in the first{_depth_words(tables)}"
    )
    if not controls:
        return Verdict(UNTESTABLE, f"{words}; no control says how far rounding alone drives runs apart", value, rows)
    last, chance = median(r["last_quarter_pct"] for r in rows), max(number(r["last_quarter_pct"]) for r in controls)
    words += f"; {last:.2f}% away in the last quarter, where rounding alone leads up to {chance:.2f}% away"
    if value > claim.threshold and last <= chance:
        return Verdict(UNTESTABLE, words, value, rows)
    return _judge_losses(value > claim.threshold, value, words, rows)


def int8_loss(claim: Claim, tables: Tables) -> Verdict:
    """Mean change of forks with int8, of the model, grid and text where it is largest, if all have enough seeds; chance
    has to be smaller than what the claim allows."""
    rows = _forks(tables, codec="int8")
    if not rows:
        return absent("fork with int8 and its uncompressed twin")
    found = _worst(rows)
    value = _mean_change(found)
    if not _chance(found) <= claim.threshold:
        return Verdict(UNTESTABLE, _fork_words(rows), value, found)
    return _judge_losses(value <= claim.threshold, value, _fork_words(rows), rows)


def fewest_bytes(claim: Claim, tables: Tables) -> Verdict:
    """The largest wire ratio of a policy that costs forks no more than `LITTLE` on any model and text, over enough
    seeds; one over fewer seeds that would do leaves the claim open."""
    policies: dict[str, list[Cells]] = {}
    for r in _forks(tables):
        if r["codec"] != "none" and r.get("dtype") != "float32":  # whose ratio is twice that to bfloat16
            policies.setdefault(r["codec"], []).append(r)
    cheap = [rows for rows in policies.values() if _mean_change(_worst(rows)) <= LITTLE]
    if not cheap:
        return absent(f"policy whose forks end within {LITTLE}% of the uncompressed ones")
    known = [rows for rows in cheap if len({r["seed"] for r in rows}) >= MIN_SEEDS]
    best = max(known or cheap, key=_ratio)
    if known and _ratio(best) < claim.threshold:
        best = max(cheap, key=_ratio)
    value = _ratio(best)
    words = f"{best[0]['codec']} sends {value:.2f} times fewer bytes; {_fork_words(best)}"
    return _judge_losses(value >= claim.threshold, value, words, best)


def _ratio(rows: list[Cells]) -> float:
    return min(number(r["wire_ratio"]) for r in rows)


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

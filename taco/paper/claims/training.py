"""The claims about training: what compression does to the loss, over steps, and on three axes at once."""

from __future__ import annotations

import math
from dataclasses import replace

from taco.paper.claims.verdict import FAILS, HOLDS, UNTESTABLE, Tables, Verdict, absent, finite, judged
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
    """The mean change of forks of one setting in words, with how far rounding alone moves them."""
    first, seeds, chance = rows[0], len({r["seed"] for r in rows}), _chance(rows)
    shared, whole = (number(first[k]) / 1e6 for k in ("shared_tokens", "planned_tokens"))
    beside = "no control" if math.isnan(chance) else f"rounding alone {chance:.3f}%"
    return (
        f"switched on after {shared:.1f} of {whole:.1f} M tokens of {first['model']} on {first['corpus']} it changes "
        f"the loss by {_mean_change(rows):+.3f}% ({seeds} seed{'s' if seeds > 1 else ''}; {beside})"
    )


def _chance(rows: list[Cells]) -> float:
    return max((number(r["control_band_pct"]) for r in finite(rows, "control_band_pct")), default=math.nan)


def _mean_change(rows: list[Cells]) -> float:
    """Infinite where a run ends without a finite loss."""
    diverged = any(not math.isfinite(number(r["val_loss"])) for r in rows)
    return math.inf if diverged else mean(r["delta_pct"] for r in rows)


def _settings(rows: list[Cells]) -> list[list[Cells]]:
    """The rows by model, grid, text, tokens and tokens shared."""
    found: dict[tuple, list[Cells]] = {}
    for r in rows:
        found.setdefault((*(r[k] for k in SETTING), r.get("shared_tokens")), []).append(r)
    return list(found.values())


def _worst(rows: list[Cells]) -> list[Cells]:
    """Those of the setting where the mean change is largest."""
    return max(_settings(rows), key=_mean_change)


def _judge_forks(rows: list[Cells], limit: float) -> Verdict:
    """Whether a policy's forks stay within `limit`, by the worst setting that has enough seeds and controls that stay
    within it, too. One that cannot be judged and is beyond the limit leaves the question open."""
    known = [
        found for found in _settings(rows)
        if len({r["seed"] for r in found}) >= MIN_SEEDS and _chance(found) <= limit
    ]  # fmt: skip
    worst = _worst(rows)
    if not known or (worst not in known and _mean_change(worst) > limit):
        words = f"{_fork_words(worst)}; a verdict needs {MIN_SEEDS} seeds and controls within {limit:g}%"
        return Verdict(UNTESTABLE, words, _mean_change(worst), worst)
    worst = max(known, key=_mean_change)
    return judged(_mean_change(worst) <= limit, _mean_change(worst), _fork_words(worst), worst)


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
    verdict = _judge_losses(value <= claim.threshold, value, words, found)
    if claim.threshold < value <= band:
        verdict = Verdict(UNTESTABLE, words + ", more than the change", value, found)
    forks = _forks(tables, codec="taco")
    return replace(verdict, reason=f"{verdict.reason}. Beside it: {_fork_words(_worst(forks))}") if forks else verdict


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


def _depth_words(tables: Tables, tokens: str) -> str:
    """How an error grows over blocks in whole runs of so many tokens, with that of rounding; '' where none says."""
    grown = {
        (codec, role): _growth(tables.rows("pareto", part="depth", codec=codec, role=role, planned_tokens=tokens))
        for codec in ("taco", "rounding")
        for role in ("tp_forward", "tp_backward")
    }
    if any(math.isnan(each) for each in grown.values()):
        return ", over steps; layers are not separated"
    there, back, plain_there, plain_back = grown.values()
    return (
        f"; over layers the states' error grows {there:.1f} times from the first block to the last, the gradients' "
        f"{1 / back:.1f} times from the last to the first (that of rounding {plain_there:.1f} and {1 / plain_back:.1f})"
    )


def _growth(rows: list[Cells]) -> float:
    """The error behind the last block over that behind the first, median over the runs from the first step."""
    whole = [r for r in rows if r["shared_tokens"] == "0" and not STRESS.intersection(r["log"].split("; "))]
    ratios = []
    for log in dict.fromkeys(r["log"] for r in whole):
        mine = sorted((r for r in whole if r["log"] == log), key=lambda r: number(r["layer"]))
        first, last = number(mine[0]["error"]), number(mine[-1]["error"])
        ratios.append(last / first if first and last else math.nan)
    return median(ratios)


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
        f"{value:.1f} times as large in the last quarter as in the first{_depth_words(tables, longest)}"
    )
    if not controls:
        return Verdict(UNTESTABLE, f"{words}; no control says how far rounding alone drives runs apart", value, rows)
    last, chance = median(r["last_quarter_pct"] for r in rows), max(number(r["last_quarter_pct"]) for r in controls)
    words += f"; {last:.2f}% away in the last quarter, where rounding alone leads up to {chance:.2f}% away"
    if value > claim.threshold and last <= chance:
        return Verdict(UNTESTABLE, words, value, rows)
    return _judge_losses(value > claim.threshold, value, words, rows)


def int8_loss(claim: Claim, tables: Tables) -> Verdict:
    """Mean change of forks with int8."""
    rows = _forks(tables, codec="int8")
    return _judge_forks(rows, claim.threshold) if rows else absent("fork with int8 and its uncompressed twin")


def fewest_bytes(claim: Claim, tables: Tables) -> Verdict:
    """The largest wire ratio of a policy whose forks cost no more than `LITTLE`. One that would do and cannot be judged
    yet leaves the claim open."""
    policies: dict[str, list[Cells]] = {}
    for r in _forks(tables):
        if r["codec"] != "none" and r.get("dtype") != "float32":  # whose ratio is twice that to bfloat16
            policies.setdefault(r["codec"], []).append(r)
    verdicts = {codec: _judge_forks(rows, LITTLE) for codec, rows in policies.items()}
    cheap = [codec for codec, found in verdicts.items() if found.value <= LITTLE]
    if not cheap:
        return absent(f"policy whose forks end within {LITTLE}% of the uncompressed ones")

    def worth(codec: str) -> tuple[bool, bool, float]:
        ratio = _ratio(policies[codec])
        return ratio >= claim.threshold, verdicts[codec].verdict == HOLDS, ratio

    best = max(cheap, key=worth)
    enough, known, value = worth(best)
    words = f"{best} sends {value:.2f} times fewer bytes; {verdicts[best].reason}"
    return judged(enough, value, words, policies[best]) if known else Verdict(UNTESTABLE, words, value, policies[best])


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

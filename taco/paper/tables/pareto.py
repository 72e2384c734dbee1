"""The table of pareto: per policy, what it costs in loss and saves in bytes over its pairs of runs; errors by depth.

A pair is a compressed run and the uncompressed one of the same model, grid, data, schedule and seed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from taco.paper.table import Row, distinct, number
from taco.paper.tables.load import PROVENANCE, Logs, mean, median, missing
from taco.paper.tables.pairs import (
    baseline,
    change_pct,
    control_band_pct,
    control_changes_pct,
    delta_pct,
    noise_band_pct,
    uncompressed_pct,
)
from taco.paper.tables.summary import AXES, Summary, place_order, summaries

PARETO = (
    "part", "model", "tp", "codec", "dtype", "corpus", "planned_tokens", "shared_tokens", "tokens", "seeds", "pairs",
    "val_loss",
    "delta_pct", "delta_low_pct", "delta_high_pct", "delta_to_all_pct", "delta_uncompressed_pct",
    "control_band_pct", "controls", "noise_band_pct", "within_band", "wire_ratio", "sqnr_forward_db",
    "sqnr_backward_db", "val_accuracy", "accuracy_change_points", "other_corpus", "other_loss", "other_delta_pct",
    "same_continuation", "role", "layer", "error", *PROVENANCE,
)  # fmt: skip

Pairs = list[tuple[Summary, Summary]]


def pareto(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """Part `policy`: one row per model, grid, data, budget and policy, means over its pairs.

    delta_low_pct, delta_high_pct: the smallest and the largest change of a pair. delta_to_all_pct: change to the mean
    of the baseline and its controls, which a baseline that is low by chance moves less. delta_uncompressed_pct: change
    when the policy's weights are judged with messages as they are, without the errors of that pass. controls: how many
    uncompressed runs control_band_pct rests on. within_band: whether the mean change is no larger than the wider of
    the controls' and the seeds' band, as in the claims. same_continuation: share of the tokens that continue the
    held-out prompts up to the first that differs from the uncompressed run's.
    Part `depth`: error of the states behind each block and of their gradients, to those of the same weights
    uncompressed, as root of the mean square over the policy's runs; the codec `rounding` is none, with sums rounded
    after each addition, over all runs. Part `sensitivity`: error of the gradient with the
    named codec in one block (-1: embedding and head) and direction alone, over the runs that were probed. Uncompressed
    runs without codec have no other rows of their own; runs without a log keep theirs.
    """
    runs = summaries(logs)
    groups: dict[tuple, list[Summary]] = {}
    for run in runs:
        if run.log and run.compressed:
            groups.setdefault((run.key(seed=False), run.tp_codec), []).append(run)
    rows = [_policy(group, runs) for group in groups.values()]
    alike: dict[str, list[Summary]] = {}
    for run in runs:
        if run.log:
            alike.setdefault(run.key(seed=False), []).append(run)
    depths = [row for group in groups.values() for row in _errors(group, "depth", own=True)]
    depths += [row for group in alike.values() for row in _errors(group, "depth", own=False)]
    probes = [row for group in alike.values() for row in _errors(group, "sensitivity", own=False)]
    absent = [{"part": "policy", **_who(r), **missing(r.name, r.seed)} for r in runs if not r.log]
    return PARETO, [row for part in (rows + absent, depths, probes) for row in sorted(part, key=_order)]


def _order(row: Row) -> tuple:
    return *place_order(row), row["status"] == "missing", row.get("role", ""), row.get("layer", 0), row["log"]


def _who(run: Summary) -> Row:
    return {
        "model": run.model, "tp": run.ways, "codec": run.tp_codec, "dtype": run.config["train"]["dtype"],
        "corpus": run.corpus, "planned_tokens": run.planned_tokens, "shared_tokens": run.shared_tokens,
    }  # fmt: skip


def _provenance(group: list[Summary]) -> Row:
    each = [run.provenance() for run in group]
    return {column: distinct(row.get(column) for row in each) for column in PROVENANCE}


def _policy(group: list[Summary], runs: list[Summary]) -> Row:
    pairs = [(run, base) for run in group if (base := baseline(run, runs)) is not None]
    changes = [delta_pct(run, base) for run, base in pairs]
    low, high = (min(changes), max(changes)) if changes else (math.nan, math.nan)
    controls, band, noise = (f(group[0], runs) for f in (control_changes_pct, control_band_pct, noise_band_pct))
    limit = max((value for value in (band, noise) if not math.isnan(value)), default=math.nan)
    change = mean(changes)
    known = not math.isnan(change) and not math.isnan(limit)
    return {
        "part": "policy", **_who(group[0]), "tokens": max(run.tokens or 0 for run in group),
        "seeds": len({run.seed for run in group}), "pairs": len(pairs), "val_loss": mean(run.val_loss for run in group),
        "delta_pct": change, "delta_low_pct": low, "delta_high_pct": high,
        "delta_to_all_pct": mean(_to_all(run, base, runs) for run, base in pairs),
        "delta_uncompressed_pct": mean(uncompressed_pct(run, base) for run, base in pairs), "control_band_pct": band,
        "controls": len(controls), "noise_band_pct": noise, "within_band": change <= limit if known else None,
        "wire_ratio": mean(run.wire_ratio(*AXES["tp"]) for run in group),
        **{f"sqnr_{role.removeprefix('tp_')}_db": _sqnr(group, role) for role in AXES["tp"]}, **_beside(group, pairs),
        **_provenance(group),
    }  # fmt: skip


def _to_all(run: Summary, base: Summary, runs: list[Summary]) -> float:
    """Change of the loss to the mean of all uncompressed runs of the pair's seed."""
    changes = control_changes_pct(run, [r for r in runs if r.seed == run.seed])
    return change_pct(run.val_loss, base.val_loss * (1 + sum(changes) / (100 * (len(changes) + 1))))


def _sqnr(group: list[Summary], role: str) -> float:
    """Median over the messages of the last step that was watched, and over runs; NaN where none was."""
    found = []
    for run in group:
        records = [r for r in run.log.of("sqnr") if r["role"] == role]
        last = max((r["step"] for r in records), default=0)
        found += [r["sqnr_db"] for r in records if r["step"] == last]
    return median(found)


def _beside(group: list[Summary], pairs: Pairs) -> Row:
    """What is judged beside the loss; empty where the logs do not say."""
    others = [run.other for run in group if run.other]
    return {
        "val_accuracy": mean(run.val_accuracy for run in group),
        "accuracy_change_points": mean(100 * (run.val_accuracy - base.val_accuracy) for run, base in pairs),
        "other_corpus": distinct(other["corpus"].rpartition("/")[2] for other in others),
        "other_loss": mean(other["loss"] for other in others),
        "other_delta_pct": mean(
            change_pct(run.other["loss"], base.other["loss"]) for run, base in pairs if run.other and base.other
        ),
        "same_continuation": mean(share for run, base in pairs for share in _same(run, base)),
    }  # fmt: skip


def _same(run: Summary, base: Summary) -> Iterable[float]:
    mine, theirs = (each.log.of("generate") for each in (run, base))
    for a, b in zip(mine, theirs, strict=False):
        pairs = list(zip(a["tokens"], b["tokens"], strict=False))
        first = next((i for i, (x, y) in enumerate(pairs) if x != y), len(pairs))
        if pairs and a["prompt"] == b["prompt"]:
            yield first / len(pairs)


def _errors(group: list[Summary], kind: str, *, own: bool) -> list[Row]:
    """A row a place and codec of the group's records of this kind. own: those of the group's policy, else those that
    name a codec."""
    places: dict[tuple[str, str, int], list[float]] = {}
    for run in group:
        for record in run.log.of(kind):
            if own == ("codec" in record):
                continue
            place = record.get("codec", run.tp_codec), record["role"], record["layer"]
            places.setdefault(place, []).append(number(record["error"]))
    return [
        {
            "part": kind, **_who(group[0]), "codec": codec, "role": role, "layer": layer,
            "error": _root_mean_square(errors), **_provenance(group),
        }
        for (codec, role, layer), errors in places.items()
    ]  # fmt: skip


def _root_mean_square(values: list[float]) -> float:
    return math.sqrt(statistics.fmean(value * value for value in values))

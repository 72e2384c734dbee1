"""Tables of training runs: accuracy, threed, scaling."""

from __future__ import annotations

import math
from pathlib import PurePath

from taco.config import ROLES, TRANSPORTS
from taco.paper import published as paper
from taco.paper.table import Row, number
from taco.paper.tables import summary
from taco.paper.tables.load import PROVENANCE, Logs, codec_rank, mean, published
from taco.paper.tables.pairs import (
    baseline,
    change_pct,
    control_band_pct,
    delta_pct,
    noise_band_pct,
    uncompressed_pct,
)
from taco.paper.tables.summary import AXES, SENT, Summary, place_order, summaries

CURVE_POINTS = 20
"""Points of a training-loss curve: each is the mean over an equal span of steps."""

ACCURACY = (
    "part", "model", "tp", "virtual", "codec", "virtual_sum", "dtype", "corpus", "planned_tokens", "shared_tokens",
    "step", "tokens", "train_loss", "val_loss", "delta_pct", "noise_band_pct", "control_band_pct", "first_quarter_pct",
    "last_quarter_pct", "val_accuracy", "val_loss_uncompressed", "delta_uncompressed_pct", "other_corpus", "other_loss",
    "other_accuracy", "wire_ratio", *PROVENANCE,
)  # fmt: skip
THREED = (
    "model", "tp", "pp", "dp", "compressed", "tp_codec", "dp_codec", "pp_codec", "dtype", "tokens", "val_loss",
    "delta_pct", "tokens_per_s", "speedup", *(f"wire_mib_{role}" for role in ROLES), "wire_mib_per_step", "wire_ratio",
    *PROVENANCE,
)  # fmt: skip
SCALING = (
    "model", "world_size", "tp", "pp", "dp", "link", "codec", "dp_codec", "pp_codec", "dtype", "step_ms",
    "step_ms_q1", "step_ms_q3", "tokens_per_s", "speedup", "comm_fraction", "wire_mib_per_step", "wire_ratio",
    "amdahl_bound", *PROVENANCE,
)  # fmt: skip


def accuracy(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """Part `final`: one row a run, and the authors' published losses. Part `curve`: training loss against the baseline.

    first_quarter_pct and last_quarter_pct: mean absolute difference of the training loss to the same-seed baseline
    over the first and the last quarter of the steps. control_band_pct: how far uncompressed runs of the baseline's seed
    are from it that differ by rounding alone; noise_band_pct: how far uncompressed runs of other seeds are.
    shared_tokens: of the first steps, from whose checkpoint the runs of another policy start, too.
    val_loss_uncompressed: of the same weights with messages as they are; delta_uncompressed_pct: that to the baseline.
    """
    runs = summaries(logs)
    final = [_final(r, runs) for r in runs]
    curves = [point for r in runs for point in _curve(r, _reference(r, runs))]
    return ACCURACY, _published_losses() + sorted(final, key=_order) + sorted(curves, key=_order)


def _order(row: Row) -> tuple:
    return *place_order(row), row.get("seed") or 0, row["log"], row.get("step", 0)


def _published_losses() -> list[Row]:
    base = paper.VALIDATION_LOSS["none"]
    return [
        {"part": "final", "model": "not stated", "codec": codec, "val_loss": loss, "delta_pct": change_pct(loss, base)}
        | published("README")
        for codec, loss in paper.VALIDATION_LOSS.items()
    ]


def _who(run: Summary) -> Row:
    return {
        "model": run.model, "tp": run.ways, "virtual": run.config["parallel"].get("virtual_tp", 1) > 1,
        "codec": run.tp_codec, "virtual_sum": run.config["parallel"]["virtual_sum"],
        "dtype": run.config["train"]["dtype"], "corpus": run.corpus, "planned_tokens": run.planned_tokens,
        "shared_tokens": run.shared_tokens,
    }  # fmt: skip


def _final(run: Summary, runs: list[Summary]) -> Row:
    base = baseline(run, runs)
    first, last = _quarters(run, base)
    other = run.other
    return {
        "part": "final", **_who(run), "tokens": run.tokens, "val_loss": run.val_loss, "delta_pct": delta_pct(run, base),
        "noise_band_pct": noise_band_pct(run, runs), "control_band_pct": control_band_pct(run, runs),
        "first_quarter_pct": first, "last_quarter_pct": last, "val_accuracy": run.val_accuracy,
        "val_loss_uncompressed": run.val_loss_uncompressed, "delta_uncompressed_pct": uncompressed_pct(run, base),
        "other_corpus": PurePath(other.get("corpus", "")).name, "other_loss": number(other.get("loss")),
        "other_accuracy": number(other.get("accuracy")), "wire_ratio": run.wire_ratio(*AXES["tp"]), **run.provenance(),
    }  # fmt: skip


def _reference(run: Summary, runs: list[Summary]) -> Summary | None:
    """What a curve is drawn against: the same-seed baseline; for a baseline, that of the lowest seed."""
    base = baseline(run, runs)
    if base is not run:
        return base
    same = [
        r for r in runs if r.log and not r.compressed and not r.control and r.key(seed=False) == run.key(seed=False)
    ]
    return baseline(min(same, key=lambda r: r.seed), runs)


def _differences(run: Summary, base: Summary | None) -> list[tuple[int, float, float]]:
    """(step, training loss, change in percent) of the steps both runs have; none if they log means of other spans."""
    alike = base is not None and base.config["train"]["log_every"] == run.config["train"]["log_every"]
    reference = {s["step"]: number(s["loss"]) for s in base.steps} if alike else {}
    return [
        (s["step"], number(s["loss"]), change_pct(number(s["loss"]), reference[s["step"]]))
        for s in run.steps
        if s["step"] in reference
    ]


def _quarters(run: Summary, base: Summary | None) -> tuple[float, float]:
    changes = [abs(change) for _, _, change in _differences(run, base)]
    quarter = len(changes) // 4
    if base is run or not quarter:
        return math.nan, math.nan
    return mean(changes[:quarter]), mean(changes[-quarter:])


def _curve(run: Summary, base: Summary | None) -> list[Row]:
    points = _differences(run, base)
    if not points or base is run:
        return []
    span = max(1, math.ceil(len(points) / CURVE_POINTS))
    spans = [points[i : i + span] for i in range(0, len(points), span)]
    return [
        {"part": "curve", **_who(run), "step": part[-1][0], "train_loss": mean(p[1] for p in part),
         "delta_pct": mean(p[2] for p in part), **run.provenance()}
        for part in spans
    ]  # fmt: skip


def threed(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """One row a run: which of TP, DP and PP is compressed, what it costs in loss and saves in bytes."""
    runs = summaries(logs)
    rows = [_threed_row(r, baseline(r, runs)) for r in runs]
    rows.sort(
        key=lambda r: (
            r["model"],
            r["compressed"] != "none",
            r["compressed"].count("+"),
            _axes(r["compressed"]),
            r["log"],
        )
    )
    return THREED, rows


def _axes(compressed: str) -> list[int]:
    return [list(AXES).index(axis) for axis in compressed.split("+") if axis in AXES]


def _threed_row(run: Summary, base: Summary | None) -> Row:
    codecs = {axis: run.codec(axis) for axis in AXES}
    grid = run.config["parallel"]
    return {
        "model": run.model, "tp": grid["tp"], "pp": grid["pp"], "dp": grid["dp"],
        "compressed": "+".join(axis for axis in AXES if codecs[axis] != "none") or "none",
        **{f"{axis}_codec": codec for axis, codec in codecs.items()}, "dtype": run.config["train"]["dtype"],
        "tokens": run.tokens, "val_loss": run.val_loss, "delta_pct": delta_pct(run, base),
        "tokens_per_s": run.tokens_per_s, "speedup": _speedup(run, base),
        **{f"wire_mib_{role}": run.wire_mib(role) for role in ROLES},
        "wire_mib_per_step": run.wire_mib(*SENT), "wire_ratio": run.wire_ratio(*SENT), **run.provenance(),
    }  # fmt: skip


def _speedup(run: Summary, base: Summary | None) -> float:
    return run.tokens_per_s / base.tokens_per_s if base else math.nan


def amdahl(fraction: float, ratio: float) -> float:
    """Largest speed-up if only communication shrinks: 1 / (1 - f + f / k), without overlap and without codec time."""
    return 1 / (1 - fraction + fraction / ratio)


def scaling(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """One row a run: throughput against the uncompressed run of the same shape.

    link is the recipe's transport (auto: the fastest there is); comm_fraction is f, wire_ratio is k;
    amdahl_bound takes f of the uncompressed run and k of this one.
    """
    runs = summaries(logs)
    rows = [_scaling_row(r, baseline(r, runs)) for r in runs]
    rows.sort(key=_scaling_order)
    abstract = {"model": "not stated", "codec": "taco", "speedup": paper.SPEEDUP} | published("abstract")
    return SCALING, [abstract, *rows]


def _scaling_order(row: Row) -> tuple:
    link = TRANSPORTS.index(row["link"])
    return row["model"], row["world_size"], -row["tp"], -row["pp"], link, codec_rank(row["codec"]), row["log"]


def _scaling_row(run: Summary, base: Summary | None) -> Row:
    grid = run.config["parallel"]
    ratio = run.wire_ratio(*SENT)
    low, high = run.step_ms_quartiles
    codecs = {axis: run.codec(axis) for axis in AXES}
    return {
        "model": run.model, "world_size": grid["tp"] * grid["pp"] * grid["dp"], "tp": grid["tp"], "pp": grid["pp"],
        "dp": grid["dp"], "link": grid["transport"],
        "codec": codecs["tp"] if codecs["tp"] != "none" else summary.joined(list(codecs.values())),
        "dp_codec": codecs["dp"], "pp_codec": codecs["pp"], "dtype": run.config["train"]["dtype"],
        "step_ms": run.step_ms, "step_ms_q1": low, "step_ms_q3": high, "tokens_per_s": run.tokens_per_s,
        "speedup": _speedup(run, base),
        "comm_fraction": run.comm_fraction, "wire_mib_per_step": run.wire_mib(*SENT), "wire_ratio": ratio,
        "amdahl_bound": amdahl(base.comm_fraction, ratio) if base else math.nan, **run.provenance(),
    }  # fmt: skip

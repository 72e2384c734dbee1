"""Logs of one source, and where every row comes from."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from taco import log, recipes
from taco.config import ConfigError, require, run_from_dict, to_dict
from taco.paper.table import Row, number
from taco.recipes.speed import RELEASED

PROVENANCE = ("kind", "label", "status", "log", "commit", "date", "device", "hardware", "transport", "seed")
"""The last columns of every table.

kind: measured, modelled or paper. label: ours, authors-code (their semantics or kernels, run by us), peer (another
implementation, run by us) or paper. status: measured, published, missing or failed (it raised); a missing row has its
log's name, and neither of the last two has numbers.
"""


def experiment(name: str) -> recipes.Experiment:
    """The experiment called `name`. Raises `ConfigError` for an unknown name."""
    if name not in recipes.EXPERIMENTS:
        raise ConfigError(
            f"got experiment {name!r}; need one of {', '.join(recipes.EXPERIMENTS)}; "
            "because tables are made for the experiments of taco.recipes"
        )
    return recipes.EXPERIMENTS[name]


def recorded(source: str, folder: Path) -> list[str]:
    """The experiments of which `folder`, that of a source, has a finished log.

    Raises `ConfigError` where it has none: it is another folder than the one meant, or nothing has run.
    """
    found = [
        name
        for name, chosen in recipes.EXPERIMENTS.items()
        if any((folder / f"{each}.jsonl").exists() for each in chosen.logs(source) + chosen.optional(source))
    ]
    require(
        bool(found),
        f"no finished log of an experiment in {folder}",
        "the folder of RUN.jsonl of the recipes (--results is the one above it)",
        "tables are made from logs",
    )
    return found


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """The arguments that `taco tables` and `taco figures` share: which experiment, of which source, where."""
    parser.add_argument(
        "experiment",
        metavar="EXPERIMENT",
        nargs="?",
        default="",
        help=f"{', '.join(recipes.EXPERIMENTS)} (default: all of which the source has a log)",
    )
    parser.add_argument("--source", default="mini", choices=recipes.SOURCES)
    parser.add_argument("--results", type=Path, default=Path("results"))


@dataclass(frozen=True, kw_only=True)
class Logs:
    """The finished logs that one experiment has in one source; `missing` are the names of those it lacks."""

    runs: dict[str, log.Log] = field(default_factory=dict)
    measures: dict[str, log.Log] = field(default_factory=dict)
    missing_runs: tuple[str, ...] = ()
    missing_measures: tuple[str, ...] = ()


def read_logs(name: str, folder: Path, source: str) -> Logs:
    """Read the logs of experiment `name` in `folder`. An absent log is missing.

    Raises `LogError` for a damaged log, and for a run's log of another configuration than its recipe's.
    """
    chosen = experiment(name)
    runs, missing_runs = _read(chosen.runs(source), folder)
    runs |= _read(chosen.optional(source), folder)[0]
    for run, found in runs.items():
        _check_run(run, found)
    measures, missing_measures = _read(chosen.measured(source), folder)
    return Logs(runs=runs, measures=measures, missing_runs=missing_runs, missing_measures=missing_measures)


def _read(names: Iterable[str], folder: Path) -> tuple[dict[str, log.Log], tuple[str, ...]]:
    names = tuple(names)
    found = {name: folder / f"{name}.jsonl" for name in names if (folder / f"{name}.jsonl").exists()}
    return {name: log.read(path) for name, path in found.items()}, tuple(n for n in names if n not in found)


def _check_run(name: str, found: log.Log) -> None:
    try:
        same = run_from_dict(found.header.get("config")) == recipes.RUNS[name]
    except ConfigError:
        same = False
    if not same:
        raise log.LogError(
            f"got {found.path} of another configuration; need one of the recipe {name}; "
            "because a table says what its recipes did (move the log away, or run the recipe again with --force)"
        )


def provenance(name: str, source: log.Log, label: str = "ours") -> Row:
    """Provenance columns of a row that `source` measured.

    Commits of a changed tree end in '+', of one that git could not compare in '?'; a log without one says 'unknown'.
    """
    p = source.header.get("provenance", {})
    mark = {True: "+", None: "?"}.get(p.get("dirty"), "")
    commit = str(p["commit"])[:12] + mark if p.get("commit") else "unknown"
    return {
        "kind": "measured", "label": label, "status": "measured", "log": name, "commit": commit,
        "date": p.get("date"), "device": p.get("device"), "hardware": p.get("hardware"),
        "transport": p.get("transport"), "seed": p.get("seed"),
    }  # fmt: skip


def missing(name: str, seed: int | None = None) -> Row:
    """Provenance columns of a row whose log does not exist in this source."""
    return {"kind": "measured", "label": "ours", "status": "missing", "log": name, "seed": seed}


def published(where: str) -> Row:
    """Provenance columns of a number that the authors published; `where` is abstract or README."""
    return {"kind": "paper", "label": "paper", "status": "published", "log": where}


def run_config(name: str) -> dict:
    """The recipe of a run without a log, as plain data."""
    return to_dict(recipes.RUNS[name])


def codec_rank(name: str) -> tuple[int, str]:
    """Sort key that puts codecs in the order of the presets and others after them."""
    order = list(recipes.PRESETS)
    return (order.index(name) if name in order else len(order), name)


def median(values: Iterable[float]) -> float:
    """Median of the finite values, NaN if there are none."""
    finite = [v for v in map(number, values) if math.isfinite(v)]
    return statistics.median(finite) if finite else math.nan


def mean(values: Iterable[float]) -> float:
    """Mean of the values, NaN if there are none."""
    values = list(map(number, values))
    return statistics.fmean(values) if values else math.nan


def timed_rows(name: str, source: log.Log, row: Callable[[dict], Row], ours: Callable[[dict], bool]) -> list[Row]:
    """row(record) of every arm that was timed or has raised, with provenance. ours: whether an arm is ours."""
    made = []
    for record in source.records:
        if record["kind"] in ("row", "failed"):
            other = "authors-code" if record["arm"].startswith(RELEASED) else "peer"
            failed = {"status": "failed"} if record["kind"] == "failed" else {}
            made.append(row(record) | provenance(name, source, "ours" if ours(record) else other) | failed)
    return made

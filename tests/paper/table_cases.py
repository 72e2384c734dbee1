"""Runs and logs from which tests make tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import paper_logs

from taco import log
from taco.config import Parallel
from taco.paper.tables import load
from taco.recipes import RUNS, policy

BASE = replace(RUNS["gpt-mini-tp2pp2dp2-3d-none"], parallel=Parallel(tp=2))


def run(name: str, *, seed: int = 1, parallel: Parallel | None = None, **codecs):
    return replace(
        BASE,
        name=name,
        policy=policy(**codecs),
        train=replace(BASE.train, seed=seed),
        parallel=parallel or BASE.parallel,
    )


def logs_of(folder: Path, *runs: tuple, missing: tuple[str, ...] = ()) -> load.Logs:
    """Logs of (Run, options of run_log) pairs."""
    written = {r.name: log.read(paper_logs.run_log(folder, r, **options)) for r, options in runs}
    return load.Logs(runs=written, missing_runs=missing)


def only(rows: list[dict], **equal) -> dict:
    found = [r for r in rows if all(r.get(k) == v for k, v in equal.items())]
    assert len(found) == 1, (equal, len(found))
    return found[0]

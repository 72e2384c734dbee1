"""Which two runs a change of the loss is between: forks, repeated baselines, logs of other spans."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from table_cases import BASE, logs_of, only, run

from taco.paper.figures.training import MOST_PANELS, budget_words, places_of
from taco.paper.figures.training import accuracy as draw_accuracy
from taco.paper.tables import pareto, training


def test_runs_that_log_more_rarely_are_compared_but_for_their_curves(tmp_path: Path):
    rare = run("taco", tp="taco")
    rare = replace(rare, train=replace(rare.train, log_every=2, keep_checkpoints=0))
    found = logs_of(tmp_path, (run("none"), {"val_loss": 2.0}), (rare, {"val_loss": 2.02}))
    _, rows = training.accuracy(found)
    assert only(rows, part="final", log="taco")["delta_pct"] == pytest.approx(1.0)
    assert not [r for r in rows if r["part"] == "curve"]


def test_forks_are_compared_with_an_uncompressed_fork_and_with_no_whole_run(tmp_path: Path):
    def fork(name: str, seed: int = 1, **codecs):
        made = run(name, seed=seed, **codecs)
        return replace(made, train=replace(made.train, from_run=f"parent-{seed}", from_step=4))

    found = logs_of(
        tmp_path, (run("none"), {"val_loss": 2.0}), (run("taco", tp="taco"), {"val_loss": 2.2}),
        (fork("none-fork"), {"val_loss": 2.5}), (fork("taco-fork", tp="taco"), {"val_loss": 2.55}),
        (fork("none-fork-2", 2), {"val_loss": 2.4}), (fork("taco-fork-2", 2, tp="taco"), {"val_loss": 2.448}),
    )  # fmt: skip
    _, rows = training.accuracy(found)
    changes = {name: only(rows, part="final", log=name)["delta_pct"] for name in ("taco", "taco-fork", "taco-fork-2")}
    assert changes == {name: pytest.approx(change) for name, change in zip(changes, (10.0, 2.0, 2.0), strict=True)}
    shared = 4 * BASE.train.batch * BASE.data.seq
    assert {r["log"]: r["shared_tokens"] for r in rows if r["part"] == "final" and r["kind"] == "measured"} == {
        "none": 0, "taco": 0, "none-fork": shared, "taco-fork": shared, "none-fork-2": shared, "taco-fork-2": shared,
    }  # fmt: skip
    assert math.isnan(only(rows, part="final", log="taco")["noise_band_pct"])
    _, policies = pareto.pareto(found)
    whole, forks = (only(policies, part="policy", codec="taco", shared_tokens=n) for n in (0, shared))
    assert (whole["pairs"], forks["pairs"], forks["seeds"]) == (1, 2, 2)
    places = [budget_words(place) for place in places_of([{k: str(v) for k, v in r.items()} for r in (whole, forks)])]
    assert [" to " in words for words in places] == [False, True]


def test_forks_of_two_checkpoints_of_one_name_are_not_compared(tmp_path: Path):
    found = logs_of(
        tmp_path, (run("none"), {"val_loss": 2.0}), (run("none-again"), {"val_loss": 2.01}),
        (run("taco", tp="taco"), {"val_loss": 2.02}), (run("int8", tp="int8"), {"val_loss": 2.02}),
    )  # fmt: skip
    for name, written in (("none", "1"), ("none-again", "2"), ("taco", "2"), ("int8", "3")):
        found.runs[name].records.append({"kind": "fork", "step": 4, "run": "parent", "written": written})
    _, rows = training.accuracy(found)
    changes = {name: only(rows, part="final", log=name)["delta_pct"] for name in ("taco", "int8")}
    assert changes["taco"] == pytest.approx(100 * (2.02 / 2.01 - 1))
    assert math.isnan(changes["int8"])
    assert math.isnan(only(rows, part="final", log="taco")["control_band_pct"])


def test_of_several_baselines_the_first_that_ran_is_taken(tmp_path: Path):
    found = logs_of(
        tmp_path,
        (run("a"), {"val_loss": 2.5}),
        (run("b"), {"val_loss": 2.0}),
        (run("taco", tp="taco"), {"val_loss": 2.2}),
    )
    for name, date in (("a", "2026-01-02T00:00:00+00:00"), ("b", "2026-01-01T00:00:00+00:00")):
        found.runs[name].header["provenance"]["date"] = date
    _, rows = training.accuracy(found)
    assert only(rows, part="final", log="taco")["delta_pct"] == pytest.approx(10.0)
    assert only(rows, part="final", log="taco")["control_band_pct"] == pytest.approx(25.0)
    # the later one is a control: it has a distance to the first, and a curve against it
    quarters = {log: only(rows, part="final", log=log)["last_quarter_pct"] for log in ("a", "b")}
    assert (quarters["a"], math.isnan(quarters["b"])) == (0, True)
    assert {r["log"] for r in rows if r["part"] == "curve"} == {"a", "taco"}


def test_a_repeated_baseline_counts_once_among_the_controls(tmp_path: Path):
    repeated = (run("a"), {"val_loss": 2.0}), (run("b"), {"val_loss": 2.02}), (run("c"), {"val_loss": 1.98})
    _, rows = pareto.pareto(logs_of(tmp_path, *repeated, (run("taco", tp="taco"), {"val_loss": 2.04})))
    taco = only(rows, part="policy", codec="taco")
    assert (taco["controls"], taco["control_band_pct"]) == (2, pytest.approx(1.0))
    # the mean of the three is 2.0, as the first is
    assert (taco["delta_pct"], taco["delta_to_all_pct"]) == (pytest.approx(2.0), pytest.approx(2.0))


def test_the_run_that_forks_left_is_one_of_their_controls_if_it_went_on_alike(tmp_path: Path):
    def fork(name: str, parent: str, **codecs):
        return replace(made := run(name, **codecs), train=replace(made.train, from_run=parent, from_step=4))

    found = logs_of(
        tmp_path, (run("parent"), {"val_loss": 2.01}), (run("second"), {"val_loss": 2.2}),
        (fork("none-fork", "parent"), {"val_loss": 2.0}), (fork("taco-fork", "parent", tp="taco"), {"val_loss": 2.1}),
    )  # fmt: skip
    _, rows = training.accuracy(found)
    assert only(rows, part="final", log="taco-fork")["control_band_pct"] == pytest.approx(0.5)
    assert only(rows, part="final", log="parent")["control_band_pct"] == pytest.approx(100 * (2.2 / 2.01 - 1))
    found.runs["none-fork"].records.append({"kind": "fork", "step": 4, "run": "parent", "written": "2026-01-02"})
    found.runs["taco-fork"].records.append(found.runs["none-fork"].records[-1])
    for date, band in (("2026-01-01", pytest.approx(0.5)), ("2026-01-03", pytest.approx(math.nan, nan_ok=True))):
        found.runs["parent"].header["provenance"]["date"] = date  # the later one is run again
        _, rows = training.accuracy(found)
        assert only(rows, part="final", log="taco-fork")["control_band_pct"] == band
    found.runs["parent"].header["provenance"]["date"] = "2026-01-01"
    longer = found.runs["parent"].header["config"]["train"]
    longer["steps"] *= 2
    _, rows = training.accuracy(found)
    assert math.isnan(only(rows, part="final", log="taco-fork")["control_band_pct"])


def test_budgets_beyond_the_panels_of_the_figure_are_named_below_it(tmp_path: Path):
    def long(name: str, steps: int, **codecs):
        return replace(made := run(name, **codecs), train=replace(made.train, steps=steps))

    budgets = [(steps, codec) for steps in range(10, 20) for codec in ("taco", *(["int8"] if steps > 11 else []))]
    runs = [long(f"none-{n}", n) for n in range(10, 20)] + [long(f"{c}-{n}", n, tp=c) for n, c in budgets]
    _, rows = training.accuracy(logs_of(tmp_path, *((each, {}) for each in runs)))
    fig = draw_accuracy([{key: "" if value is None else str(value) for key, value in row.items()} for row in rows])
    titles = [ax.get_title() for ax in fig.axes if ax.get_title()]
    below = fig.subfigs[0].get_supxlabel()
    tokens = [f"{n * BASE.train.batch * BASE.data.seq / 1e6:.3g} M" for n in range(10, 20)]
    assert len(titles) == MOST_PANELS
    assert [any(f"\n{t} tokens" in title for title in titles) for t in tokens] == [False] * 5 + [True] * 5
    assert all((f" {t} tokens" in below.replace("\n", " ")) != any(t in x for x in titles) for t in tokens)

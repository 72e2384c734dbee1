"""Tables from invented logs: every number against arithmetic done by hand here."""

from __future__ import annotations

import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import paper_logs
import pytest
from table_cases import BASE, logs_of, only, run

from taco import log, recipes
from taco.config import ConfigError, Parallel, to_dict
from taco.paper import tables
from taco.paper.table import number, read_table
from taco.paper.tables import ablation, load, summary, training
from taco.recipes import EXPERIMENTS, PRESETS, RUNS, policy


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_table_with_provenance(name: str, results: Path):
    source = paper_logs.source_of(name)
    rows = read_table(results / source / f"{name}.csv")
    assert rows
    assert tuple(rows[0])[-len(load.PROVENANCE) :] == load.PROVENANCE
    transport = "gloo" if source == "mini" else paper_logs.GPU["transport"]
    for r in rows:
        assert r["kind"] in ("measured", "paper")
        if r["kind"] == "measured":
            assert r["status"] == ("failed" if r.get("reason") else "measured")
            assert (r["commit"], r["transport"]) == ("0123456789ab", transport)


def test_there_is_a_table_for_exactly_the_experiments():
    assert list(tables.TABLES) == list(EXPERIMENTS)


def test_an_unknown_experiment_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="got experiment 'speed'; need one of codec_fidelity"):
        tables.make("speed", "mini", tmp_path)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_same_logs_same_bytes_in_any_order_of_records(name: str, results: Path, tmp_path: Path):
    source = paper_logs.source_of(name)
    shutil.copytree(results / source, tmp_path / source)
    for measure in EXPERIMENTS[name].measured(source):
        found = log.read(tmp_path / source / f"{measure}.jsonl")
        shuffled = [(r["kind"], {k: v for k, v in r.items() if k != "kind"}) for r in found.records]
        random.Random(1).shuffle(shuffled)
        paper_logs.write(tmp_path / source / f"{measure}.jsonl", shuffled, **found.header["provenance"])
    made = tables.make(name, source, tmp_path)
    assert made.read_bytes() == (results / source / f"{name}.csv").read_bytes()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_without_any_log_every_row_says_missing_and_has_no_number(name: str, tmp_path: Path):
    rows = [r for r in read_table(tables.make(name, "logged", tmp_path)) if r["kind"] == "measured"]
    assert sorted(r["log"] for r in rows) == sorted(EXPERIMENTS[name].logs("logged"))
    for r in rows:
        assert r["status"] == "missing"
        for column in (
            "val_loss",
            "delta_pct",
            "tokens_per_s",
            "speedup",
            "sqnr_db",
            "wire_ratio",
            "passed",
            "rms",
            "us",
            "commit",
        ):
            assert r.get(column, "") == "", column


def test_an_unfinished_log_is_missing_and_a_truncated_one_an_error(tmp_path: Path):
    path = paper_logs.write(tmp_path / "mini" / "correctness.jsonl", paper_logs.correctness_rows())
    lines = path.read_text().splitlines()
    path.rename(f"{path}.part")
    assert [r["status"] for r in read_table(tables.make("correctness", "mini", tmp_path))] == ["missing"]
    path.write_text("\n".join(lines[:-1]) + "\n")
    with pytest.raises(log.LogError, match="truncated"):
        tables.make("correctness", "mini", tmp_path)


def test_a_log_of_another_configuration_than_its_recipe_is_an_error(tmp_path: Path):
    name = EXPERIMENTS["threed"].runs("mini")[0]
    changed = replace(RUNS[name], train=replace(RUNS[name].train, steps=3))
    for config in (to_dict(changed), {"steps": 3}, to_dict(replace(RUNS[name], name="other"))):
        paper_logs.write(tmp_path / "mini" / f"{name}.jsonl", [], config=config)
        with pytest.raises(log.LogError, match=f"another configuration; need one of the recipe {name}"):
            tables.make("threed", "mini", tmp_path)
    assert not (tmp_path / "mini" / "threed.csv").exists()


def test_delta_and_noise_band_by_hand(tmp_path: Path):
    found = logs_of(
        tmp_path, (run("none-1"), {"val_loss": 2.0}), (run("none-2", seed=2), {"val_loss": 2.01}),
        (run("taco-1", tp="taco"), {"val_loss": 2.005}), (run("taco-2", seed=2, tp="taco"), {"val_loss": 2.0}),
    )  # fmt: skip
    _, rows = training.accuracy(found)
    taco = only(rows, part="final", log="taco-1")
    assert taco["delta_pct"] == pytest.approx(0.25)
    assert taco["noise_band_pct"] == pytest.approx(0.5)
    assert only(rows, part="final", log="taco-2")["delta_pct"] == pytest.approx(100 * (2.0 - 2.01) / 2.01)
    assert only(rows, part="final", log="none-1")["delta_pct"] == 0


@pytest.mark.parametrize("other", [{"seed": 2}, {"parallel": Parallel(tp=4)}])
def test_a_baseline_of_another_seed_or_grid_is_no_baseline(tmp_path: Path, other: dict):
    _, rows = training.accuracy(logs_of(tmp_path, (run("none", **other), {}), (run("taco", tp="taco"), {})))
    assert math.isnan(only(rows, part="final", log="taco")["delta_pct"])


def test_one_seed_gives_no_noise_band(tmp_path: Path):
    _, rows = training.accuracy(logs_of(tmp_path, (run("none"), {}), (run("taco", tp="taco"), {})))
    assert math.isnan(only(rows, part="final", log="taco")["noise_band_pct"])


def test_published_losses_give_the_published_changes():
    _, rows = training.accuracy(load.Logs())
    changes = {r["codec"]: round(r["delta_pct"], 2) for r in rows}
    assert changes == {"none": 0.0, "taco": 0.25, "tahquant": 2.88}
    assert {(r["kind"], r["label"], r["status"]) for r in rows} == {("paper", "paper", "published")}


def test_curve_and_quarters_by_hand(tmp_path: Path):
    found = logs_of(tmp_path, (run("none"), {"steps": 40}), (run("taco", tp="taco"), {"steps": 40, "loss_shift": 0.01}))
    _, rows = training.accuracy(found)
    base, coded = ([s["loss"] for s in found.runs[n].of("step")] for n in ("none", "taco"))
    changes = [100 * (c - b) / b for b, c in zip(base, coded, strict=True)]
    points = [r for r in rows if r["part"] == "curve"]
    assert [r["step"] for r in points] == list(range(2, 41, 2))
    assert points[3]["delta_pct"] == pytest.approx((changes[6] + changes[7]) / 2)
    final = only(rows, part="final", log="taco")
    assert final["first_quarter_pct"] == pytest.approx(sum(changes[:10]) / 10)
    assert final["last_quarter_pct"] == pytest.approx(sum(changes[-10:]) / 10)


def test_slow_first_steps_do_not_count(tmp_path: Path):
    made = summary.summaries(logs_of(tmp_path, (run("none"), {"tokens_per_s": 500.0, "comm": 0.4})))[0]
    assert made.tokens_per_s == 500.0
    assert made.step_ms == 100.0
    assert made.comm_fraction == pytest.approx(0.4)
    assert made.tokens == 8 * BASE.train.batch * BASE.data.seq


def test_threed_counts_bytes_by_role(tmp_path: Path):
    grid = Parallel(tp=2, pp=2, dp=2, microbatches=4)
    _, rows = training.threed(
        logs_of(
            tmp_path, (run("none", parallel=grid), {"val_loss": 2.0, "tokens_per_s": 100.0}),
            (run("all", parallel=grid, tp="taco", dp="sdp4bit", pp="tahquant"),
             {"ratio": 2.0, "val_loss": 2.1, "tokens_per_s": 150.0}),
            (run("tp", parallel=grid, tp="taco"), {"ratio": 2.0}),
        )
    )  # fmt: skip
    assert [r["compressed"] for r in rows] == ["none", "tp", "tp+dp+pp"]
    every, tp = only(rows, log="all"), only(rows, log="tp")
    assert (every["tp_codec"], every["dp_codec"], every["pp_codec"]) == (
        "taco", "sdp4bit-gradient+sdp4bit-weight", "tahquant+tahquant-backward",
    )  # fmt: skip
    assert every["wire_mib_per_step"] == pytest.approx(3.0)
    assert every["wire_ratio"] == pytest.approx(2.0)
    assert every["speedup"] == pytest.approx(1.5)
    assert every["delta_pct"] == pytest.approx(5.0)
    assert tp["wire_mib_tp_forward"] == pytest.approx(0.5)
    assert tp["wire_mib_dp_gradient"] == pytest.approx(1.0)
    assert tp["wire_ratio"] == pytest.approx(6 / 5)


def test_amdahl_bound_takes_the_fraction_of_the_uncompressed_run(tmp_path: Path):
    _, rows = training.scaling(
        logs_of(tmp_path, (run("none"), {"comm": 0.5}), (run("taco", tp="taco"), {"comm": 0.2, "ratio": 2.0}))
    )
    taco = only(rows, log="taco")
    assert taco["comm_fraction"] == pytest.approx(0.2)
    assert taco["amdahl_bound"] == pytest.approx(1 / (1 - 0.5 + 0.5 / 2))
    assert only(rows, kind="paper")["speedup"] == 1.87


def test_a_baseline_from_before_a_field_existed_has_its_default(tmp_path: Path):
    logs = logs_of(tmp_path, (run("none"), {"tokens_per_s": 500.0}), (run("taco", tp="taco"), {}))
    del logs.runs["none"].header["config"]["parallel"]["transport"]
    _, rows = training.scaling(logs)
    assert only(rows, log="none")["link"] == "auto"
    assert only(rows, log="taco")["speedup"] == pytest.approx(2.0)


def test_commits_that_are_changed_unsure_or_unknown_are_marked(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    for fields, told in (
        ({}, "0123456789ab"), ({"dirty": True}, "0123456789ab+"), ({"dirty": None}, "0123456789ab?"),
        ({"commit": ""}, "unknown"),
    ):  # fmt: skip
        paper_logs.run_log(tmp_path, run("x"), **fields)
        assert load.provenance("x", log.read(path))["commit"] == told


def test_one_process_sends_nothing_and_has_no_ratio(tmp_path: Path):
    _, rows = training.scaling(logs_of(tmp_path, (run("one", parallel=Parallel()), {})))
    one = only(rows, log="one")
    assert one["wire_mib_per_step"] == 0
    assert math.isnan(one["wire_ratio"])


def test_histogram_densities_integrate_to_one(results: Path):
    rows = [r for r in read_table(results / "mini" / "distribution.csv") if r["part"] == "histogram"]
    for role, layer in {(r["role"], r["layer"]) for r in rows}:
        mine = [r for r in rows if (r["role"], r["layer"]) == (role, layer)]
        area = sum(number(r["density"]) * (number(r["bin_high"]) - number(r["bin_low"])) for r in mine)
        assert area == pytest.approx(1, abs=1e-5)


def test_a_histogram_with_a_wrong_number_of_edges_is_refused(tmp_path: Path):
    bad = {"role": "tp_forward", "layer": 0, "edges": [0.0, 1.0], "counts": [1, 2]}
    paper_logs.write(tmp_path / "mini" / "distribution.jsonl", [("histogram", bad)])
    with pytest.raises(log.LogError, match="one edge more than counts"):
        tables.make("distribution", "mini", tmp_path)


def test_authors_semantics_are_labelled(results: Path):
    rows = read_table(results / "mini" / "correctness.csv")
    assert {(r["subject"], r["label"]) for r in rows} == {("ours", "ours"), ("authors", "authors-code")}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "x", "rotation": "none"}, ("taco", "rotation", "none")),
        ({"name": "x", "group": 256}, ("taco", "group", 256)),
        ({"name": "x", "adaptive_scale": False}, ("taco", "adaptive_scale", False)),
        ({"name": "x", "rotation": "signed", "group": 64}, ("taco", "group+rotation", "64+signed")),
        ({}, ("taco", "direction", "both")),
    ],
)
def test_an_arm_is_described_by_what_it_changes(changes: dict, expected: tuple):
    codec = replace(PRESETS["taco"], **changes)
    assert ablation.change(to_dict(replace(policy(), tp_forward=codec, tp_backward=codec))) == expected


@pytest.mark.parametrize(
    ("codecs", "expected"),
    [
        ({"tp_forward": "int4"}, ("int4", "direction", "forward")),
        ({"tp_backward": "int4"}, ("int4", "direction", "backward")),
        ({"tp_forward": "int8", "tp_backward": "int4"}, ("int8", "tp_backward", "int4")),
        ({}, ("none", "direction", "both")),
    ],
)
def test_an_arm_in_one_direction_says_which(codecs: dict, expected: tuple):
    assert ablation.change(to_dict(policy(**codecs))) == expected


def test_codecs_are_in_the_order_of_the_presets():
    names = ["zzz", "int8", "none", "taco"]
    assert sorted(names, key=load.codec_rank) == ["none", "taco", "int8", "zzz"]
    assert next(iter(recipes.PRESETS)) == "none"

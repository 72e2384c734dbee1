"""Verdicts: one rule per claim, each way a rule can decide, and the generated parts of ARTIFACT.md."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import paper_logs
import pytest

from taco import cli
from taco.config import Parallel
from taco.paper import claims, tables
from taco.paper.claims import artifact
from taco.paper.claims.rules import RULES
from taco.paper.claims.verdict import FAILS, HOLDS, UNTESTABLE, Tables, Verdict
from taco.paper.table import read_table, write_table
from taco.paper.tables.load import PROVENANCE
from taco.recipes import CLAIMS, EXPERIMENTS, RUNS

BY_ID = {c.id: c for c in CLAIMS}
ROOT = Path(__file__).resolve().parents[2]
MEASURED = {"kind": "measured", "label": "ours", "status": "measured", "device": "cuda", "log": "x"}


def write_rows(folder: Path, experiment: str, rows: list[dict]) -> None:
    columns = tuple(dict.fromkeys([*(c for r in rows for c in r), *PROVENANCE]))
    write_table(folder / f"{experiment}.csv", columns, [MEASURED | r for r in rows])


def judge(claim: str, folder: Path, rows: list[dict]) -> Verdict:
    """The verdict on one claim from rows of its experiment; rows are measured on GPUs unless they say otherwise."""
    write_rows(folder, BY_ID[claim].experiment, rows)
    return RULES[claim](BY_ID[claim], Tables(folder))


def test_rules_and_claims_are_the_same_list():
    assert list(RULES) == [c.id for c in CLAIMS]
    assert len(BY_ID) == len(CLAIMS)


def test_claims_name_experiments_that_exist():
    assert {c.experiment for c in CLAIMS} - {""} <= set(EXPERIMENTS)
    assert {c.source for c in CLAIMS} <= {"abstract", "README", "code", "ours"}


def test_without_tables_nothing_is_testable(tmp_path: Path):
    rows = read_table(claims.make("logged", tmp_path))
    assert [r["id"] for r in rows] == [c.id for c in CLAIMS]
    assert {(r["verdict"], r["status"], r["value"]) for r in rows} == {(UNTESTABLE, "missing", "")}
    assert all(r["reason"] for r in rows)


def test_verdicts_of_a_whole_source(results: Path):
    made = claims.make("mini", results)
    first, rows = made.read_bytes(), {r["id"]: r for r in read_table(made)}
    assert {r["verdict"] for r in rows.values()} == {HOLDS, FAILS, UNTESTABLE}
    assert rows["throughput"]["verdict"] == rows["high-tp"]["verdict"] == UNTESTABLE
    assert rows["wire-bytes"]["value"] == "1.88235"
    assert rows["wire-bytes"]["commit"] == "0123456789ab"
    assert rows["near-lossless"]["log"].count("-taco-s1") == 1
    assert claims.make("mini", results).read_bytes() == first


def speed(codec: str = "taco", speedup: float = 1.5, **more) -> dict:
    row = {
        "codec": codec,
        "model": "m",
        "world_size": 2,
        "tp": 2,
        "pp": 1,
        "dp": 1,
        "link": "auto",
        "transport": "nccl",
        "speedup": speedup,
        "wire_ratio": 1.88,
    }
    return row | {"amdahl_bound": 1.6} | more


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([speed(speedup=1.87), speed(speedup=1.1)], HOLDS),
        ([speed(speedup=1.86)], UNTESTABLE),
        ([speed(speedup=1.99, device="cpu"), speed(speedup=1.2)], UNTESTABLE),
        ([speed(speedup=1.99, device="cpu")], UNTESTABLE),
        ([speed("int8", speedup=1.99)], UNTESTABLE),
        ([speed(speedup=math.nan)], UNTESTABLE),
        ([speed(speedup=1.99, status="missing")], UNTESTABLE),
        ([speed(speedup=1.87, kind="paper")], UNTESTABLE),
    ],
)
def test_throughput(rows: list[dict], verdict: str, tmp_path: Path):
    assert judge("throughput", tmp_path, rows).verdict == verdict


def test_throughput_tells_ratio_and_bound(tmp_path: Path):
    assert "k=1.88; fewer bytes alone allow 1.60x" in judge("throughput", tmp_path, [speed()]).reason


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([speed(speedup=1.2), speed(tp=4, speedup=1.3)], HOLDS),
        ([speed(speedup=1.3), speed(tp=8, speedup=1.2)], FAILS),
        ([speed(speedup=1.2), speed(tp=4, speedup=1.3, model="other")], UNTESTABLE),
        ([speed(speedup=1.2), speed(tp=4, dp=2, speedup=1.3)], UNTESTABLE),
        ([speed(speedup=1.2), speed(tp=4, link="tcp", speedup=1.3)], UNTESTABLE),
        ([speed(speedup=1.2, device="cpu"), speed(tp=4, speedup=1.3, device="cpu")], UNTESTABLE),
    ],
)
def test_high_tp(rows: list[dict], verdict: str, tmp_path: Path):
    assert judge("high-tp", tmp_path, rows).verdict == verdict


def loss(
    codec: str, delta: float, band: float = math.nan, model: str = "m", seed: int = 1, control: float = math.nan
) -> dict:
    row = {"part": "final", "codec": codec, "model": model, "tp": 2, "delta_pct": delta, "noise_band_pct": band}
    row |= {"corpus": "text", "planned_tokens": 1000, "control_band_pct": control}
    return row | {"seed": seed, "val_loss": 2.0}


def seeds(*rows: dict) -> list[dict]:
    return [row | {"seed": seed} for row in rows for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        (seeds(loss("taco", 0.1, 0.05), loss("taco", -3.0, 0.05, "n")), HOLDS),
        (seeds(loss("taco", 0.1, 0.05), loss("taco", 0.3, 0.05, "n")), FAILS),
        (seeds(loss("taco", 0.3)), FAILS),
        (seeds(loss("taco", 0.3))[:2], UNTESTABLE),
        ([loss("taco", 0.1)] * 3, UNTESTABLE),
        (seeds(loss("taco", 0.3, 0.4)), UNTESTABLE),
        ([loss("int8", 0.1, 0.05)], UNTESTABLE),
    ],
)
def test_near_lossless(rows: list[dict], verdict: str, tmp_path: Path):
    assert judge("near-lossless", tmp_path, rows).verdict == verdict


@pytest.mark.parametrize(
    ("taco", "tahquant", "band", "verdict"),
    [(0.2, 2.9, 0.5, HOLDS), (2.9, 0.2, 0.5, FAILS), (0.2, 0.6, 0.5, UNTESTABLE), (0.2, 2.9, math.nan, UNTESTABLE)],
)
def test_better_than_tahquant(taco: float, tahquant: float, band: float, verdict: str, tmp_path: Path):
    found = judge("better-than-tahquant", tmp_path, [loss("taco", taco, band), loss("tahquant", tahquant, band)])
    assert found.verdict == verdict
    assert found.value == pytest.approx(tahquant - taco)


@pytest.mark.parametrize("other", [{"model": "n"}, {"seed": 2}])
def test_tahquant_is_compared_within_one_model_and_seed(other: dict, tmp_path: Path):
    rows = [loss("taco", 0.1, 0.1), loss("tahquant", 3.0, 0.1, **other)]
    assert judge("better-than-tahquant", tmp_path, rows).verdict == UNTESTABLE


@pytest.mark.parametrize(
    ("gain", "verdict"), [({"hadamard": 33.0, "none": 32.0}, HOLDS), ({"hadamard": 32.0, "none": 33.0}, FAILS)]
)
def test_hadamard_is_judged_on_captured_tensors_only(gain: dict, verdict: str, tmp_path: Path):
    rows = [
        {"part": "sqnr", "base": "taco", "axis": "rotation", "value": v, "dataset": "d", "role": role, "sqnr_db": sqnr}
        for v, captured in gain.items()
        for role, sqnr in (("tp_forward", captured), ("", 0.0))
    ]
    found = judge("hadamard", tmp_path, rows)
    assert found.verdict == verdict
    assert found.value == pytest.approx(gain["hadamard"] - gain["none"])
    assert len(found.rows) == 2


def test_an_alpha_that_changes_nothing_is_not_needed(tmp_path: Path):
    rows = [
        {"part": "sqnr", "base": "taco", "axis": "adaptive_scale", "value": v, "dataset": "d", "role": "tp_forward",
         "sqnr_db": 31.8}
        for v in (True, False)
    ]  # fmt: skip
    assert judge("dual-scale", tmp_path, rows).verdict == FAILS


@pytest.mark.parametrize(("backward", "verdict"), [(0.1, HOLDS), (0.07, FAILS)])
def test_near_zero_is_decided_by_the_weaker_role(backward: float, verdict: str, tmp_path: Path):
    rows = [
        {"part": "tensor", "role": role, "near_zero_fraction": share, "rms": 1.0}
        for role, share in (("tp_forward", 0.2), ("tp_backward", backward))
    ]
    assert judge("near-zero", tmp_path, rows).verdict == verdict


@pytest.mark.parametrize(
    ("last", "chance", "verdict"),
    [
        (0.3, 0.1, HOLDS),
        (0.1, 0.05, FAILS),
        (math.nan, 0.1, UNTESTABLE),
        (0.3, 0.3, UNTESTABLE),
        (0.3, math.nan, UNTESTABLE),
    ],
)
def test_error_growth_beyond_that_of_rounding(last: float, chance: float, verdict: str, tmp_path: Path):
    first = 0.2 if last == last else math.nan
    tokens = {"planned_tokens": 1000}
    rows = seeds(loss("taco", 0.1) | tokens | {"first_quarter_pct": first, "last_quarter_pct": last})
    control = loss("none", 0.0) | tokens | {"seed": 1, "first_quarter_pct": 0.01, "last_quarter_pct": chance}
    assert judge("error-growth", tmp_path, [*rows, control]).verdict == verdict
    assert judge("error-growth", tmp_path, [*rows[:2], control]).verdict == UNTESTABLE
    # drift of longer and shorter runs is another one
    other = [r | {"planned_tokens": n, "last_quarter_pct": 9.0} for r in (*rows, control) for n in (500,)]
    alone = [r | {"planned_tokens": 9000, "last_quarter_pct": 9.0} for r in rows]
    assert judge("error-growth", tmp_path, [*rows, control, *other, *alone]).verdict == verdict


@pytest.mark.parametrize(("delta", "verdict"), [(0.25, HOLDS), (0.26, FAILS), (math.nan, UNTESTABLE)])
def test_three_d(delta: float, verdict: str, tmp_path: Path):
    ours = {"compressed": "tp+dp+pp", "delta_pct": delta, "wire_ratio": 2.0, "val_loss": 2.0}
    rows = seeds(ours, {"compressed": "tp"})
    assert judge("three-d", tmp_path, rows).verdict == verdict
    assert judge("three-d", tmp_path, rows[:2]).verdict == UNTESTABLE


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_diverged_run_is_not_left_out_of_a_verdict(lost: float, tmp_path: Path):
    diverged = loss("taco", math.nan, model="n") | {"val_loss": lost}
    rows = [*seeds(loss("taco", 0.1, 0.05)), loss("none", 0.0, 0.05), diverged]
    found = judge("near-lossless", tmp_path, rows)
    assert found.verdict == FAILS
    assert "1 of 4 compressed runs" in found.reason
    everywhere = [*rows, loss("none", math.nan, model="n") | {"val_loss": lost}]
    assert judge("near-lossless", tmp_path, everywhere).verdict == UNTESTABLE
    threed = [row | {"compressed": "none" if row["codec"] == "none" else "tp+dp+pp", "wire_ratio": 2.0} for row in rows]
    assert judge("three-d", tmp_path, threed).verdict == FAILS


@pytest.mark.parametrize(("passed", "verdict"), [((True, True), HOLDS), ((True, False), FAILS)])
def test_released_semantics_must_pass_every_check(passed: tuple, verdict: str, tmp_path: Path):
    rows = [{"rule": "tail", "passed": p, "detail": f"d{p}", "label": "authors-code"} for p in passed]
    rows.append({"rule": "tail", "passed": False, "detail": "ours", "label": "ours"})
    found = judge("tails", tmp_path, rows)
    assert found.verdict == verdict
    assert "ours" not in found.reason


def test_gpu_logs_make_throughput_testable_end_to_end(tmp_path: Path):
    base = RUNS["gpt-mini-tp2-scaling-none"]
    fast = RUNS["gpt-mini-tp2-scaling-taco"]
    assert base.parallel == Parallel(tp=2)
    for run, rate in ((base, 100.0), (replace(fast, train=base.train), 190.0)):
        paper_logs.run_log(tmp_path / "mini", run, tokens_per_s=rate, **paper_logs.GPU)
    tables.make("scaling", "mini", tmp_path)
    row = next(r for r in read_table(claims.make("mini", tmp_path)) if r["id"] == "throughput")
    assert (row["verdict"], row["value"], row["hardware"]) == (HOLDS, "1.9", "8 x test GPU")


def test_artifact_is_current():
    text = (ROOT / "ARTIFACT.md").read_text()
    assert artifact.rewritten(text, ROOT / "results") == text


def test_rewriting_keeps_what_others_wrote_and_is_stable(tmp_path: Path):
    parts = ["head"] + [line for name in artifact.BLOCKS for line in (*artifact.markers(name), f"after {name}")]
    claims.make("logged", tmp_path)
    once = artifact.rewritten("\n".join(parts) + "\n", tmp_path)
    assert artifact.rewritten(once, tmp_path) == once
    assert [line for line in once.splitlines() if line in parts] == parts
    assert all(once.count(f"| `{c.id}` |") == 2 for c in CLAIMS)
    assert once.count(f"| {UNTESTABLE} |") == len(CLAIMS)
    assert all(f"| `{name}` |" in once for name in EXPERIMENTS)


def test_a_text_without_markers_is_refused():
    with pytest.raises(ValueError, match="got a text without one pair of lines"):
        artifact.rewritten("nothing here\n", ROOT / "results")


def test_command_line(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert cli.main(["claims", "--source", "mini", "--results", str(results)]) == 0
    assert capsys.readouterr().out.strip() == str(results / "mini" / "claims.csv")
    path = tmp_path / "A.md"
    path.write_text("\n".join(line for name in artifact.BLOCKS for line in artifact.markers(name)))
    assert cli.main(["claims", "--artifact", str(path)]) == 0
    assert "| `throughput` |" in path.read_text()


def test_verdicts_of_a_folder_without_logs_are_refused(tmp_path: Path):
    assert cli.main(["claims", "--source", "fresh", "--results", str(tmp_path / "none")]) != 0
    assert not (tmp_path / "none").exists()

"""codec_speed on paper: rates by hand, who is what, and both verdicts each way that they can come out."""

from __future__ import annotations

from pathlib import Path

import paper_logs
import pytest
from paper_logs import speed_case

from taco.paper import claims, tables
from taco.paper.claims.verdict import FAILS, HOLDS, UNTESTABLE
from taco.paper.figures import draw
from taco.paper.table import Cells, read_table
from taco.recipes import EXPERIMENTS


def made(folder: Path, *records: dict) -> list[Cells]:
    """The table of a log with these rows; one with a reason is a failed arm."""
    paper_logs.write(
        folder / "fresh" / "codec_speed.jsonl",
        [("failed" if "reason" in r else "row", r) for r in records],
        **paper_logs.GPU,
    )
    return read_table(tables.make("codec_speed", "fresh", folder))


def verdict(folder: Path, claim: str, *records: dict) -> Cells:
    made(folder, *records)
    return next(r for r in read_table(claims.make("fresh", folder)) if r["id"] == claim)


def both(us: float, **more) -> list[dict]:
    return [speed_case(us, 100_000_000, op=op, **more) for op in ("encode", "decode")]


def test_rates_by_hand(tmp_path: Path):
    (row,) = made(tmp_path, speed_case(40.0, 120_000_000))
    assert (row["gbps"], row["copy_gbps"], row["fraction_of_copy"]) == ("3000", "4000", "0.75")
    assert (row["us"], row["us_iqr"], row["bytes"], row["timing"]) == ("40", "0.1", "120000000", "graph")
    assert (row["device"], row["hardware"], row["label"]) == ("cuda", "8 x test GPU", "ours")


def test_a_row_says_whose_it_is(tmp_path: Path):
    names = ("ours", "compile", "copy", "coccl-fused", "triton")
    rows = made(tmp_path, *(speed_case(40.0, 1000, arm=arm, source="s", note="n") for arm in names))
    assert [(r["arm"], r["label"]) for r in rows] == [
        ("ours", "ours"), ("compile", "ours"), ("copy", "ours"), ("coccl-fused", "authors-code"), ("triton", "peer"),
    ]  # fmt: skip
    assert {(r["implementation"], r["note"]) for r in rows} == {("s", "n")}


def test_an_arm_that_raised_has_its_reason_and_no_number(tmp_path: Path):
    broken = {"part": "operation", "op": "encode", "codec": "taco", "dtype": "bfloat16", "mib": 64, "parts": 1}
    (row,) = made(tmp_path, broken | {"arm": "coccl", "reason": "no kernel", "source": "s", "note": ""})
    assert (row["status"], row["reason"], row["label"]) == ("failed", "no kernel", "authors-code")
    assert {row[k] for k in ("us", "gbps", "copy_us", "fraction_of_copy")} == {""}


def test_small_calls_have_times_and_no_rates(results: Path):
    rows = [r for r in read_table(results / "fresh" / "codec_speed.csv") if r["part"] == "launch"]
    assert len(rows) == 48
    assert {(r["gbps"], r["fraction_of_copy"]) for r in rows} == {("", "")}
    assert all(float(r["us"]) > 0 for r in rows)


def test_mini_has_no_such_experiment():
    speed = EXPERIMENTS["codec_speed"]
    assert (speed.logs("mini"), speed.logs("logged"), speed.logs("fresh")) == ((), ("codec_speed",), ("codec_speed",))


@pytest.mark.parametrize(
    ("rows", "verdict_is", "value"),
    [
        (both(200.0), HOLDS, "0.95"),
        (both(200.0) + both(100.0, mib=256), FAILS, "0.9"),
        (both(200.0) + both(100.0, mib=8), HOLDS, "0.95"),
        (both(200.0) + both(100.0, dtype="float32"), HOLDS, "0.95"),
        (both(200.0, dtype="float32"), UNTESTABLE, ""),
        (both(200.0) + both(20.0, codec="int8") + both(20.0, arm="compile"), HOLDS, "0.95"),
        (both(200.0)[:1], UNTESTABLE, ""),
        (both(200.0, mib=8), UNTESTABLE, ""),
    ],
)
def test_operator_speed(rows: list[dict], verdict_is: str, value: str, tmp_path: Path):
    found = verdict(tmp_path, "operator-speed", *rows)
    assert (found["verdict"], found["value"]) == (verdict_is, value)


@pytest.mark.parametrize(
    ("theirs", "verdict_is", "value"),
    [
        (both(60.0, arm="coccl-a") + both(55.0, arm="coccl-b"), HOLDS, "1.1"),
        (both(60.0, arm="coccl-a") + both(45.0, arm="coccl-b"), FAILS, "0.9"),
        (both(50.0, arm="coccl"), FAILS, "1"),
        (both(60.0, arm="triton"), UNTESTABLE, ""),
        (both(60.0, arm="coccl")[:1], UNTESTABLE, ""),
        (both(60.0, arm="coccl", mib=256), UNTESTABLE, ""),
        (both(60.0, arm="coccl", timing="eager"), HOLDS, "1.2"),
        (both(60.0, arm="coccl", codec="int8"), UNTESTABLE, ""),
    ],
)
def test_faster_than_released(theirs: list[dict], verdict_is: str, value: str, tmp_path: Path):
    found = verdict(tmp_path, "faster-than-released", *both(50.0), *theirs)
    assert (found["verdict"], found["value"]) == (verdict_is, value)


def test_a_small_call_of_the_host_is_not_compared_with_one_in_a_graph(tmp_path: Path):
    rows = [*both(50.0, mib=1), *both(60.0, mib=1, arm="coccl", timing="eager")]
    assert verdict(tmp_path, "faster-than-released", *rows)["verdict"] == UNTESTABLE


def test_the_figure_of_a_quick_look_says_what_it_lacks(tmp_path: Path):
    made(tmp_path, *both(50.0, mib=1))
    svg, _ = draw.make("codec_speed", "fresh", tmp_path, tmp_path / "figures")
    assert svg.stat().st_size > 1000

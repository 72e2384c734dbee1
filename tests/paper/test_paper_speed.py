"""codec_speed on paper: rates by hand, who is what, small calls, and arms that raised."""

from __future__ import annotations

from pathlib import Path

import paper_logs
from paper_logs import speed_case

from taco.paper import tables
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


def test_the_figure_of_a_quick_look_says_what_it_lacks(tmp_path: Path):
    made(tmp_path, *both(50.0, mib=1))
    svg, _ = draw.make("codec_speed", "fresh", tmp_path, tmp_path / "figures")
    assert svg.stat().st_size > 1000

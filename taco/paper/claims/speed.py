"""Verdicts on the speed of the kernels: against a copy of the same bytes, and against the authors' kernel."""

from __future__ import annotations

from taco.paper.claims.verdict import Tables, Verdict, absent, finite, judged
from taco.paper.table import Cells, number
from taco.recipes.claims import Claim
from taco.recipes.speed import CODING, SPEED

COMPARED = ("op", "dtype", "mib", "log")
# what training sends; the kernels of other dtypes are general ones
DTYPE = "bfloat16"


def _taco(tables: Tables, label: str) -> list[Cells]:
    """Rows of encode and decode of the paper's codec; empty unless there are rows of both."""
    rows = tables.rows("codec_speed", part="operation", codec="taco", label=label)
    rows = [r for r in finite(rows, "us") if r["op"] in CODING and r["arm"] != "compile"]
    return rows if {r["op"] for r in rows} == set(CODING) else []


def _where(row: Cells) -> str:
    return f"{row['op']} of {row['mib']} MiB of {row['dtype']}"


def operator_speed(claim: Claim, tables: Tables) -> Verdict:
    """The slowest of the large messages decides; below `compared_mib` the start of a kernel counts as much."""
    rows = [r for r in _taco(tables, "ours") if r["dtype"] == DTYPE and number(r["mib"]) >= SPEED.compared_mib]
    if {r["op"] for r in rows} != set(CODING):
        return absent(f"times of encode and decode of taco at {SPEED.compared_mib} MiB and more")
    worst = min(rows, key=lambda r: number(r["fraction_of_copy"]))
    value = number(worst["fraction_of_copy"])
    words = (
        f"slowest of {len(rows)}: {_where(worst)} in {number(worst['us']):.1f} us, {number(worst['gbps']):.0f} GB/s "
        f"where a copy of the same bytes has {number(worst['copy_gbps']):.0f}"
    )
    return judged(value >= claim.threshold, value, words, rows)


def _alike(a: Cells, b: Cells) -> bool:
    return a["timing"] == b["timing"] or number(a["mib"]) >= SPEED.compared_mib


def faster_than_released(claim: Claim, tables: Tables) -> Verdict:
    """Ours against the fastest of the authors' arms with the same operation and size in the same run; the worst size
    decides. A small call that no CUDA graph holds has the host's time, and is not compared with one in a graph."""
    released: dict[tuple, Cells] = {}
    for r in sorted(_taco(tables, "authors-code"), key=lambda r: -number(r["us"])):
        released[tuple(r[k] for k in COMPARED)] = r
    pairs = [(r, released.get(tuple(r[k] for k in COMPARED))) for r in _taco(tables, "ours")]
    pairs = [(ours, theirs) for ours, theirs in pairs if theirs and _alike(ours, theirs)]
    if {ours["op"] for ours, _ in pairs} != set(CODING):
        return absent("time of the authors' released kernel beside ours, encode and decode")
    ours, theirs = min(pairs, key=lambda p: number(p[1]["us"]) / number(p[0]["us"]))
    value = number(theirs["us"]) / number(ours["us"])
    words = (
        f"least gain of {len(pairs)}: {_where(ours)} in {number(ours['us']):.1f} us against "
        f"{number(theirs['us']):.1f} us of {theirs['arm']}"
    )
    return judged(value > claim.threshold, value, words, [row for pair in pairs for row in pair])

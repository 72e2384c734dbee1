"""The table of codec_speed: what an operation moves, how fast, and how fast a copy of as many bytes is."""

from __future__ import annotations

import math

from taco.paper.table import Row, number
from taco.paper.tables.load import PROVENANCE, Logs, codec_rank, missing, timed_rows
from taco.recipes.speed import OPS, SPEED

SPEED_COLUMNS = (
    "part", "op", "codec", "dtype", "mib", "parts", "arm", "path", "timing", "us", "us_iqr", "bytes", "gbps",
    "copy_us", "copy_us_iqr", "copy_gbps", "fraction_of_copy", "calls", "replays", "implementation", "note", "reason",
    *PROVENANCE,
)  # fmt: skip
AS_LOGGED = ("part", "op", "codec", "dtype", "parts", "arm", "path", "timing", "bytes", "calls", "replays", "note",
             "reason")  # fmt: skip
OURS = ("ours", "compile", "copy")


def codec_speed(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """Part `operation`: a row a case and arm, with rates in 10^9 bytes a second. Part `launch`: small calls.

    gbps: bytes that the operation must move over its time; copy_gbps: the same bytes over the time of a copy that took
    turns with it; fraction_of_copy: copy_us / us. Small calls are timed with warm caches, and so have no rate. An
    implementation that raised has status `failed` and its reason.
    """
    rows = [row for name, source in logs.measures.items() for row in timed_rows(name, source, _row, _is_ours)]
    rows.sort(key=_order)
    return SPEED_COLUMNS, rows + [missing(name) for name in logs.missing_measures]


def _is_ours(record: dict) -> bool:
    return record["part"] == "launch" or record["arm"] in OURS


def _row(record: dict) -> Row:
    row = {key: record[key] for key in AS_LOGGED if key in record}
    row |= {key: number(record.get(key)) for key in ("mib", "us", "us_iqr", "copy_us", "copy_us_iqr")}
    row["implementation"] = record.get("source", "")
    if record["part"] == "operation":
        row["gbps"], row["copy_gbps"] = (_rate(record, key) for key in ("us", "copy_us"))
        row["fraction_of_copy"] = row["copy_us"] / row["us"] if row["us"] > 0 else math.nan
    return row


def _rate(record: dict, key: str) -> float:
    """10^9 bytes a second; NaN without a time."""
    us = number(record.get(key))
    return record["bytes"] / us / 1e3 if us > 0 else math.nan


def _order(row: Row) -> tuple:
    op = OPS.index(row["op"]) if row["op"] in OPS else len(OPS)
    dtype = SPEED.dtypes.index(row["dtype"]) if row["dtype"] in SPEED.dtypes else len(SPEED.dtypes)
    arm = OURS.index(row["arm"]) if row["arm"] in OURS else len(OURS)
    return row["part"] != "operation", op, codec_rank(row["codec"]), dtype, row["mib"], row["parts"], arm, row["arm"]

"""The table of collective: times by transport, and what compression and what our kernel gain over others' best."""

from __future__ import annotations

import math

from taco.paper.table import Row, number
from taco.paper.tables.load import PROVENANCE, Logs, codec_rank, missing, timed_rows
from taco.recipes.collective import BASELINES, CHOSEN, COLLECTIVES, FUSED, TRANSPORTS, UNFUSED

COLLECTIVE_COLUMNS = (
    "collective", "link", "world_size", "mib", "dtype", "arm", "codec", "path", "timing", "us", "us_iqr", "bus_gbps",
    "bytes", "wire_bytes", "best_bf16_us", "best_bf16_arm", "speedup_vs_best_bf16", "speedup_vs_own_bf16",
    "rank_identical", "rel_error", "calls", "replays", "implementation", "note", "reason", *PROVENANCE,
)  # fmt: skip
AS_LOGGED = ("collective", "world_size", "dtype", "arm", "codec", "path", "timing", "bytes", "wire_bytes",
             "rank_identical", "calls", "replays", "note", "reason")  # fmt: skip
OURS = (FUSED, UNFUSED, CHOSEN)
ARMS = (*BASELINES, *OURS)
SAME = ("log", "collective", "world_size", "mib", "dtype")
"""Columns that rows share which are compared."""


def collective(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """One row per transport (link), collective, size and arm.

    bus_gbps: 10^9 bytes a second of the full uncompressed tensor over the time, times 2(N-1)/N for an all-reduce and
    (N-1)/N for the others: what a ring would send uncompressed, so that arms with other bytes on the wire compare.
    best_bf16: the fastest uncompressed arm that is not ours, in the same log. speedup_vs_own_bf16: against our kernel
    with an uncompressed payload: what compression buys; the rest of speedup_vs_best_bf16 the kernel buys. An arm that
    raised has status `failed` and its reason.
    """
    rows = [row for name, source in logs.measures.items() for row in timed_rows(name, source, _row, _is_ours)]
    for row in rows:
        row |= _compared(row, [other for other in rows if all(other[k] == row[k] for k in SAME)])
    rows.sort(key=_order)
    return COLLECTIVE_COLUMNS, rows + [missing(name) for name in logs.missing_measures]


def _is_ours(record: dict) -> bool:
    return record["arm"] in OURS


def _row(record: dict) -> Row:
    row = {key: record[key] for key in AS_LOGGED if key in record}
    row |= {key: number(record.get(key)) for key in ("mib", "us", "us_iqr", "rel_error")}
    row |= {"link": record["transport"], "implementation": record.get("source", "")}
    if row["us"] > 0:
        rounds, ranks = 2 if record["collective"] == "all_reduce" else 1, record["world_size"]
        row["bus_gbps"] = rounds * (ranks - 1) / ranks * record["bytes"] / row["us"] / 1e3
    return row


def _compared(row: Row, same: list[Row]) -> Row:
    """The columns that set a row beside the others of its case; nothing for one without a time."""
    timed = [other for other in same if other["us"] > 0]
    plain = min((other for other in timed if other["arm"] in BASELINES), key=lambda r: (r["us"], r["arm"]), default={})
    own = next((other for other in timed if (other["arm"], other["codec"]) == (FUSED, "none")), {})
    if not row["us"] > 0:
        return {}
    return {
        "best_bf16_us": plain.get("us", math.nan), "best_bf16_arm": plain.get("arm", ""),
        "speedup_vs_best_bf16": plain.get("us", math.nan) / row["us"],
        "speedup_vs_own_bf16": own.get("us", math.nan) / row["us"],
    }  # fmt: skip


def _place(known: tuple[str, ...], name: str) -> tuple[int, str]:
    return known.index(name) if name in known else len(known), name


def _order(row: Row) -> tuple:
    return (
        _place(tuple(TRANSPORTS), row["link"]), _place(COLLECTIVES, row["collective"]), row["world_size"], row["dtype"],
        row["mib"], _place(ARMS, row["arm"]), codec_rank(row["codec"]),
    )  # fmt: skip

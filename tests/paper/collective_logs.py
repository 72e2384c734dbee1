"""Invented logs of collective: input for tests of its table, figure and claims."""

from __future__ import annotations

from pathlib import Path

import paper_logs

from taco.recipes import COLLECTIVE, TRANSPORTS
from taco.recipes.collective import log_name

MIB = 2**20
US_A_MIB = {"nvlink": 4.0, "host": 37.0, "tcp": 360.0}
"""What an uncompressed call takes, beside 10 us for its start."""
RATIO = {"none": 1.0, "taco": 1.88, "int8": 1.97, "fp8": 1.98, "int6": 2.61, "int4": 3.55}


def row(us: float, **more) -> dict:
    """A row of the log: NCCL's all-reduce of 64 MiB on two ranks, unless `more` says otherwise."""
    mib = more.get("mib", 64)
    return {
        "collective": "all_reduce", "transport": "nvlink", "world_size": 2, "mib": mib, "dtype": "bfloat16",
        "arm": "nccl", "codec": "none", "us": us, "us_iqr": 0.5, "timing": "graph", "calls": 8, "replays": 15,
        "bytes": int(mib * MIB), "wire_bytes": int(mib * MIB), "rank_identical": True, "rel_error": 0.002,
    } | more  # fmt: skip


def failed(**more) -> dict:
    """A record of an arm that raised."""
    kept = ("collective", "transport", "world_size", "mib", "dtype", "arm", "codec")
    made = row(1.0, **more)
    return {key: made[key] for key in kept} | {"reason": more.get("reason", "no peer access")}


def grid_rows(transport: str) -> list[tuple[str, dict]]:
    """Every case of the full grid: NCCL, ours, and over NVLink torch's kernels and a peer that did not run."""
    records = []
    for case in COLLECTIVE[transport].cases():
        where = {"collective": case.collective, "transport": transport, "mib": case.mib}
        if case.collective == "reduce_scatter":
            where["rank_identical"] = None
        arms = [("nccl", "none"), *(("unfused", codec) for codec in case.codecs)]
        if transport != "tcp":
            arms += [("fused", codec) for codec in ("none", *case.codecs)]
        if transport == "nvlink":
            reduces = case.collective == "all_reduce"
            arms += [("symm-two-shot", "none"), ("symm-one-shot", "none")] if reduces else [("symm-copies", "none")]
            records.append(("failed", failed(**where, arm="other", reason="no kernel")))
        for arm, codec in arms:
            start = {"unfused": 60.0, "fused": 8.0, "symm-one-shot": 5.0, "symm-copies": 20.0}.get(arm, 10.0)
            slow = {"symm-one-shot": 1.3, "symm-two-shot": 0.9, "fused": 0.95}.get(arm, 1.0)
            us = start + slow * US_A_MIB[transport] * case.mib / RATIO[codec]
            records.append(("row", row(us, **where, arm=arm, codec=codec)))
    return records


def write(folder: Path, transport: str, records: list[dict]) -> Path:
    """The finished log of a transport with these rows; one with a reason is a failed arm."""
    kinds = [("failed" if "reason" in r else "row", r) for r in records]
    return paper_logs.write(folder / f"{log_name(transport)}.jsonl", kinds, **paper_logs.GPU)


def all_logs(folder: Path) -> None:
    """A log of every transport."""
    for transport in TRANSPORTS:
        write(folder, transport, [record for _, record in grid_rows(transport)])

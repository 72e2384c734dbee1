"""Tables of the measuring programs: codec_fidelity, distribution, correctness. One row per record."""

from __future__ import annotations

from collections.abc import Callable

from taco import log
from taco.paper.table import Row, number
from taco.paper.tables.load import PROVENANCE, Logs, codec_rank, missing, provenance

FIDELITY = (
    "codec", "dataset", "tensors", "step", "role", "ranks", "bytes_per_element", "ratio_to_bf16", "sqnr_db",
    "bulk_sqnr_db", "one_shot_sqnr_db", "two_shot_sqnr_db", "max_error", *PROVENANCE,
)  # fmt: skip
DISTRIBUTION = (
    "part", "run", "step", "role", "layer", "name", "rank", "numel", "rms", "absmax_over_rms", "kurtosis",
    "near_zero_fraction", "crest_db_mean", "crest_db_max", "crest_rotated_db_mean", "alpha_clamped_fraction",
    "bin_low", "bin_high", "density", *PROVENANCE,
)  # fmt: skip
CORRECTNESS = ("rule", "section", "statement", "subject", "codec", "passed", "detail", *PROVENANCE)

TEXT = {"codec", "dataset", "tensors", "role", "run", "name", "rule", "section", "statement", "subject", "detail"}


def _copy(record: dict, columns: tuple[str, ...]) -> Row:
    """The columns that a record has; numbers of a log (which travel as words when not finite) become floats."""
    row = {}
    for column in columns:
        if column not in record or column in PROVENANCE:
            continue
        value = record[column]
        row[column] = value if column in TEXT or isinstance(value, (int, bool)) or value is None else number(value)
    return row


def _rows(logs: Logs, columns: tuple[str, ...], label: Callable[[dict], str]) -> list[Row]:
    rows = []
    for name, source in logs.measures.items():
        for record in source.of("row"):
            rows.append(_copy(record, columns) | provenance(name, source, label(record)))
    return rows + [missing(name) for name in logs.missing_measures]


def codec_fidelity(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """Codec by data set: bytes an element, SQNR in dB, SQNR of the channels that are not outliers, largest error."""
    rows = _rows(logs, FIDELITY, lambda r: r.get("label", "ours"))
    rows.sort(
        key=lambda r: (
            r["label"] != "ours", codec_rank(r.get("codec", "")), r.get("tensors", ""), r.get("dataset", ""),
            r.get("step") or 0, r.get("role", ""),
        )
    )  # fmt: skip
    return FIDELITY, rows


def distribution(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """One row per captured tensor (part `tensor`), then one per histogram bin (part `histogram`).

    density is per unit of the bins' axis: it integrates to the share of elements inside the bins.
    """
    rows = [{"part": "tensor", **row} for row in _rows(logs, DISTRIBUTION, lambda r: "ours")]
    rows.sort(key=lambda r: (str(r.get("run", "")), r.get("step") or 0, str(r.get("role", "")), *_place(r)))
    bins = []
    for name, source in logs.measures.items():
        for record in source.of("histogram"):
            bins += [row | provenance(name, source) for row in _histogram(record)]
    bins.sort(key=lambda r: (str(r.get("run", "")), r.get("step") or 0, r["role"], *_place(r), r["bin_low"]))
    return DISTRIBUTION, rows + bins


def _place(row: Row) -> tuple:
    layer = row.get("layer")
    number_first = (0, layer, "") if isinstance(layer, int) else (1, 0, str(layer))
    return (*number_first, str(row.get("name", "")), str(row.get("rank", "")))


def _histogram(record: dict) -> list[Row]:
    edges, counts = record["edges"], record["counts"]
    if len(edges) != len(counts) + 1:
        raise log.LogError(
            f"got a histogram of {len(counts)} counts and {len(edges)} edges; need one edge more than counts; "
            "because every bin has two edges"
        )
    total = sum(counts) + record.get("outside", 0)
    where = {key: record.get(key) for key in ("run", "step", "role", "layer", "name") if key in record}
    return [
        {"part": "histogram", **where, "bin_low": float(low), "bin_high": float(high),
         "density": count / total / (high - low) if total else 0.0}
        for low, high, count in zip(edges, edges[1:], counts, strict=False)
    ]  # fmt: skip


def correctness(logs: Logs) -> tuple[tuple[str, ...], list[Row]]:
    """One row per rule and subject: ours, or the authors' published semantics run by us."""
    rows = _rows(logs, CORRECTNESS, lambda r: "ours" if r["subject"] == "ours" else "authors-code")
    rows.sort(
        key=lambda r: (
            str(r.get("section", "")),
            r.get("rule", ""),
            r["label"] != "ours",
            codec_rank(r.get("codec", "")),
        )
    )
    return CORRECTNESS, rows

"""The one writer and the one reader of the CSV files between tables, figures and claims.

The same rows always give the same bytes: floats have six significant digits, lines end in a newline,
a number that does not exist is an empty cell, and a file appears whole or not at all.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Cells = dict[str, str]


def number(value: Any) -> float:
    """A float of a log's or a cell's value; NaN for an empty cell, None or a word that is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def cell(value: Any) -> str:
    """The text of one cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # adding zero turns -0.0 into 0.0: both are the same number and get the same text
        return "" if math.isnan(value) else f"{value + 0.0:.6g}"
    return str(value)


def distinct(values: Iterable[Any]) -> str:
    """The values but empty ones, each once, in order; of more than four the first and how many more there are."""
    found = sorted({cell(value) for value in values} - {""})
    return "; ".join(found) if len(found) <= 4 else f"{found[0]} and {len(found) - 1} more"


def write_table(path: str | Path, columns: Sequence[str], rows: Iterable[Row]) -> Path:
    """Write `rows` under `columns`, in the order given. Raises `ValueError` for a row with an unknown column."""
    path = Path(path)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        unknown = sorted(set(row) - set(columns))
        if unknown:
            raise ValueError(
                f"got a row of {path.name} with {', '.join(unknown)}; need columns among {', '.join(columns)}; "
                "because a column that is not declared would be lost"
            )
        writer.writerow([cell(row.get(column)) for column in columns])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text.getvalue())
    os.replace(part, path)
    return path


def read_table(path: str | Path) -> list[Cells]:
    """All rows of a table as text. Raises `ValueError` for a missing, empty, foreign or truncated file."""
    path = Path(path)
    if not path.exists():
        raise ValueError(
            f"got no file {path}; need a table, which `taco tables` makes; because figures and verdicts read those"
        )
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
            header = reader.fieldnames
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"got {path}; need a CSV table; because {error}") from error
    if not header:
        raise ValueError(f"got the empty file {path}; need a header line; because columns are found by name")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError(
            f"got {path} with lines of other lengths than its header; need a whole table; because it is truncated or "
            "not one that `taco tables` has made"
        )
    return rows

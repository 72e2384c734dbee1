"""What a rule finds, and the tables that it looks at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from taco.paper.table import Cells, number, read_table

HOLDS, FAILS, UNTESTABLE = "holds", "does not hold", "not testable here"


@dataclass(frozen=True)
class Verdict:
    """What a rule found. `value` is in the claim's unit; `rows` are the table rows it was computed from."""

    verdict: str
    reason: str
    value: float = math.nan
    rows: list[Cells] = field(default_factory=list)


class Tables:
    """The tables of one source, read when a rule asks for them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read = cache(self._measured)

    def _measured(self, experiment: str) -> list[Cells]:
        path = self.folder / f"{experiment}.csv"
        rows = read_table(path) if path.exists() else []
        return [r for r in rows if r["kind"] == "measured" and r["status"] == "measured"]

    def rows(self, experiment: str, **equal: str) -> list[Cells]:
        """Measured rows whose columns equal these values; none if the table does not exist."""
        return [r for r in self._read(experiment) if all(r[k] == v for k, v in equal.items())]


def absent(what: str) -> Verdict:
    """The verdict of a source that lacks what the rule needs."""
    return Verdict(UNTESTABLE, f"this source has no {what}")


def judged(ok: bool, value: float, reason: str, rows: list[Cells]) -> Verdict:
    """The verdict of a rule that could decide."""
    return Verdict(HOLDS if ok else FAILS, reason, value, rows)


def finite(rows: list[Cells], column: str) -> list[Cells]:
    """The rows with a finite number in `column`."""
    return [r for r in rows if math.isfinite(number(r[column]))]

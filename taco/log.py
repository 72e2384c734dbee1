"""The one writer and the one reader of results: a JSONL file of a header, records and an end.

    {"kind": "header", "version": 1, "name": ..., "config": {...}, "provenance": {...}}
    {"kind": "step" | "eval" | "row" | ..., ...}
    {"kind": "end", "records": N, ...}

A log is written to `<path>.part` and becomes `<path>` only when `close` has written the end record,
so a half-written log is never read as a result.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taco.config import completed

VERSION = 1


class LogError(ValueError):
    """A log that cannot be written or read. The text says: got, need, why."""


def _encode(record: dict) -> str:
    return json.dumps(_plain(record), allow_nan=False, sort_keys=False)


def _plain(value: Any) -> Any:
    """JSON has no NaN or Inf: they travel as the strings 'nan', 'inf', '-inf'."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def part_path(path: str | Path) -> Path:
    """Where the log of `path` is while it is being written."""
    return Path(f"{path}.part")


def header_of(path: str | Path) -> dict:
    """The header of the log of `path`, finished or not; {} if there is none. Raises `LogError` for another file."""
    found = next((each for each in (Path(path), part_path(path)) if each.exists()), None)
    lines = _read_lines(found, tolerate_tail=True) if found else []
    return lines[0] if lines else {}


def resumable(path: str | Path, header: dict, step: int) -> list[dict]:
    """Records of the unfinished log of `path` up to `step`, for going on after it. Changes nothing.

    Raises `LogError` if there is none, or its config (or corpus, where `header` has one) is another, or it ends before
    that step.
    """
    part = part_path(path)
    lines = _read_lines(part, tolerate_tail=True) if part.exists() else []
    if not lines:
        raise LogError(
            f"got no log {part} to resume at step {step}; need the records of the steps before it; "
            "because the log would start in the middle (--force starts the run again)"
        )
    given = json.loads(_encode(header))
    checked = [key for key in ("config", "corpus") if key in given]
    other = [key for key in checked if completed(given[key]) != completed(lines[0].get(key))]
    if other:
        raise LogError(
            f"got {part} of another run (its {' and '.join(other)}); need the log of this run; "
            "because resuming would join two runs (--force starts the run again)"
        )
    kept = [r for r in lines[1:] if r["kind"] != "end" and r.get("step", 0) <= step]
    if max((r.get("step", 0) for r in kept), default=0) < step:
        raise LogError(
            f"got {part} that ends before step {step}; need the records up to that checkpoint; "
            "because the log would have a hole (--force starts the run again)"
        )
    return kept


class LogWriter:
    """Writes one log.

    path: final place, e.g. results/mini/gpt-mini.jsonl. header: `name`, `config`, `provenance` and
    anything else JSON can hold. resume_step: continue an interrupted log, keeping the records whose
    'step' is at most this number (the checkpoint's step); the rest will be written again. `kept` holds
    them. Raises `LogError` if the interrupted log is missing, belongs to another config, or lacks a step.
    """

    def __init__(self, path: str | Path, header: dict, *, resume_step: int | None = None) -> None:
        self.path = Path(path)
        self._records = 0
        self.kept = resumable(path, header, resume_step) if resume_step else []
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = part_path(path).with_suffix(".new")
        self._file = fresh.open("w")
        self._line({"kind": "header", "version": VERSION, **header})
        for record in self.kept:
            self.write(**record)
        self._file.flush()
        os.replace(fresh, part_path(path))

    def _line(self, record: dict) -> None:
        self._file.write(_encode(record) + "\n")

    def write(self, kind: str, **record: Any) -> None:
        """Append one record and hand it to the operating system."""
        self._line({"kind": kind, **record})
        self._file.flush()
        self._records += 1

    def close(self, **summary: Any) -> None:
        """Write the end record, then put the log in its place in one step."""
        self._line({"kind": "end", "records": self._records, **summary})
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(part_path(self.path), self.path)

    def abandon(self) -> None:
        """Close the file without making it a result; the part stays for a resume."""
        self._file.close()


@dataclass(frozen=True, kw_only=True)
class Log:
    """A complete log. `records` are all lines between header and end, in order."""

    path: Path
    header: dict
    records: list[dict]
    end: dict

    def of(self, kind: str) -> list[dict]:
        """Records of one kind."""
        return [r for r in self.records if r["kind"] == kind]


def _read_lines(path: Path, *, tolerate_tail: bool = False) -> list[dict]:
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"got {path}; need a log of JSON lines; because {error}") from error
    out = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            if tolerate_tail and number == len(lines):
                break
            raise LogError(f"got {path}:{number} that is not JSON; need one record a line; because {error}") from error
        if not isinstance(record, dict) or "kind" not in record:
            raise LogError(
                f"got {path}:{number} that is no record; need an object with its kind; "
                "because other files have other meanings"
            )
        out.append(record)
    return out


def read(path: str | Path) -> Log:
    """Read a complete log. Raises `LogError` for a missing, truncated or foreign file."""
    path = Path(path)
    if not path.exists():
        part, need = part_path(path), "a finished log"
        more = f", but {part}, the log of a run that is under way or was stopped" if part.exists() else ""
        if more:
            need += (
                ": wait for its end, or give its command (`taco train`) again, which goes on from its last checkpoint"
            )
        raise LogError(f"got no file {path}{more}; need {need}; because tables are made from finished runs")
    lines = _read_lines(path)
    if not lines or lines[0].get("kind") != "header" or lines[0].get("version") != VERSION:
        raise LogError(
            f"got {path} without a version-{VERSION} header; need a log written by taco.log; "
            "because other files have other meanings"
        )
    if lines[-1].get("kind") != "end" or lines[-1].get("records") != len(lines) - 2:
        raise LogError(
            f"got {path} truncated; need its end record and every record before it; "
            "because a part of a run is not a result"
        )
    return Log(path=path, header=lines[0], records=lines[1:-1], end=lines[-1])

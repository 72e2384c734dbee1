"""Every rule of the codec and the collectives that a CPU can check: ours, and the authors' published semantics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from taco.bench import correctness_codec, correctness_collective, correctness_ranks
from taco.bench.correctness_codec import Rule, Subject
from taco.log import LogWriter


def measure_correctness(source: str, captures: Sequence[Path], out: Path, provenance: dict) -> None:
    """Write one row per rule, subject and codec: {rule, section, statement, subject, codec, passed, detail}.

    section is 'codec' or 'collective', subject 'ours' or 'authors-code'. A rule that cannot be read off the published
    code has no row for it. captures are not used: every input is made here, the same on every machine.
    """
    log = LogWriter(out, {"name": "correctness", "config": {"source": source}, "provenance": provenance})
    for row in (*checks(), *correctness_ranks.run_checks()):
        log.write("row", **row)
    log.close()


def checks() -> Iterator[dict]:
    """Rows of the rules that need one process."""
    for subject in correctness_codec.subjects():
        for rule in (*correctness_codec.RULES, *correctness_collective.RULES):
            yield from _row(rule, subject)


def _row(rule: Rule, subject: Subject) -> Iterator[dict]:
    try:
        outcome = rule.check(subject)
    except Exception as error:  # a rule that raises is broken, and the other rules still have an answer
        outcome = (False, f"{type(error).__name__}: {error}")
    if outcome is not None:
        passed, detail = outcome
        yield {
            "rule": rule.name,
            "section": rule.section,
            "statement": rule.statement,
            "subject": subject.name,
            "codec": subject.codec,
            "passed": bool(passed),
            "detail": detail,
        }

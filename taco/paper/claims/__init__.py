"""`taco claims`: the tables of one source become one verdict per claim of the paper.

A verdict is `holds`, `does not hold` or `not testable here`, with the number and the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from taco.paper.claims import artifact
from taco.paper.claims.rules import RULES, Tables, Verdict
from taco.paper.table import Row, distinct, write_table
from taco.paper.tables.load import PROVENANCE, recorded
from taco.recipes import SOURCES
from taco.recipes.claims import CLAIMS, Claim

COLUMNS = (
    "id", "verdict", "value", "unit", "threshold", "reason", "statement", "paper_value", "source_of_claim",
    "experiment", "method", *PROVENANCE,
)  # fmt: skip


def make(source: str, results: Path = Path("results")) -> Path:
    """Write results/<source>/claims.csv, one row per claim in the order of taco.recipes.CLAIMS."""
    tables = Tables(results / source)
    rows = [_row(claim, RULES[claim.id](claim, tables)) for claim in CLAIMS]
    return write_table(results / source / "claims.csv", COLUMNS, rows)


def _row(claim: Claim, found: Verdict) -> Row:
    return {
        "id": claim.id, "verdict": found.verdict, "value": found.value, "unit": claim.unit,
        "threshold": claim.threshold, "reason": found.reason, "statement": claim.statement,
        "paper_value": claim.paper_value, "source_of_claim": claim.source,
        "experiment": claim.experiment, "method": claim.method,
        **{column: distinct(r[column] for r in found.rows) for column in PROVENANCE}, "kind": "measured",
        "status": "measured" if found.rows else "missing",
    }  # fmt: skip


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `taco claims`."""
    parser = subparsers.add_parser(
        "claims", help="CSV to verdicts", description="Make results/SOURCE/claims.csv from the tables of a source."
    )
    parser.add_argument("--source", default="mini", choices=SOURCES)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--artifact", type=Path, help="instead rewrite the generated parts of this file (ARTIFACT.md)")
    return parser


def run(args: argparse.Namespace) -> int:
    """Make the verdicts and print where they are, or rewrite the artifact's generated parts.

    Raises `ConfigError`, before any file is made, for a folder without logs.
    """
    if args.artifact:
        artifact.rewrite(args.artifact)
        print(args.artifact)
        return 0
    recorded(args.source, args.results / args.source)
    print(make(args.source, args.results))
    return 0


def main(argv: Sequence[str]) -> int:
    """`taco claims` with these arguments."""
    return run(add_parser(argparse.ArgumentParser(prog="taco").add_subparsers()).parse_args(argv))

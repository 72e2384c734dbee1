"""`taco tables [EXPERIMENT]`: the logs of one source become one CSV an experiment.

Every number, median and ratio is made here; figures and verdicts only read. A run or measurement that the
source does not have keeps its row, with status `missing` and empty numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from taco.paper.table import read_table, write_table
from taco.paper.tables import ablation, collective, measures, pareto, speed, training
from taco.paper.tables.load import add_experiment, experiment, read_logs, recorded

TABLES = {
    "codec_fidelity": measures.codec_fidelity,
    "distribution": measures.distribution,
    "accuracy": training.accuracy,
    "pareto": pareto.pareto,
    "threed": training.threed,
    "scaling": training.scaling,
    "ablation": ablation.ablation,
    "correctness": measures.correctness,
    "codec_speed": speed.codec_speed,
    "collective": collective.collective,
}


def make(name: str, source: str, results: Path = Path("results")) -> Path:
    """Write results/<source>/<name>.csv. Raises `ConfigError` for an unknown experiment, `LogError` for a bad log."""
    experiment(name)
    columns, rows = TABLES[name](read_logs(name, results / source, source))
    return write_table(results / source / f"{name}.csv", columns, rows)


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `taco tables`."""
    parser = subparsers.add_parser(
        "tables", help="logs to CSV", description="Make results/SOURCE/EXPERIMENT.csv from logs."
    )
    add_experiment(parser)
    return parser


def run(args: argparse.Namespace) -> int:
    """Make the table, or that of every experiment with a log, and print where it is; on stderr how many rows have none.

    Raises `ConfigError`, before any file is made, for an unknown experiment and a folder without logs.
    """
    if args.experiment:
        experiment(args.experiment)
    found = recorded(args.source, args.results / args.source)
    for name in [args.experiment] if args.experiment else found:
        path = make(name, args.source, args.results)
        print(path)
        rows = read_table(path)
        missing = sum(row["status"] == "missing" for row in rows)
        if missing:
            text = f"taco: {missing} of {len(rows)} rows of {path.name} have no log in {path.parent}"
            print(f"{text} (they need the recipes' own run names)", file=sys.stderr)
    return 0


def main(argv: Sequence[str]) -> int:
    """`taco tables` with these arguments."""
    return run(add_parser(argparse.ArgumentParser(prog="taco").add_subparsers()).parse_args(argv))

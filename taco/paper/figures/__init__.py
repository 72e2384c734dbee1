"""`taco figures [EXPERIMENT]`: one CSV becomes one figure, as SVG and PNG.

Figures hold no data and compute no statistics.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from taco.config import ConfigError
from taco.paper.tables.load import add_experiment, recorded


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `taco figures`."""
    parser = subparsers.add_parser(
        "figures", help="CSV to SVG and PNG", description="Draw figures/SOURCE/EXPERIMENT.svg and .png from its table."
    )
    add_experiment(parser)
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    return parser


def run(args: argparse.Namespace) -> int:
    """Draw the figure, or that of every experiment with a log, and print where it is.

    Raises `ConfigError` without matplotlib, for an unknown experiment and where all are asked for and there is no log.
    """
    try:
        draw = importlib.import_module("taco.paper.figures.draw")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"got no {error.name}; need `pip install taco[paper]`; because figures are drawn with matplotlib"
        ) from error
    names = [args.experiment] if args.experiment else recorded(args.source, args.results / args.source)
    for name in names:
        for path in draw.make(name, args.source, args.results, args.figures):
            print(path)
    return 0


def main(argv: Sequence[str]) -> int:
    """`taco figures` with these arguments."""
    return run(add_parser(argparse.ArgumentParser(prog="taco").add_subparsers()).parse_args(argv))

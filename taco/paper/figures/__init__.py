"""`taco figures EXPERIMENT`: one CSV becomes one figure, as SVG and PNG.

Figures hold no data and compute no statistics.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path

from taco.config import ConfigError
from taco.recipes import EXPERIMENTS, SOURCES


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Add `taco figures`."""
    parser = subparsers.add_parser(
        "figures", help="CSV to SVG and PNG", description="Draw figures/SOURCE/EXPERIMENT.svg and .png from its table."
    )
    parser.add_argument("experiment", metavar="EXPERIMENT", help=", ".join(EXPERIMENTS))
    parser.add_argument("--source", default="mini", choices=SOURCES)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    return parser


def run(args: argparse.Namespace) -> int:
    """Draw the figure and print where it is. Raises `ConfigError` without matplotlib."""
    try:
        draw = importlib.import_module("taco.paper.figures.draw")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"got no {error.name}; need `pip install taco[paper]`; because figures are drawn with matplotlib"
        ) from error
    for path in draw.make(args.experiment, args.source, args.results, args.figures):
        print(path)
    return 0


def main(argv: Sequence[str]) -> int:
    """`taco figures` with these arguments."""
    return run(add_parser(argparse.ArgumentParser(prog="taco").add_subparsers()).parse_args(argv))

"""The command line. A subcommand imports what it needs when it is chosen: `taco recipes` does not wait for torch."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from taco import __version__, recipes
from taco.config import ConfigError, require, to_dict
from taco.log import LogError
from taco.train.runs import find_run, nearest, override

BAD_INPUT, FAILED, INTERRUPTED = 2, 1, 130


# --- train -----------------------------------------------------------------------------------------


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="name of a run (see `taco recipes list`) or a JSON file of one")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="e.g. train.steps=50")
    parser.add_argument("--source", default="fresh", help="results/SOURCE/RUN.jsonl is the log (default: fresh)")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="folder of results/ and checkpoints/")
    parser.add_argument(
        "--capture", type=Path, metavar="FILE", help="also write the tensors sent in one step; {step} is its number"
    )
    parser.add_argument(
        "--capture-step", type=int, nargs="+", default=[], metavar="N", help="that step, or several (default: the last)"
    )
    again = parser.add_mutually_exclusive_group()
    again.add_argument("--force", action="store_true", help="start again, over this run's log and checkpoints")
    again.add_argument(
        "--on-mismatch",
        choices=("error", "restart"),
        default="error",
        help="when a log or checkpoint of another configuration, or a damaged one, is in the way (default: error)",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="",
        help="default: cpu for the source mini, which means the same on every machine, else auto",
    )
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads a rank (default: 1)")
    parser.add_argument(
        "--no-replay",
        action="store_true",
        help="launch each kernel, also where a CUDA graph could, which is faster and keeps a step's memory",
    )


def _train(args: argparse.Namespace) -> int:
    require(args.threads >= 1, f"--threads {args.threads}", "at least 1", "a rank computes on a thread")
    run = override(find_run(args.run, recipes.RUNS), args.set)
    trainer = importlib.import_module("taco.train.trainer")
    files = importlib.import_module("taco.train.files")
    options = files.Options(
        source=args.source,
        out=args.out,
        force=args.force,
        restart=args.on_mismatch == "restart",
        replay=not args.no_replay,
        capture=args.capture,
        capture_steps=tuple(args.capture_step),
    )
    device = args.device or ("cpu" if args.source == "mini" else "auto")
    trainer.train(run, options, os.environ, device=device, threads=args.threads)
    return 0


# --- recipes ---------------------------------------------------------------------------------------


def _all_recipes() -> dict[str, dict]:
    return {
        "run": recipes.RUNS,
        "experiment": recipes.EXPERIMENTS,
        "model": recipes.MODELS,
        "codec": recipes.PRESETS,
    }


def _recipes_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list | show")
    listing = actions.add_parser("list", help="every name, with its kind")
    listing.add_argument("kind", nargs="?", default="", help=f"only one of {', '.join(_all_recipes())}")
    actions.add_parser("show", help="one recipe as JSON").add_argument("name")


def _recipes(args: argparse.Namespace) -> int:
    kinds = _all_recipes()
    if args.action == "show":
        found = [items[args.name] for items in kinds.values() if args.name in items]
        known = [name for items in kinds.values() for name in items]
        need = f"a name from `taco recipes list`, such as {nearest(args.name, known)}"
        require(bool(found), f"recipe {args.name!r}", need, "no recipe has this name")
        is_experiment = args.name in recipes.EXPERIMENTS
        print(json.dumps(asdict(found[0]) if is_experiment else to_dict(found[0]), indent=2))
        return 0
    wanted = getattr(args, "kind", "")
    require(not wanted or wanted in kinds, f"kind {wanted!r}", f"one of {', '.join(kinds)}", "recipes have these kinds")
    for kind, items in kinds.items():
        for name in items if wanted in ("", kind) else ():
            print(f"{kind:<10}  {name}")
    return 0


# --- runs ------------------------------------------------------------------------------------------


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    importlib.import_module("taco.train.queue_cli").add_arguments(parser)


def _runs(args: argparse.Namespace) -> int:
    return importlib.import_module("taco.train.queue_cli").run(args)


# --- measure, kernels ------------------------------------------------------------------------------


def _measure_arguments(parser: argparse.ArgumentParser) -> None:
    importlib.import_module("taco.bench.measure_cli").add_arguments(parser)


def _measure(args: argparse.Namespace) -> int:
    return importlib.import_module("taco.bench.measure_cli").run(args, os.environ)


def _kernels_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("build",), help="compile kernels/ with nvcc")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the library (default: kernels/build/libtaco.so)")
    parser.add_argument("--arch", nargs="+", metavar="SM", help="GPU architectures, e.g. 90a (default: all supported)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="compilers at a time")


def _kernels(args: argparse.Namespace) -> int:
    kernels = importlib.import_module("taco.kernels")
    output, architectures = args.out or kernels.LIBRARY, args.arch or kernels.ARCHITECTURES
    print(kernels.build(output, architectures=architectures, jobs=args.jobs))
    return 0


# --- what others mount -----------------------------------------------------------------------------


def _data(args: argparse.Namespace) -> int:
    return importlib.import_module("taco.train.data_cli").run(args) or 0


def _crossover_arguments(parser: argparse.ArgumentParser) -> None:
    importlib.import_module("taco.train.crossover_cli").add_arguments(parser)


def _crossover(args: argparse.Namespace) -> int:
    return importlib.import_module("taco.train.crossover_cli").run(args, os.environ)


def _paper(module: str) -> Callable[[Sequence[str]], int]:
    """A command whose module parses the arguments itself."""
    return lambda argv: importlib.import_module(f"taco.paper.{module}").main(argv) or 0


# name -> (help, add arguments (None: the module mounts its own parser), run)
COMMANDS: dict[str, tuple[str, Callable | None, Callable]] = {
    "train": ("train a run; under torchrun for more than one rank", _train_arguments, _train),
    "data": ("turn text, JSONL or parquet into tokens", None, _data),
    "measure": ("measure codecs and collectives", _measure_arguments, _measure),
    "crossover": ("measure from which size on compression pays; under torchrun", _crossover_arguments, _crossover),
    "recipes": ("list and show runs, experiments, models and codecs", _recipes_arguments, _recipes),
    "runs": ("the accuracy runs in order of worth, and which logs exist", _runs_arguments, _runs),
    "kernels": ("build the CUDA kernels", _kernels_arguments, _kernels),
}
PAPER: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "tables": ("results -> CSV", _paper("tables")),
    "figures": ("CSV -> figures", _paper("figures")),
    "claims": ("results -> verdicts", _paper("claims")),
}


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command in `argv`: only that command's module is imported."""
    parser = argparse.ArgumentParser(prog="taco", description="Compressed communication for parallel training.")
    parser.add_argument("--version", action="version", version=f"taco {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((a for a in argv if not a.startswith("-")), "")
    for name, (text, add_arguments, _) in COMMANDS.items():
        if name == chosen and add_arguments is None:
            importlib.import_module("taco.train.data_cli").add_parser(commands)
            continue
        command = commands.add_parser(name, help=text, description=text)
        if name == chosen:
            add_arguments(command)
    for name, (text, _) in PAPER.items():
        commands.add_parser(name, help=text)
    known = [*COMMANDS, *PAPER]
    if chosen and chosen not in known:
        near = difflib.get_close_matches(chosen, known, n=1)
        nearest_one = f" (nearest: {near[0]})" if near else ""
        parser.error(f"got command {chosen!r}; need one of {', '.join(known)}{nearest_one}; because no other exists")
    return parser


def _run(argv: Sequence[str]) -> int:
    if argv and argv[0] in PAPER:
        return PAPER[argv[0]][1](argv[1:])
    args = _parser(argv).parse_args(argv)
    return COMMANDS[args.command][2](args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for bad input, which is one line and never a traceback."""
    try:
        status = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception as error:
        status = _status(error)
        if status is None:
            raise
        # bad input is bad for every rank of a machine: one of them says so
        if status != BAD_INPUT or os.environ.get("LOCAL_RANK", "0") == "0":
            print(f"taco: {error}", file=sys.stderr)
        return status


def _status(error: Exception) -> int | None:
    """Exit status of an error whose text is meant for people; None for one that needs its traceback.

    Bad input says "got ...; need ...; because ..." everywhere in this project, so its text tells it apart from a
    fault of the program; the classes are not imported here because their modules import torch.
    """
    if isinstance(error, (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)):
        return BAD_INPUT  # a path that was given: its text names it
    text = str(error)
    if isinstance(error, (ConfigError, LogError)) or (text.startswith("got ") and "; need " in text):
        return BAD_INPUT
    return FAILED if type(error).__name__ == "RankLostError" else None

"""The command `taco runs`: the queue of accuracy runs in order of worth, and which logs exist. Free of torch."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from taco.config import Run, require
from taco.log import part_path
from taco.recipes import QUEUE, SOURCES, Stage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to print, and where logs are."""
    parser.add_argument("--missing", action="store_true", help="only runs without a finished log")
    parser.add_argument("--stage", default="", metavar="NAME", help=f"only one of {', '.join(s.name for s in QUEUE)}")
    parser.add_argument("--source", choices=SOURCES, help="where logs count (default: logged and fresh)")
    parser.add_argument("--results", type=Path, default=Path("results"))


def state(run: Run, results: Path, sources: tuple[str, ...]) -> str:
    """The first source that has the run's finished log; else `unfinished` for a part of one, else `missing`."""
    logs = {source: results / source / f"{run.name}.jsonl" for source in sources}
    done = [source for source, log in logs.items() if log.exists()]
    parts = any(part_path(log).exists() for log in logs.values())
    return done[0] if done else "unfinished" if parts else "missing"


def queued() -> Iterator[tuple[Stage, Run]]:
    """Every run of the queue once, with the first stage that wants it."""
    seen: set[str] = set()
    for stage in QUEUE:
        for run in stage.runs:
            if run.name not in seen:
                seen.add(run.name)
                yield stage, run


def run(args: argparse.Namespace) -> int:
    """Print a line `# stage: why` before each stage, then name, tokens and state of its runs, with tabs between."""
    stages = [stage.name for stage in QUEUE]
    known = args.stage in ("", *stages)
    require(known, f"--stage {args.stage!r}", f"one of {', '.join(stages)}", "the queue has these")
    sources = (args.source,) if args.source else ("logged", "fresh")
    title = ""
    for stage, item in queued():
        found = state(item, args.results, sources)
        if args.stage not in ("", stage.name) or (args.missing and found in sources):
            continue
        if stage.name != title:
            title = stage.name
            print(f"# {title}: {stage.why}")
        tokens = item.train.steps * item.train.batch * item.data.seq
        print(f"{item.name}\t{tokens / 1e6:.1f}M\t{found}")
    return 0

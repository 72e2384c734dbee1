"""`taco measure`: which program makes a log, and what may be asked of it. torch is imported when one is chosen."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType

from taco import recipes
from taco.config import require
from taco.recipes.collective import COLLECTIVES, log_name
from taco.train.runs import nearest

# measurement log -> (module, function); each is called with (source, captures, out, provenance), and with its options
MEASURES = {
    "codec_fidelity": ("taco.bench.fidelity", "measure_fidelity"),
    "distribution": ("taco.bench.distribution", "measure_distribution"),
    "ablation": ("taco.bench.ablation", "measure_ablation"),
    "correctness": ("taco.bench.correctness", "measure_correctness"),
    "codec_speed": ("taco.bench.speed", "measure_codec_speed"),
    "collective": ("taco.bench.collective", "measure_collective"),
}
CAPTURES = "*.safetensors"
OPTIONS = {
    "codec_speed": ("codecs", "ops", "mib", "peers", "skip_compile"),
    "collective": ("codecs", "collectives", "mib", "peers", "tables", "transport"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `taco measure`."""
    parser.add_argument("name", help=f"one of {', '.join(MEASURES)}")
    parser.add_argument("--source", default="fresh", help="results/SOURCE/NAME.jsonl is the log (default: fresh)")
    parser.add_argument(
        "--captures",
        type=Path,
        nargs="*",
        default=[],
        metavar="PATH",
        help="files of `train --capture`, or folders of them",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the log there instead")
    speed = parser.add_argument_group("codec_speed, collective", "on GPUs; all of it, or a part for a quick look")
    speed.add_argument("--codecs", nargs="+", default=[], metavar="NAME", help="only these codecs")
    speed.add_argument("--mib", nargs="+", type=_mib, default=[], metavar="N", help="sizes of the tensor in MiB")
    speed.add_argument(
        "--peers", type=Path, metavar="FILE.py", help="other implementations: taco/bench/{speed,collective}_peers.py"
    )
    alone = parser.add_argument_group("codec_speed")
    ops, collectives = ", ".join(recipes.SPEED.ops), ", ".join(COLLECTIVES)
    alone.add_argument("--ops", nargs="+", default=[], metavar="OP", help=f"only some of {ops}")
    alone.add_argument("--skip-compile", action="store_true", help="without torch.compile, which takes a minute")
    ranks = parser.add_argument_group("collective", "under torchrun; its log is results/SOURCE/collective-WAY.jsonl")
    ranks.add_argument("--transport", default="", metavar="WAY", help=f"one of {', '.join(recipes.COLLECTIVE)}")
    ranks.add_argument(
        "--tables", type=Path, metavar="DIR", help="of `taco crossover`: times the paths that they choose too"
    )
    ranks.add_argument("--collectives", nargs="+", default=[], metavar="NAME", help=f"only some of {collectives}")


def _mib(text: str) -> float:
    """A whole number of MiB stays one, so that logs say 8 and not 8.0."""
    value = float(text)
    return int(value) if value.is_integer() else value


def _options(args: argparse.Namespace, env: Mapping[str, str]) -> dict:
    """What a measurement takes beside source, captures, out and provenance."""
    known = sorted({option for options in OPTIONS.values() for option in options})
    other = [f"--{o.replace('_', '-')}" for o in known if getattr(args, o) and o not in OPTIONS.get(args.name, ())]
    whose = " or ".join(name for name in OPTIONS if name != args.name)
    require(not other, f"{', '.join(other)} with {args.name}", whose, "these are its options")
    if args.name == "codec_speed":
        grid = recipes.SPEED.narrowed(codecs=args.codecs, ops=args.ops, mib=args.mib)
        return {"grid": grid, "peers": args.peers, "compiled": not args.skip_compile}
    if args.name == "collective":
        grids, way = recipes.COLLECTIVE, args.transport
        require(way in grids, f"--transport {way!r}", f"one of {', '.join(grids)}", "a log is of one transport")
        grid = grids[way].narrowed(collectives=args.collectives, codecs=args.codecs, mib=args.mib)
        read = {k: v for k, v in env.items() if k.startswith(("NCCL_", "TORCH_NCCL_", "TORCH_SYMM_MEM_"))}
        return {"grid": grid, "peers": args.peers, "tables": args.tables, "settings": read}
    return {}


def _check_source(name: str, source: str, out: Path | None) -> None:
    ok = source != "" and (source != "logged" or out is not None)
    require(ok, f"--source {source!r}", "another, or a file of yours as --out", "logged results are copied in")
    mini = source == "mini" and name in OPTIONS
    require(not mini, "--source mini", "another", f"{name} needs a GPU, and the mini runs none")


def _place(
    args: argparse.Namespace, env: Mapping[str, str], bench: ModuleType, launch: ModuleType
) -> AbstractContextManager:
    """The World of a measurement, while the context lasts."""
    if args.name == "collective":
        return launch.measuring(env, args.transport)
    return nullcontext(launch.World(device=bench.gpu()) if args.name in recipes.GPU_MEASURES else launch.World())


def _capture_files(paths: list[Path]) -> list[Path]:
    """The files, and those in the folders."""
    missing = [str(path) for path in paths if not path.exists() or (path.is_dir() and not list(path.glob(CAPTURES)))]
    require(not missing, f"no file {', '.join(missing)}", "captures that exist", "they are what is measured")
    return [file for path in paths for file in (sorted(path.glob(CAPTURES)) if path.is_dir() else [path])]


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Measure. Raises `ConfigError` for what cannot be measured here."""
    need = f"a known one, such as {nearest(args.name, MEASURES)}"
    require(args.name in MEASURES, f"measure {args.name!r}", need, "no measure has this name")
    _check_source(args.name, args.source, args.out)
    options = _options(args, env)
    captures = _capture_files(args.captures)
    launch = importlib.import_module("taco.train.launch")
    provenance = importlib.import_module("taco.train.provenance")
    launch.use_threads(1)
    module, function = MEASURES[args.name]
    bench = importlib.import_module(module)
    log = log_name(args.transport) if args.name == "collective" else args.name
    out = args.out or Path("results") / args.source / f"{log}.jsonl"
    with _place(args, env, bench, launch) as here:
        options |= {"here": here} if args.name == "collective" else {}
        getattr(bench, function)(args.source, captures, out, provenance.collect(here, 0), **options)
    return 0

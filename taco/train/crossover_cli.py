"""The command `taco crossover`: measure which path is fastest at which size between the ranks that torchrun starts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch

from taco.comm.crossover import COLLECTIVES, COMPRESSED, MEASURED, Crossover
from taco.comm.crossover_measure import SIZES, measure
from taco.config import require
from taco.config.grid import TRANSPORTS
from taco.train.launch import World, connected, pick_device, ranks_from, use_threads
from taco.train.provenance import collect
from taco.train.runs import find_codec

KIB, MIB = 1 << 10, 1 << 20
DTYPES = ("bfloat16", "float16", "float32")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--codec",
        required=True,
        metavar="NAME|FILE",
        help="a preset (see `taco recipes list codec`), or a JSON file of a codec as in a run's policy",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the messages (default: bfloat16)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of tables (default: taco/crossover in the cache)"
    )
    parser.add_argument("--transport", choices=TRANSPORTS, default="auto", help="as in a run's parallel.transport")
    parser.add_argument("--node-size", type=int, default=0, metavar="N", help="ranks a node, as in parallel.node_size")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--max-mib", type=int, metavar="N", help="largest message (default: 256 on GPUs, 16 on CPUs)")
    parser.add_argument(
        "--repeats",
        type=int,
        default=11,
        metavar="N",
        help="batches of a time, which is their lower quartile (default: 11)",
    )
    parser.add_argument("--limit", type=float, default=300.0, metavar="S", help="seconds, about (default: 300)")


def cache_folder(env: Mapping[str, str]) -> Path:
    """Where tables are kept unless a folder is given: by the XDG base directory specification."""
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "taco" / "crossover"


def run(args: argparse.Namespace, env: Mapping[str, str]) -> int:
    """Measure, write and print the table; returns 0. Raises ConfigError for options that do not go together."""
    require(args.repeats >= 1, f"--repeats {args.repeats}", "at least 1", "a time needs a batch")
    codec, ranks = find_codec(args.codec), ranks_from(env)
    here = World(device=pick_device(args.device, ranks.get("local_rank", 0)), transport=args.transport, **ranks)
    command = f"torchrun --nproc-per-node N -m taco crossover --codec {args.codec}"
    require(here.size > 1, f"{here.size} rank", f"at least two: {command}", "one rank sends nothing")
    largest = args.max_mib or (256 if here.device.type == "cuda" else 16)
    use_threads(1)
    with connected(here, timeout_s=120.0) as here:
        facts = {key: str(value) for key, value in collect(here, 0).items() if key != "seed"}
        table = measure(
            None,
            codec,
            device=here.device,
            dtype=getattr(torch, args.dtype),
            transport=args.transport,
            node_size=args.node_size,
            sizes=[size for size in SIZES if size <= largest * MIB],
            repeats=args.repeats,
            limit_s=args.limit,
            provenance=facts,
        )
        path = here.agree(lambda: table.save(args.out or cache_folder(env)))
    if here.rank == 0:
        print("\n".join(lines(table)))
        print(f"written to {path}")
    return 0


def lines(table: Crossover) -> list[str]:
    """The table as text: microseconds, a star at the path that is chosen, and from where on compression pays."""
    key, found = table.key, []
    found.append(f"{key.codec.name}, {key.dtype}, {key.world_size} ranks, {key.transport}, {key.device}")
    for collective in (c for c in COLLECTIVES if c in table.times):
        by_size = table.times[collective]
        paths = [path for path in MEASURED if any(path in times for times in by_size.values())]
        found.append(f"{collective}, microseconds")
        found.append("".join(["      size", *(f"{path:>20}" for path in paths)]))
        for size in sorted(by_size):
            chosen = table.choose(collective, size)
            cells = (f"{by_size[size].get(path, float('nan')):19.1f}{'*' if path == chosen else ' '}" for path in paths)
            found.append("".join([f"{size_text(size):>10}", *cells]))
        at = table.crossing(collective)
        compressed = any(path in COMPRESSED for path in paths)
        if compressed:
            where = f"from {size_text(at)} on" if at is not None else "at no measured size up to the largest"
            found.append(f"compression pays {where}")
    return found


def size_text(size: int) -> str:
    """A size in bytes for people."""
    return f"{size / MIB:g} MiB" if size >= MIB else f"{size / KIB:g} KiB"

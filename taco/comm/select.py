"""Which path a message takes: what a measured table says is fastest (taco/comm/crossover.py); without one uncompressed
below the threshold, else the algorithm that moves the fewest bytes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from taco.codec import coder as make_coder
from taco.comm.crossover import COMPRESSED, FUSED_PATHS, UNCOMPRESSED, Crossover, Key
from taco.comm.layout import chunk_sizes, slot_bytes
from taco.config import Codec, NoCodec

ALGORITHMS = ("auto", "one_shot", "two_shot", "hierarchical")
PATHS = ("uncompressed", "one_shot", "two_shot", "hierarchical", "direct")
# those whose kernels write into peers' memory
PEER_PATHS = ("fused", *(path for path in UNCOMPRESSED if path != "uncompressed"))
FUSED = ("off", "auto", "require")
COMPRESSIBLE = (torch.float32, torch.bfloat16, torch.float16)


def spans_nodes(world_size: int, node_size: int) -> bool:
    """True if ranks 0..world_size-1 are several whole nodes of several ranks."""
    return 1 < node_size < world_size and world_size % node_size == 0


def check_algorithm(algorithm: str, world_size: int, node_size: int) -> None:
    """Raise ValueError unless `algorithm` can run on `world_size` ranks in nodes of `node_size` (0: one node)."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"got algorithm={algorithm!r}; need one of {', '.join(ALGORITHMS)}; because these exist")
    if node_size < 0 or (1 < node_size < world_size and world_size % node_size):
        raise ValueError(
            f"got node_size={node_size} for {world_size} ranks; need 0 or a divisor of {world_size}; "
            "because every node holds as many ranks"
        )
    if algorithm == "hierarchical" and world_size > 1 and not spans_nodes(world_size, node_size):
        raise ValueError(
            f"got algorithm='hierarchical' with node_size={node_size} for {world_size} ranks; need "
            f"1 < node_size < {world_size}; because it needs several nodes of several ranks"
        )


@lru_cache(maxsize=1024)
def resolve(
    collective: str, algorithm: str, numel: int, dtype: torch.dtype, world_size: int, codec: Codec, node_size: int = 0
) -> str:
    """The compressed path of a collective over `numel` elements (of the full tensor): one of `PATHS`.

    'auto' is hierarchical where the group spans nodes, else one-shot where it moves no more bytes than two-shot
    (two ranks, or a message of few groups), else two-shot. Raises ValueError as `check_algorithm`.
    """
    check_algorithm(algorithm, world_size, node_size)
    if collective not in ("all_reduce", "reduce_scatter"):
        return "direct"
    if algorithm == "hierarchical" or (algorithm == "auto" and spans_nodes(world_size, node_size)):
        return "hierarchical"
    if collective == "reduce_scatter":
        return "one_shot"
    if algorithm != "auto":
        return algorithm
    coder = make_coder(codec)
    two_shot = 2 * slot_bytes(coder, chunk_sizes(numel, world_size, coder.align), dtype)
    return "one_shot" if coder.nbytes(numel, dtype) <= two_shot else "two_shot"


def compresses(codec: Codec, dtype: torch.dtype, nbytes: int, min_bytes: int) -> bool:
    """Whether a message of `nbytes` (before compression) is compressed.

    Integers are exact and small messages are latency-bound, so both travel as they are.
    Raises ValueError for a dtype that the codec cannot hold: silently sending it as it is would hide it.
    """
    if isinstance(codec, NoCodec) or nbytes < min_bytes or not (dtype.is_floating_point or dtype.is_complex):
        return False
    if dtype not in COMPRESSIBLE:
        raise ValueError(
            f"got {dtype} with codec {codec.name!r}; need float32, bfloat16 or float16 (or codec none); "
            "because a codec works in fp32 and would lose the rest"
        )
    return True


@dataclass(frozen=True)
class Route:
    """How one message travels.

    path: what is counted: 'uncompressed' (the backend's own), 'symmetric', 'symmetric_one_shot', 'fused_uncompressed',
    'fused', or the algorithm where the exchanges are the backend's. algorithm: what is computed: 'uncompressed',
    'one_shot', 'two_shot', 'hierarchical' or 'direct'.
    """

    path: str
    algorithm: str

    @property
    def compressed(self) -> bool:
        return self.algorithm != "uncompressed"


def measured_route(
    table: Crossover, collective: str, dtype: torch.dtype, nbytes: int, algorithm: str, *, even: bool, role: str
) -> Route:
    """The route that `table` finds fastest; uncompressed for another dtype than the table's, with a warning for each
    role where it would have been compressed. algorithm: the compressed one, or 'uncompressed' if it must not be.

    even: whether all chunks have one size, without which the fused kernels cannot run.
    """
    if not table.holds(dtype):
        # a program that is traced would break at a warning
        if algorithm != "uncompressed" and not torch.compiler.is_compiling():
            _warn(role, table.key.dtype, replace(table.key, dtype=str(dtype).removeprefix("torch.")))
        return Route("uncompressed", "uncompressed")
    without = () if even else FUSED_PATHS
    if algorithm == "uncompressed":
        without = (*without, *COMPRESSED)
    path = table.choose(collective, nbytes, without=without)
    if path == "unfused":
        return Route(algorithm, algorithm)
    return Route(path, algorithm if path in COMPRESSED else "uncompressed")


@lru_cache(maxsize=1024)
def _warn(role: str, measured: str, key: Key) -> None:
    """Once: the cache keeps it from being said again."""
    warnings.warn(
        f"{role}: messages of {key.dtype} go uncompressed, because the crossover table is of {measured}; "
        f"measure {key.dtype}: {key.command()}",
        stacklevel=2,
    )


def check_selection(
    fused: str, crossover: Crossover | None, codec: Codec, world_size: int, node_size: int, algorithm: str
) -> None:
    """Raise ValueError unless these options of a communicator go together. node_size: 0 unless it spans nodes."""
    if fused not in FUSED:
        raise ValueError(f"got fused={fused!r}; need one of {', '.join(FUSED)}; because these exist")
    if fused == "require" and node_size:
        raise ValueError(
            "got fused='require' for ranks on several nodes; need 'off' or 'auto', or an algorithm of one level; "
            "because the kernels of one node do not reach another"
        )
    if crossover is None:
        return
    if fused == "require" or algorithm != "auto":
        raise ValueError(
            f"got a crossover table with fused={fused!r}, algorithm={algorithm!r}; need algorithm='auto' and fused "
            "'off' or 'auto'; because the table chooses the path"
        )
    key = crossover.key
    theirs, ours = (key.world_size, key.node_size), (world_size, node_size)
    if theirs != ours or not (isinstance(codec, NoCodec) or codec == key.codec):
        raise ValueError(
            f"got a crossover table of codec {key.codec.name!r}, {key.world_size} ranks, node_size {key.node_size}; "
            f"need {codec.name!r}, {world_size}, {node_size}; because other ones have other times"
        )

"""Hand-made crossover tables that the tests share."""

from __future__ import annotations

import torch

from taco.comm import Crossover
from taco.comm.crossover import COLLECTIVES, exists, key_here
from taco.config import Codec
from taco.recipes import preset

CPU = torch.device("cpu")
KIB = 1 << 10


def table(
    times: dict[int, dict[str, float]],
    *,
    codec: Codec | None = None,
    world_size: int = 2,
    dtype: torch.dtype = torch.float32,
    node_size: int = 0,
) -> Crossover:
    """A table of this machine's CPU with the same times for every collective, as far as it has the path."""
    key = key_here(CPU, "auto", world_size, codec or preset("int8"), dtype, node_size)
    by_collective = {
        collective: {size: {p: us for p, us in paths.items() if exists(p, collective)} for size, paths in times.items()}
        for collective in COLLECTIVES
    }
    return Crossover(key=key, times=by_collective, provenance={"date": "today"})


def two_paths(small: float, large: float) -> Crossover:
    """100 us uncompressed; compressed takes `small` us at 64 KiB and `large` at 128 KiB."""
    return table({size * KIB: {"uncompressed": 100.0, "unfused": us} for size, us in ((64, small), (128, large))})

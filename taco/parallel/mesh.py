"""The process grid: pipeline, data and tensor axes, ranks pp-major and tp fastest."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from taco.config import Parallel, require

AXES = ("pp", "dp", "tp")


def build_mesh(parallel: Parallel, device_type: str) -> DeviceMesh | None:
    """The mesh ("pp", "dp", "tp") over the default process group; None for one process (no group is needed).

    Rank r sits at (r // (dp * tp), r // tp % dp, r % tp). Raises ConfigError if the default group does not exist or
    has another size than pp * dp * tp.
    """
    if parallel.world_size == 1:
        return None
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    require(
        world_size == parallel.world_size,
        f"{world_size} processes for pp={parallel.pp}, dp={parallel.dp}, tp={parallel.tp}",
        f"{parallel.world_size} processes, each with the default process group initialised",
        "the grid has one process per cell",
    )
    return init_device_mesh(device_type, (parallel.pp, parallel.dp, parallel.tp), mesh_dim_names=AXES)

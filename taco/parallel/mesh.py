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


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Blocks of one stage: as equal as possible, the first stages take one more.

    Raises ConfigError for fewer layers than stages.
    """
    require(
        layers >= stages,
        f"layers={layers} with {stages} pipeline stages",
        f"at least {stages} layers",
        "every stage holds a layer",
    )
    each, more = divmod(layers, stages)
    start = stage * each + min(stage, more)
    return range(start, start + each + (stage < more))


def ends_group(mesh: DeviceMesh) -> dist.ProcessGroup:
    """The group of this rank's first and last pipeline rank (for tied weights). Collective over all ranks.

    Only those two may use it; on other ranks it is not a group they belong to.
    """
    grid = mesh.mesh
    mine = None
    for column in grid.flatten(1).T.tolist():
        group = dist.new_group([column[0], column[-1]])
        if dist.get_rank() in (column[0], column[-1]):
            mine = group
    return mine

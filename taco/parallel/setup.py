"""From a configuration to something that trains: `setup` builds this rank's part on a process grid.

Weights are the same for every process grid: each part is built whole from the seed and then sharded. Parameters stay
fp32; with dtype bfloat16 the forward runs under autocast, the residual stream and all messages but gradients are bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from taco.comm import Communicator, Crossover, Meter
from taco.comm.crossover import find, key_here
from taco.comm.select import spans_nodes
from taco.config import NONE, Model, Parallel, Policy, require
from taco.parallel.data import shard_data
from taco.parallel.functions import EXACT, TensorComm
from taco.parallel.grid import Parallelism
from taco.parallel.mesh import stage_layers
from taco.parallel.part import Part
from taco.parallel.plans import parallelize
from taco.parallel.virtual import VirtualComm, virtual_tp

Observer = Callable[[str, str, Tensor], None]
Build = Callable[..., nn.Module]


def _tables(parallel: Parallel, policy: Policy, device: torch.device, dtype: torch.dtype) -> dict[str, Crossover]:
    """The measured table of each compressed role that has collectives, by the keys of `Policy.codecs`; none without a
    folder of tables.

    Raises ConfigError where the folder lacks one.
    """
    if not parallel.crossover:
        return {}
    tp, found = max(parallel.tp, parallel.virtual_tp), {}
    for role, ways, node_size, sent in (
        ("tp_forward", tp, parallel.node_size, dtype),
        ("tp_backward", tp, parallel.node_size, dtype),
        ("dp_weight", parallel.dp, 0, dtype),
        ("dp_gradient", parallel.dp, parallel.node_size // parallel.tp, torch.float32),
    ):
        levels = node_size if spans_nodes(ways, node_size) else 0
        for name, codec in policy.codecs(role).items() if ways > 1 else ():
            if codec != NONE:
                key = key_here(device, parallel.transport, ways, codec, sent, levels)
                found[name] = find(Path(parallel.crossover), key)
    return found


def _communicators(
    parallel: Parallel, policy: Policy, mesh: DeviceMesh | None, *, tables: Mapping[str, Crossover], **shared: Any
) -> dict[str, Communicator]:
    """The roles of the pipeline and data axes that are in use. node_size counts ranks; along dp they are tp apart."""
    found: dict[str, Communicator] = {}
    for axis, roles in (("pp", ("pp_forward", "pp_backward")), ("dp", ("dp_weight", "dp_gradient"))):
        for role in roles if getattr(parallel, axis) > 1 else ():
            node_size = parallel.node_size // parallel.tp if role == "dp_gradient" else 0
            options = shared | {"min_bytes": policy.min_bytes, "node_size": node_size, "crossover": tables.get(role)}
            found[role] = Communicator(mesh.get_group(axis), getattr(policy, role), role=role, **options)
    return found


def _tensor_comm(
    parallel: Parallel, policy: Policy, mesh: DeviceMesh | None, **options: Any
) -> TensorComm | VirtualComm | None:
    if parallel.tp > 1:
        return TensorComm.build(mesh["tp"], policy, node_size=parallel.node_size, **options)
    if parallel.virtual_tp > 1:
        options |= {"node_size": parallel.node_size, "plain_sum": parallel.virtual_sum}
        return VirtualComm.build(parallel.virtual_tp, policy, **options)
    return None


def setup(
    model: Model,
    build: Build,
    parallel: Parallel,
    policy: Policy,
    *,
    mesh: DeviceMesh | None = None,
    meter: Meter | None = None,
    observer: Observer | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Parallelism:
    """This rank's part of `model` on the grid `parallel` with the codecs of `policy`. Collective over all ranks.

    build: called as build(layers=range or None, first=bool, last=bool), gives fp32 blocks on the CPU whose weights
        depend on nothing else (taco.models.build with config and seed bound).
    mesh: of `build_mesh`; None for one process.
    observer(role, name, x): sees every tensor before it is encoded. seed: of stochastic codecs.
    Raises ConfigError for shapes that do not fit the grid, a policy of layers that the model does not have, and where
    `parallel.crossover` lacks a table.
    """
    meter, device = meter or Meter(), torch.device(device)
    require(
        (mesh is None) == (parallel.world_size == 1),
        f"mesh={mesh} for {parallel.world_size} processes",
        "the mesh of build_mesh",
        "collectives run along its axes",
    )
    policy.check_blocks(range(model.layers))
    tables = _tables(parallel, policy, device, dtype)
    shared = {"meter": meter, "observer": observer, "seed": seed, "tables": tables}
    communicators = _communicators(parallel, policy, mesh, **shared)
    exact = Communicator(mesh.get_group("dp"), NONE, role=EXACT, meter=meter) if parallel.dp > 1 else None
    tensor = _tensor_comm(parallel, policy, mesh, **shared)
    if tensor is not None:
        communicators |= tensor.communicators
    stages = parallel.pp * parallel.stages_per_rank
    pp_rank = mesh.get_local_rank("pp") if mesh is not None else 0
    parts, differences = [], []
    for stage in range(pp_rank, stages, parallel.pp):
        layers = stage_layers(model.layers, stages, stage) if stages > 1 else None
        module = build(layers=layers, first=stage == 0, last=stage == stages - 1).to(device)
        if parallel.tp > 1:
            sequence = parallel.sequence_parallel
            parallelize(module, mesh["tp"], policy, sequence_parallel=sequence, src_data_rank=None, comm=tensor)
        elif parallel.virtual_tp > 1:
            virtual_tp(module, parallel.virtual_tp, policy, comm=tensor)
        if parallel.dp > 1:
            roles = communicators["dp_weight"], communicators["dp_gradient"], exact
            prefix = f"stage{stage}." if stages > 1 else ""
            keep = parallel.pp > 1
            differences.append(shard_data(module, mesh, *roles, dtype=dtype, keep_gathered=keep, prefix=prefix))
        parts.append(Part(module, dtype))
    return Parallelism(
        model, parallel, mesh, parts=parts, communicators=communicators, tensor=tensor, meter=meter,
        device=device, differences=differences,
    )  # fmt: skip

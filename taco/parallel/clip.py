"""Gradient norm over the whole mesh, each parameter once.

A rank adds the squares of its local gradient unless another rank adds the same numbers:

    parameter                       counted on
    sharded over tp                 every tp rank
    replicated over tp              tp rank 0
    second copy of a tied weight    nowhere (the first stage's copy counts)

Shards over dp are disjoint; pipeline stages hold different parameters.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from taco.parallel.data import local
from taco.parallel.virtual import VIRTUAL_DIM


def squares(parameters: Iterable[Tensor], *, tp_rank: int = 0, virtual: int = 1) -> Tensor:
    """Sum of squares (fp64 scalar) of the gradients that this rank has to count; None gradients are skipped.

    virtual: virtual TP ranks; their shards are summed as the real ranks would sum them.
    """
    counted = [p for p in parameters if p.grad is not None and (tp_rank == 0 or _tp_sharded(p))]
    if not counted:
        return torch.zeros((), dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64, device=counted[0].device)
    for rank in range(virtual):
        shares = []
        for parameter in counted:
            dim = getattr(parameter, VIRTUAL_DIM, None)
            grad = local(parameter.grad)
            if virtual > 1 and dim is not None:
                grad = grad.chunk(virtual, dim)[rank]
            elif rank > 0:
                continue
            shares.append(grad.contiguous().float())
        if shares:
            total += get_total_norm(shares).double() ** 2
    return total


def _tp_sharded(parameter: Tensor) -> bool:
    if not isinstance(parameter, DTensor):
        return False
    axes = zip(parameter.device_mesh.mesh_dim_names, parameter.placements, strict=True)
    return any(axis == "tp" and placement.is_shard() for axis, placement in axes)


@torch.no_grad()
def clip_gradients_(
    parameters: list[Tensor],
    max_norm: float,
    *,
    uncounted: Iterable[Tensor] = (),
    tp_rank: int = 0,
    virtual: int = 1,
    group: dist.ProcessGroup | None = None,
) -> float:
    """Scale all gradients by min(1, max_norm / norm) in place and return the norm before scaling.

    uncounted: parameters (second copies of tied weights) that are scaled but not counted. group: all ranks of the
    mesh; None for one process. The partial sums are added in rank order, so every rank scales by the same bits.
    """
    skip = {id(p) for p in uncounted}
    total = squares((p for p in parameters if id(p) not in skip), tp_rank=tp_rank, virtual=virtual)
    if group is not None:
        device = next(local(p).device for p in parameters)
        parts = [torch.zeros((), dtype=torch.float64, device=device) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, total.to(device), group=group)
        total = torch.stack(parts).cpu()
        total = sum(total[1:], total[0])
    norm = total.sqrt()
    clip_grads_with_norm_(parameters, max_norm, norm.float())
    return float(norm)

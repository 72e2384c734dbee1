"""Which messages need bits: the error of the gradient when those of one block and direction alone have few.

    error = |g - g0| / |g0|

g0 is the gradient of all parameters with every message uncompressed, g with the messages of one block (or of embedding
and head) in one direction coded by `PROBE`, over the same weights and sequences. Both norms are sums in fp64 over the
gradients as they are. `taco.recipes.protected` chooses from such errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from taco.config import ENDS, TENSOR_ROLES, Override, Policy, require
from taco.parallel import Parallelism
from taco.parallel.virtual import VirtualComm
from taco.recipes import preset
from taco.train.depth import SEQUENCES

PROBE = preset("int4")


def _gradients(par: Parallelism, policy: Policy, tokens: Tensor, targets: Tensor) -> list[Tensor]:
    """The loss's gradient with respect to every parameter, with the messages of `policy`."""
    [model], p = par.modules, par.parallel
    other = VirtualComm.build(p.virtual_tp, policy, node_size=p.node_size, plain_sum=p.virtual_sum)
    par.zero_grad()
    with model.virtual_comm.instead(other):
        par.step(tokens, targets, 1)
    found = [parameter.grad for _, parameter in par.named_parameters()]
    par.zero_grad()
    return found


def _norm(tensors: Iterable[Tensor]) -> float:
    """Euclidean norm of all elements, in fp64."""
    return math.sqrt(sum(torch.linalg.vector_norm(x, dtype=torch.float64).square().item() for x in tensors))


def sensitivity_records(par: Parallelism, tokens: Tensor, targets: Tensor) -> list[dict]:
    """One {role, layer, codec, error} a direction and block (or `ENDS`), over the first `SEQUENCES` sequences.

    tokens, targets: int64 [batch, seq]. Weights and counts are as before, gradients are gone. It takes a pass for each
    record and one more. Raises ConfigError unless `par` has virtual ranks in one process.
    """
    p = par.parallel
    require(
        p.virtual_tp > 1 and p.world_size == 1,
        f"virtual_tp={p.virtual_tp}, {p.world_size} processes",
        "virtual_tp above 1 in one process",
        "it compares gradients of whole parameters",
    )
    batch = tokens[:SEQUENCES], targets[:SEQUENCES]
    plain = Policy(all_reduce=par.modules[0].virtual_comm.policy.all_reduce)
    exact = _gradients(par, plain, *batch)
    size, records = _norm(exact), []
    for role in TENSOR_ROLES:
        for layer in (ENDS, *range(par.model.layers)):
            probe = Override(role=role, layers=(layer,), codec=PROBE)
            moved = _gradients(par, replace(plain, overrides=(probe,)), *batch)
            error = _norm(g - g0 for g, g0 in zip(moved, exact, strict=True)) / size
            records.append({"role": role, "layer": layer, "codec": PROBE.name, "error": error})
    return records

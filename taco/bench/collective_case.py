"""The tensors of a timed collective, what its result must be, and what the ranks agree on.

N ranks, a case of `numel` elements in all (see `CollectiveCase`):

    collective       a rank's input    its result
    all_reduce       [numel]           [numel]: sum over the ranks
    reduce_scatter   [numel]           [numel / N]: this rank's part of that sum
    all_gather       [numel / N]       [numel]: the inputs of all ranks
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from taco.bench.speed_timer import sets_for
from taco.recipes import CollectiveCase
from taco.train.launch import World

# a turn of the timing uses each set of operands once: so many bytes take milliseconds even over the fastest links
TURN_BYTES = 512 << 20
LEAST_SETS, MOST_SETS = 4, 512
# ranks' seeds are this far apart, more than any seed of a recipe
SEED_STRIDE = 1 << 20


def dtype_of(case: CollectiveCase) -> torch.dtype:
    """The torch dtype of a case."""
    return getattr(torch, case.dtype)


def numel_of(case: CollectiveCase, size: int) -> int:
    """Elements of the full tensor, rounded down to a multiple of `size` ranks."""
    return int(case.mib * 2**20) // dtype_of(case).itemsize // size * size


def bytes_of(case: CollectiveCase, size: int) -> int:
    """Bytes of the full tensor."""
    return numel_of(case, size) * dtype_of(case).itemsize


def sets_of(case: CollectiveCase, size: int, l2_bytes: int) -> int:
    """Sets of operands: more than the L2 cache holds, and enough for a turn that lasts. Few without a cache to beat."""
    nbytes = bytes_of(case, size)
    wanted = max(TURN_BYTES // nbytes, sets_for(nbytes, l2_bytes)) if l2_bytes else 0
    return min(MOST_SETS, max(LEAST_SETS, wanted))


def _drawn(case: CollectiveCase, here: World, seed: int, rank: int) -> Iterator[Tensor]:
    """Inputs of a rank, set after set, on this rank's device."""
    generator = torch.Generator(here.device).manual_seed(seed * SEED_STRIDE + rank)
    numel = numel_of(case, here.size) // (here.size if case.collective == "all_gather" else 1)
    while True:
        yield torch.randn(numel, generator=generator, device=here.device).to(dtype_of(case))


def inputs(case: CollectiveCase, here: World, seed: int, sets: int) -> Tensor:
    """[sets, elements of an input] of this rank: standard normal, another one in each set and on each rank."""
    drawn = _drawn(case, here, seed, here.rank)
    first = next(drawn)
    out = first.new_empty(sets, first.numel())
    out[0] = first
    for row, x in zip(out[1:], drawn, strict=False):
        row.copy_(x)
    return out


def wanted(case: CollectiveCase, here: World, seed: int) -> Tensor:
    """What this rank must have from set 0, in fp32: the ranks' inputs summed in rank order, or one behind another."""
    parts = (next(_drawn(case, here, seed, rank)).float() for rank in range(here.size))
    if case.collective == "all_gather":
        return torch.cat(list(parts))
    total = next(parts)
    for part in parts:
        total += part
    return total.chunk(here.size)[here.rank] if case.collective == "reduce_scatter" else total


# --- what the ranks agree on: each function is collective over the default group -------------------


def largest(values: Sequence[float], here: World) -> list[float]:
    """The largest over the ranks of each value: the same on every rank."""
    found = torch.tensor(list(values), dtype=torch.float64, device=here.device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.tolist()


def agreed(reason: str, here: World) -> str:
    """Why something cannot be on some rank, on every rank; empty where it can be on all. reason: this rank's."""
    if not any(largest([bool(reason)], here)):
        return ""
    reasons: list[str] = [""] * here.size
    dist.all_gather_object(reasons, reason)
    return next(f"rank {rank}: {text}" for rank, text in enumerate(reasons) if text)


def relative_error(result: Tensor, correct: Tensor, here: World) -> float:
    """Norm of the difference over that of what is correct, the largest over the ranks; inf where it is no number."""
    difference = torch.linalg.vector_norm(result.reshape(-1).float() - correct).item()
    error = difference / max(torch.linalg.vector_norm(correct).item(), torch.finfo(torch.float32).tiny)
    return largest([error if error == error else float("inf")], here)[0]


def identical(result: Tensor, here: World) -> bool:
    """Whether every rank has rank 0's bits."""
    own = result.contiguous().reshape(-1).view(torch.uint8)
    first = own.clone()
    dist.broadcast(first, src=0)
    return not any(largest([not torch.equal(own, first)], here))

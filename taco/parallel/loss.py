"""Cross entropy over a vocabulary that is sharded over ranks, without gathering the logits.

    symbol          shape                    meaning
    logits          [..., vocab / R]         rank r holds the ids [r * vocab / R, (r + 1) * vocab / R)
    stats           [R, 3, tokens] fp32      per rank: max, sum of exp(logit - max), logit of the target (0 elsewhere)
    loss            []                       mean over the tokens whose target is not `ignore_index`

    forward   top = max_r max;  total = sum_r sum * exp(max - top);  loss = log total + top - target
    backward  exp(logit - top) / total - [id == target], over the number of tokens

One exact all-gather of 12 bytes per token and rank, combined in rank order, so every rank has the same bits, and so
has one process that holds all shards.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from taco.parallel.functions import TensorComm

IGNORE = -100


def vocab_parallel_cross_entropy(
    logits: Tensor, targets: Tensor, comm: TensorComm, *, ignore_index: int = IGNORE
) -> Tensor:
    """Mean cross entropy (fp32 scalar, the same on every rank); logits [..., vocab / R] of this rank, targets [...]."""
    return _VocabParallel.apply(targets, comm, comm.rank, ignore_index, logits)


def virtual_cross_entropy(logits: tuple[Tensor, ...], targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """The same with all R shards in one process, bit for bit."""
    return _VocabParallel.apply(targets, None, 0, ignore_index, *logits)


def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = IGNORE) -> Tensor:
    """The same for whole logits."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=ignore_index)


def _local_ids(targets: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Target ids relative to a shard (0 where they lie outside) and whether they lie inside."""
    ids = targets - start
    inside = (ids >= 0) & (ids < width)
    return ids.where(inside, 0), inside


class _VocabParallel(Function):
    @staticmethod
    def forward(ctx: Any, targets: Tensor, comm: TensorComm | None, first: int, ignore: int, *shards: Tensor) -> Tensor:
        targets = targets.flatten()
        width = shards[0].shape[-1]
        rows = [shard.float().flatten(0, -2) for shard in shards]
        stats = torch.stack([_stats(row, targets, (first + i) * width) for i, row in enumerate(rows)])
        if comm is not None:
            stats = comm.exact.all_gather(stats, 0)
        top = stats[:, 0].amax(0)
        total, target = torch.zeros_like(top), torch.zeros_like(top)
        for high, exponentials, logit in stats.unbind():
            total = total + exponentials * torch.exp(high - top)
            target = target + logit
        valid = targets != ignore
        count = valid.sum().clamp(min=1)
        ctx.save_for_backward(targets, valid, count, top, total, *shards)
        ctx.first = first
        return torch.where(valid, torch.log(total) + top - target, 0.0).sum() / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        targets, valid, count, top, total, *shards = ctx.saved_tensors
        scale = torch.where(valid, grad / count, 0.0)[:, None]
        grads = []
        for i, shard in enumerate(shards):
            row = shard.float().flatten(0, -2)
            ids, inside = _local_ids(targets, (ctx.first + i) * row.shape[-1], row.shape[-1])
            share = torch.exp(row - top[:, None]) / total[:, None]
            share.scatter_add_(1, ids[:, None], -inside.float()[:, None])
            grads.append((share * scale).to(shard.dtype).view(shard.shape))
        return None, None, None, None, *grads


def _stats(row: Tensor, targets: Tensor, start: int) -> Tensor:
    """[3, tokens] of one shard, see the module's table."""
    high = row.amax(-1)
    ids, inside = _local_ids(targets, start, row.shape[-1])
    logit = row.gather(1, ids[:, None])[:, 0].where(inside, 0.0)
    return torch.stack([high, torch.exp(row - high[:, None]).sum(-1), logit])

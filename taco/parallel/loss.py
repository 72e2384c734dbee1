"""Cross entropy over a vocabulary that is sharded over ranks, without gathering the logits.

    symbol          shape                    meaning
    logits          [..., vocab / R]         rank r holds the ids [r * vocab / R, (r + 1) * vocab / R)
    stats           [R, 2, tokens] fp32      per rank: log sum exp(logit), logit of the target (0 elsewhere)
    loss            []                       mean over the tokens whose target is not `ignore_index`

    forward   total = log sum_r exp(stats[r, 0]);  loss = total - sum_r stats[r, 1]
    backward  exp(logit - total) - [id == target], over the number of tokens

One exact all-gather of 8 bytes per token and rank, combined in rank order, so every rank has the same bits, and so
has one process that holds all shards. Logits are the largest tensors of a step: each pass over them counts.
"""

from __future__ import annotations

import math
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
        stats = torch.stack([_stats(shard, targets, (first + i) * width) for i, shard in enumerate(shards)])
        if comm is not None:
            stats = comm.exact.all_gather(stats, 0)
        total, target = torch.logsumexp(stats[:, 0], 0), torch.zeros_like(stats[0, 1])
        for logit in stats[:, 1].unbind():
            target = target + logit
        valid = targets != ignore
        count = valid.sum().clamp(min=1)
        ctx.save_for_backward(targets, valid, count, total, *shards)
        ctx.first = first
        return torch.where(valid, total - target, 0.0).sum() / count

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        targets, valid, count, total, *shards = ctx.saved_tensors
        # ignored tokens have no share and no scale, whatever they hold
        total, scale = total.where(valid, math.inf)[:, None], torch.where(valid, grad / count, 0.0)[:, None]
        grads = []
        for i, shard in enumerate(shards):
            row = shard.flatten(0, -2)
            ids, inside = _local_ids(targets, (ctx.first + i) * row.shape[-1], row.shape[-1])
            share = torch.sub(row, total).exp_()
            share.scatter_add_(1, ids[:, None], -(inside & valid).to(share.dtype)[:, None])
            grads.append(torch.mul(share, scale, out=torch.empty_like(row)).view(shard.shape))
        return None, None, None, None, *grads


def _stats(shard: Tensor, targets: Tensor, start: int) -> Tensor:
    """[2, tokens] of one shard, see the module's table."""
    row = shard.flatten(0, -2)
    ids, inside = _local_ids(targets, start, row.shape[-1])
    high, where = row.max(-1)
    # one fused kernel; what it took from the largest logit is the sum
    shares = F.log_softmax(row, -1, dtype=torch.float32)
    high = high.float()
    total = (high - shares.gather(1, where[:, None])[:, 0]).where(high != -math.inf, -math.inf)  # all masked: no share
    return torch.stack([total, row.gather(1, ids[:, None])[:, 0].where(inside, 0.0).float()])

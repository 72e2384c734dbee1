"""Cross entropy over a vocabulary that is sharded over ranks, without gathering the logits.

    symbol          shape                    meaning
    logits          [..., vocab / R]         rank r holds the ids [r * vocab / R, (r + 1) * vocab / R)
    stats           [R, 2, tokens] fp32      per rank: log sum exp(logit), logit of the target (0 elsewhere)
    loss            []                       mean over the tokens whose target is not `ignore_index`

    forward   total = log sum_r exp(stats[r, 0]);  loss = total - sum_r stats[r, 1]
    backward  exp(logit - total) - [id == target], over the number of tokens

One exact all-gather of 8 bytes per token and rank, combined in rank order, so every rank has the same bits, and so
has one process that holds all shards. Logits are the largest tensors of a step: on a GPU torch compiles both
directions to one kernel each, where it has a compiler (TORCH_COMPILE_DISABLE=1: plain torch, six passes more).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
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


def _local_ids(targets: Tensor, start: int, width: int) -> Tensor:
    """Target ids relative to a shard, -1 where they lie outside."""
    ids = targets - start
    return ids.where((ids >= 0) & (ids < width), -1)


class _VocabParallel(Function):
    @staticmethod
    def forward(ctx: Any, targets: Tensor, comm: TensorComm | None, first: int, ignore: int, *shards: Tensor) -> Tensor:
        targets = targets.flatten()
        width = shards[0].shape[-1]
        ids = [_local_ids(targets, (first + i) * width, width) for i in range(len(shards))]
        stats = torch.stack([_stats(shard.flatten(0, -2), own) for shard, own in zip(shards, ids, strict=True)])
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
        # ignored tokens have no share, no target and no scale, whatever they hold
        total, scale = total.where(valid, math.inf), torch.where(valid, grad / count, 0.0)
        targets = targets.where(valid, -1)
        grads = []
        for i, shard in enumerate(shards):
            row = shard.flatten(0, -2)
            ids = _local_ids(targets, (ctx.first + i) * row.shape[-1], row.shape[-1])
            grads.append(_shares(row, ids, total, scale).view(shard.shape))
        return None, None, None, None, *grads


class _Compiled:
    """`function`, compiled by torch for tensors on a GPU, if that works there."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._compiled: Callable[..., Tensor] | None = None
        self._fails = False

    def __call__(self, row: Tensor, *more: Tensor) -> Tensor:
        if row.is_cuda and not self._fails and not torch.compiler.is_compiling():
            try:
                # not before: the compiler takes a second to import
                self._compiled = self._compiled or torch.compile(self._function, dynamic=False)
                return self._compiled(row, *more)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # no Triton, no C compiler, no headers of Python
                self._fails = True
                reason = str(error).strip().split("\n")[0]
                warnings.warn(f"torch.compile failed, so the loss takes several times longer: {reason}", stacklevel=2)
        return self._function(row, *more)


@_Compiled
def _stats(row: Tensor, ids: Tensor) -> Tensor:
    """[2, tokens] of one shard [tokens, width], see the module's table; ids as of `_local_ids`."""
    logits = row.float()
    high = logits.amax(-1)
    total = high + torch.log(torch.exp(logits - high[:, None]).sum(-1))
    total = total.where(high != -math.inf, -math.inf)  # all masked: no share
    return torch.stack([total, logits.gather(1, ids.clamp(min=0)[:, None])[:, 0].where(ids >= 0, 0.0)])


@_Compiled
def _shares(row: Tensor, ids: Tensor, total: Tensor, scale: Tensor) -> Tensor:
    """The gradient of one shard [tokens, width], in its dtype."""
    total, scale, ids = total[:, None], scale[:, None], ids[:, None]
    share = torch.exp(row.float() - total).where(total != math.inf, 0.0)
    hot = ids == torch.arange(row.shape[1], device=row.device)
    return ((share - hot.float()) * scale).to(row.dtype)

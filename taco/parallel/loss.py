"""Cross entropy over a vocabulary that is sharded over ranks, without gathering the logits.

    symbol          shape                    meaning
    logits          [..., vocab / R]         rank r holds the ids [r * vocab / R, (r + 1) * vocab / R)
    stats           [R, 2, tokens] fp32      per rank: log sum exp(logit), logit of the target (0 elsewhere)
    loss            []                       mean over the tokens whose target is not `ignore_index`; NaN, as are its
                                             gradients, where another target is no id

    forward   total = log sum_r exp(stats[r, 0]);  loss = total - sum_r stats[r, 1]
    backward  exp(logit - total) - [id == target], over the number of tokens

One exact all-gather of 8 bytes per token and rank, combined in rank order, so every rank has the same bits, and so
has one process that holds all shards. Logits are the largest tensors of a step: on a GPU torch compiles both
directions to one kernel each, where it has a compiler (TORCH_COMPILE_DISABLE=1: plain torch, six passes more).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

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
        vocab = width * (len(shards) if comm is None else comm.world_size)
        strange = (valid & ((targets < 0) | (targets >= vocab))).any()
        count = torch.where(strange, math.nan, valid.sum().clamp(min=1).float())
        ctx.save_for_backward(targets, valid, count, total, *shards)
        ctx.first = first
        return torch.where(valid, total - target, 0.0).sum() / count

    @staticmethod
    @once_differentiable
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
    """`function`, compiled by torch where it works on a GPU; `eager` elsewhere: the same values in more passes.

    One kernel serves any number of tokens, so that its bits depend on nothing else.
    """

    fails = False  # of all: no Triton, no C compiler, no headers of Python

    def __init__(self, function: Callable[..., Tensor], eager: Callable[..., Tensor]) -> None:
        self.function, self.eager = function, eager
        self._compiled: Callable[..., Tensor] | None = None

    def __call__(self, row: Tensor, *more: Tensor) -> Tensor:
        if not row.is_cuda or _Compiled.fails or torch.compiler.is_compiling():
            return self.eager(row, *more)
        try:
            return self._on_gpu(row, *more)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            found = self.eager(row, *more)  # raises for what no kernel could compute
            _Compiled.fails = True
            reason = str(error).strip().split("\n")[0]
            warnings.warn(f"torch.compile failed, so the loss takes several times longer: {reason}", stacklevel=2)
            return found

    def _on_gpu(self, row: Tensor, *more: Tensor) -> Tensor:
        if self._compiled is None:  # not before: the compiler takes a second to import
            # never the faster of two kernels: they add in different orders
            options = {"deterministic": True} if "deterministic" in torch._inductor.list_options() else {}
            self._compiled = torch.compile(self.function, options=options)
        for x in (row, *more):
            torch._dynamo.maybe_mark_dynamic(x, 0)
        return self._compiled(row, *more)


def _stats_in_one(row: Tensor, ids: Tensor) -> Tensor:
    logits = row.float()
    high = logits.amax(-1, keepdim=True)
    total = high + torch.log(torch.exp(logits - high).sum(-1, keepdim=True))
    return _masked(row, ids, high[:, 0], total[:, 0])


def _stats_in_steps(row: Tensor, ids: Tensor) -> Tensor:
    high, where = row.max(-1)
    # one fused kernel; what it took from the largest logit is the sum
    shares = F.log_softmax(row, -1, dtype=torch.float32)
    return _masked(row, ids, high.float(), high.float() - shares.gather(1, where[:, None])[:, 0])


def _masked(row: Tensor, ids: Tensor, high: Tensor, total: Tensor) -> Tensor:
    total = total.where(high != -math.inf, -math.inf)  # all masked: no share
    return torch.stack([total, row.gather(1, ids.clamp(min=0)[:, None])[:, 0].float().where(ids >= 0, 0.0)])


def _shares_in_one(row: Tensor, ids: Tensor, total: Tensor, scale: Tensor) -> Tensor:
    total, scale, ids = total[:, None], scale[:, None], ids[:, None]
    share = torch.exp(row.float() - total).where(total != math.inf, 0.0)
    hot = ids == torch.arange(row.shape[1], device=row.device)
    return ((share - hot.float()) * scale).to(row.dtype)


def _shares_in_steps(row: Tensor, ids: Tensor, total: Tensor, scale: Tensor) -> Tensor:
    share = torch.sub(row, total[:, None]).exp_().masked_fill_((total == math.inf)[:, None], 0.0)
    share.scatter_add_(1, ids.clamp(min=0)[:, None], -(ids >= 0).to(share.dtype)[:, None])
    return torch.mul(share, scale[:, None], out=torch.empty_like(row))


# [2, tokens] of one shard [tokens, width], see the module's table; ids as of `_local_ids`
_stats = _Compiled(_stats_in_one, _stats_in_steps)
# the gradient of one shard, in its dtype
_shares = _Compiled(_shares_in_one, _shares_in_steps)

"""The most probable next token, also where the logits are sharded over ranks as in taco/parallel/loss.py.

    symbol   shape                  meaning
    logits   [..., vocab / R]       rank r holds the ids [r * vocab / R, (r + 1) * vocab / R)
    stats    [R, 3, tokens] fp32    per rank: largest logit, its id (exact below 2^24), sum of exp(logit - largest)

The first of equal logits wins, within a rank and between ranks, so that every process grid chooses the same token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from taco.parallel.functions import TensorComm


@torch.no_grad()
def best(logits: Tensor | tuple[Tensor, ...], comm: TensorComm | None = None) -> tuple[Tensor, Tensor]:
    """(ids int64 [...], their log probabilities fp32 [...]) of logits [..., vocab], a tuple of all R shards, or with
    comm this rank's shard; the same on every rank."""
    shards = logits if isinstance(logits, tuple) else (logits,)
    first, width, shape = (comm.rank if comm else 0), shards[0].shape[-1], shards[0].shape[:-1]
    rows = [shard.float().flatten(0, -2) for shard in shards]
    stats = torch.stack([_stats(row, (first + i) * width) for i, row in enumerate(rows)])
    if comm is not None:
        stats = comm.exact.all_gather(stats, 0)
    high, ids, exponentials = stats.unbind(1)
    top, rank = high.max(0)
    total = (exponentials * torch.exp(high - top)).sum(0)
    chosen = ids.gather(0, rank[None])[0].long()
    return chosen.view(shape), -torch.log(total).view(shape)


def _stats(row: Tensor, start: int) -> Tensor:
    """[3, tokens] of one shard, see the module's table."""
    high, place = row.max(-1)
    return torch.stack([high, (place + start).float(), torch.exp(row - high[:, None]).sum(-1)])

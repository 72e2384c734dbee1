"""Other implementations of a collective to time beside ours, from a file of the user's.

Such a file has a list PEERS of dicts, or of objects with these attributes:

    name         what its arm is called; one that starts with 'coccl' is the authors' released code
    collective   'all_reduce', 'reduce_scatter' or 'all_gather'
    make         (group, numel, device) -> f; f(x) -> the result, on torch's current stream. group: a ProcessGroup;
                 numel: elements of x, which is bf16 and flat; x may be overwritten, and the result may be x
    source       where the code is from
    note         what a reader of its time must know
    codec        optional: what it sends: a preset's name where it is one; without it, the tensor as it is

`make` runs once per size, on all ranks in the same order, and so does every call. What does not go through NCCL must
itself keep to the transport that is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from taco.bench.peer_files import listed
from taco.config import require
from taco.recipes.collective import BASELINES, CHOSEN, COLLECTIVES, FUSED, UNFUSED


@dataclass(frozen=True, kw_only=True)
class CollectivePeer:
    """One collective of another implementation; the module's text says what the fields mean."""

    name: str
    collective: str
    make: Callable[[dist.ProcessGroup, int, torch.device], Callable[[Tensor], Tensor]]
    source: str
    note: str
    codec: str = "none"


def load(path: Path) -> list[CollectivePeer]:
    """The peers of a file. Raises `ConfigError` for a missing file, another form, or a peer that is there twice."""
    peers = [_peer(path, item) for item in listed(path, "PEERS")]
    names = [(peer.name, peer.collective) for peer in peers]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"peers {twice} more than once", "each once", "a table has one row for it")
    return peers


def _peer(path: Path, item: Any) -> CollectivePeer:
    known = [f.name for f in fields(CollectivePeer)]
    found = item if isinstance(item, dict) else {name: getattr(item, name, None) for name in known}
    given = {name: found[name] for name in known if found.get(name) is not None}
    needed = [f.name for f in fields(CollectivePeer) if f.default is MISSING]
    own = (*BASELINES, FUSED, UNFUSED, CHOSEN)
    require(
        set(needed) <= set(given)
        and given["collective"] in COLLECTIVES
        and callable(given["make"])
        and given["name"] not in own,
        f"a peer of {path} with {', '.join(map(str, given)) or 'no such fields'}",
        f"{', '.join(needed)}; a collective among {', '.join(COLLECTIVES)}; no name among {', '.join(own)}",
        "each is one collective, told apart from the arms that are always there",
    )
    return CollectivePeer(**given)

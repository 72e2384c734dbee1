"""Looking at the tensors that a run sends: SQNR and crest factor per layer, and capture to a file.

Both hang on the `observer(role, name, x)` hook of the Communicators, which is called with the tensor about
to be sent. A watch sees the calls of one step, the first microbatch of each (role, name) only.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from taco.codec import coder
from taco.codec.quality import sqnr_db
from taco.config import NoCodec, Policy

# leading elements kept of a captured tensor: statistics of groups need no more, and a file holds hundreds of tensors
CAPTURE_LIMIT = 1 << 18


def crest_db(x: Tensor) -> float:
    """20 log10(max|x| / rms(x)) of a tensor [any shape]; nan for an empty or all-zero one."""
    y = x.detach().flatten().double()  # squares of large fp32 values are beyond fp32
    rms = y.square().mean().sqrt().item() if y.numel() else 0.0
    return 20 * math.log10(y.abs().max().item() / rms) if rms > 0 else math.nan


class Sqnr:
    """Collects one record per (role, name): how well the policy's codec represents the tensor sent.

    warming: whether the step that is watched is one of the policy's warm-up.
    """

    def __init__(self, policy: Policy, *, warming: bool = False) -> None:
        self._policy, self._warming = policy, warming
        self._seen: set[tuple[str, str]] = set()
        self.records: list[dict[str, Any]] = []

    @torch.no_grad()
    def __call__(self, role: str, name: str, x: Tensor) -> None:
        if (role, name) in self._seen or not x.numel():
            return
        self._seen.add((role, name))
        codec = self._policy.codec(role, name, warming=self._warming)
        quality = math.inf
        if not isinstance(codec, NoCodec):
            chosen = coder(codec)
            y = x.detach().contiguous()
            quality = sqnr_db(y, chosen.decode(chosen.encode(y), y.numel(), y.dtype).view_as(y))
        self.records.append({"role": role, "name": name, "sqnr_db": float(quality), "crest_db": crest_db(x)})


class Capture:
    """Collects the tensors themselves: `<role>|<name>|<rank>` for `ways` virtual ranks (1: this process's own).

    Of a tensor of more than `CAPTURE_LIMIT` elements the leading ones, flat.
    """

    def __init__(self, ways: int) -> None:
        self._ways = ways
        self._counts: dict[tuple[str, str], int] = {}
        self.tensors: dict[str, Tensor] = {}

    @torch.no_grad()
    def __call__(self, role: str, name: str, x: Tensor) -> None:
        rank = self._counts.get((role, name), 0)
        self._counts[role, name] = rank + 1
        if rank < self._ways:
            kept = x.detach() if x.numel() <= CAPTURE_LIMIT else x.detach().reshape(-1)[:CAPTURE_LIMIT]
            self.tensors[f"{role}|{name}|{rank}"] = kept.to("cpu", copy=True).contiguous()

    def save(self, path: Path, *, run: str, step: int) -> None:
        """Write the tensors as safetensors in one step. Raises `ValueError` if nothing was sent."""
        if not self.tensors:
            raise ValueError(
                f"got no tensor to capture at step {step} of {run}; need a run with tp, virtual_tp, pp or dp above 1; "
                "because only tensors that are sent are captured"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        save_file(self.tensors, part, metadata={"run": run, "step": str(step)})
        os.replace(part, path)


class Watch:
    """The one observer that Communicators hold: passes calls on to the watchers of the current step."""

    def __init__(self) -> None:
        self.watchers: list[Sqnr | Capture] = []

    def __call__(self, role: str, name: str, x: Tensor) -> None:
        for watcher in self.watchers:
            watcher(role, name, x)

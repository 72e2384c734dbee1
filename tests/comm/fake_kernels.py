"""Kernels over peers' memory need GPUs; here the same interfaces over gloo, which sum what the algorithms sum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from taco.codec import coder
from taco.comm import CommError, algorithms, peers, symmetric
from taco.comm.links import Journal, group_links
from taco.comm.meter import raw_bytes, wire_bytes
from taco.config import Codec, NoCodec


class FakeFused:
    """`Fused` on CPU tensors. made: the codecs of all objects; options: what the last was made with besides."""

    made: list[str] = []  # noqa: RUF012
    options: dict = {}  # noqa: RUF012

    def __init__(self, group: dist.ProcessGroup | None, codec: Codec, *, device: torch.device, **options) -> None:
        self.made.append(codec.name)
        type(self).options = options
        self.codec, self.size = codec, dist.get_world_size(group)
        self.links = group_links(group, dist.get_rank(group), Journal(0, self.size, "fake"), 0)

    def all_reduce(self, x: Tensor, *, algorithm: str = "auto", seed: int = 0) -> Tensor:
        if isinstance(self.codec, NoCodec):
            return self.links.plain.all_reduce([x])
        total = algorithms.all_reduce(algorithm, self.links, coder(self.codec), [x.reshape(-1)], self.size, seed)
        return total.view(x.shape)

    def reduce_scatter(self, x: Tensor, *, seed: int = 0) -> Tensor:
        parts = x.chunk(self.size)
        if isinstance(self.codec, NoCodec):
            return self.links.plain.reduce_scatter([torch.stack(parts)])[0]
        sizes = [len(part) for part in parts]
        return algorithms.reduce_scatter("one_shot", self.links, coder(self.codec), [parts], sizes, seed)[0]

    def all_gather(self, x: Tensor, *, seed: int = 0) -> Tensor:
        if isinstance(self.codec, NoCodec):
            return self.links.plain.all_gather([x])[0]
        return torch.stack(list(algorithms.all_gather(self.links, coder(self.codec), [x], [len(x)] * self.size, seed)))

    def sent_bytes(self, collective: str, algorithm: str, numel: int, dtype: torch.dtype) -> int:
        """Those of the algorithms' packets."""
        if isinstance(self.codec, NoCodec):
            return raw_bytes(collective, numel, dtype, self.size)
        return wire_bytes(
            collective, algorithm if collective == "all_reduce" else "auto", numel, dtype, self.size, self.codec
        )

    def check(self) -> None:
        if self.made == ["timed out"]:
            raise CommError("rank 1 came too late")


class FakeSymmetric:
    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group = group

    def all_reduce(self, x: Tensor, *, two_shot: bool) -> Tensor:
        total = x.clone()
        dist.all_reduce(total, group=self.group)
        return total


@contextmanager
def kernels(reason: str = "") -> Iterator[list[str]]:
    """Kernels that run, or do not for a reason; yields the codecs for which they were made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "Fused", FakeFused)
        patch.setattr(peers, "why_not", lambda codec, group, device: reason)
        patch.setattr(symmetric, "SymmetricReduce", FakeSymmetric)
        patch.setattr(symmetric, "why_not", lambda group, device, dtype: reason)
        FakeFused.made.clear()
        yield FakeFused.made

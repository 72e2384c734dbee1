"""Compressed messages from one rank to another: one packet a message, for pipelines."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from taco.codec.base import Coder
from taco.comm.errors import check_local
from taco.comm.links import Journal
from taco.comm.meter import Meter, raw_bytes
from taco.comm.numerics import mix_seed
from taco.comm.select import compresses
from taco.config import Codec


@dataclass(kw_only=True)
class Message:
    """A message under way. `wait()` returns the received tensor, or None for a sent one; again if called again.

    Holds the packet, so that its memory outlives the transfer.
    """

    work: dist.Work | None
    packet: Tensor
    finish: Callable[[], Tensor | None]
    journal: Journal
    operation: str

    def wait(self) -> Tensor | None:
        if self.work is not None:
            self.journal.operation = self.operation
            with self.journal.phase("waiting"):
                self.work.wait()
            self.work = None
        return self.finish()


class PointToPoint:
    """Mixin of `Communicator`: send, receive, and the packets themselves for a schedule that batches its transfers.

    Sender and receiver agree on shape and dtype beforehand; both take the same path from them.
    """

    group: dist.ProcessGroup | None
    rank: int
    world_size: int
    codec: Codec
    role: str
    meter: Meter
    min_bytes: int
    seed: int
    observer: Callable[[str, str, Tensor], None] | None
    paths: Counter[str]
    messages: int
    _coder: Coder
    _journal: Journal

    def _compressed(self, numel: int, dtype: torch.dtype) -> bool:
        return compresses(self.codec, dtype, numel * dtype.itemsize, self.min_bytes)

    def packet(self, x: Tensor, *, name: str = "") -> Tensor:
        """What is sent for x: a uint8 Packet, or x's elements (flat) where it goes uncompressed. Counted as sent."""
        check_local(x)
        flat = x.detach().reshape(-1)
        compressed = self._compressed(flat.numel(), x.dtype)
        if self.observer is not None:
            self.observer(self.role, name, x.detach())
        self.messages += 1
        packet = flat.contiguous()
        if compressed:
            packet = self._coder.encode(flat, seed=mix_seed(self.seed, self.rank, self.messages, 3))
        self.meter.add(self.role, packet.nbytes, raw_bytes("send", flat.numel(), x.dtype, self.world_size))
        self.paths["direct" if compressed else "uncompressed"] += 1
        return packet

    def packet_buffer(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """An empty flat tensor that receives the packet of a tensor of `shape` and `dtype`."""
        numel = math.prod(shape)
        if self._compressed(numel, dtype):
            return torch.empty(self._coder.nbytes(numel, dtype), dtype=torch.uint8, device=device)
        return torch.empty(numel, dtype=dtype, device=device)

    def unpack(self, packet: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The tensor of `shape` and `dtype` that `packet` holds."""
        numel = math.prod(shape)
        if self._compressed(numel, dtype):
            packet = self._coder.decode(packet, numel, dtype)
        return packet.view(tuple(shape))

    def send(self, x: Tensor, dst: int, *, name: str = "") -> None:
        """Send x to rank `dst` of the group; returns when it may be changed."""
        self.isend(x, dst, name=name).wait()

    def recv(self, shape: Sequence[int], dtype: torch.dtype, src: int, device: torch.device | str = "cpu") -> Tensor:
        """Receive the tensor of `shape` and `dtype` that rank `src` of the group sends."""
        received = self.irecv(shape, dtype, src, device).wait()
        assert received is not None
        return received

    def isend(self, x: Tensor, dst: int, *, name: str = "") -> Message:
        """Start to send x to rank `dst`; keep the result and wait for it."""
        self._check_peer(dst)
        return self._start("send", dist.isend, "group_dst", dst, self.packet(x, name=name), lambda: None)

    def irecv(self, shape: Sequence[int], dtype: torch.dtype, src: int, device: torch.device | str = "cpu") -> Message:
        """Start to receive from rank `src`; `wait()` returns the tensor."""
        self._check_peer(src)
        buffer = self.packet_buffer(shape, dtype, device)
        return self._start("recv", dist.irecv, "group_src", src, buffer, lambda: self.unpack(buffer, shape, dtype))

    def _start(self, verb: str, call: Callable, peer_name: str, peer: int, packet: Tensor, finish: Callable) -> Message:
        toward = "to" if verb == "send" else "from"
        operation = f"{verb} {toward} rank {peer}, message {self.messages},"
        self._journal.begin(operation)
        work = None
        if packet.numel():
            with self._journal.phase("starting"):
                work = call(packet, group=self.group, **{peer_name: peer})
        return Message(work=work, packet=packet, finish=finish, journal=self._journal, operation=operation)

    def _check_peer(self, peer: int) -> None:
        if not 0 <= peer < self.world_size or peer == self.rank:
            raise ValueError(
                f"got peer {peer} on rank {self.rank} of {self.world_size}; need another rank of the group; "
                "because a message has two ends"
            )

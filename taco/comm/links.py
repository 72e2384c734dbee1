"""Who exchanges messages with whom: the two exchanges that compressed collectives are made of, over torch.distributed.

A `Link` plays `ranks`: this process's one rank, or all of them when they are virtual (taco/comm/virtual.py). Its
methods take and return one tensor per played rank, so the algorithms are written once for both.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from taco.comm.errors import CommError

# the names up to and since torch 2.12
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
# ranks keep a group's own order, which only newer versions of torch can have; older ones sort the ranks of every group
_OWN_ORDER = {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}

# an all-gather of packets is the backend's own, or one batch of sends and receives between all pairs
EXCHANGES = ("all_gather", "send_recv")

# waits for a transfer and returns what has arrived, one tensor for each played rank
Transfer = Callable[[], list[Tensor]]


class Journal:
    """What is happening, for error texts and byte counts; shared by the links of one communicator.

    operation: what `said` puts into words: (collective, name of the tensor, number of the call), or the words.
    sent: packet bytes that this rank (one of the virtual ones) has sent in it.
    """

    def __init__(self, rank: int, world_size: int, role: str) -> None:
        self.who = f"rank {rank} of {world_size}, role {role}"
        self.operation: tuple[str, str, int] | str = ""
        self.sent = 0

    def begin(self, operation: tuple[str, str, int] | str) -> None:
        self.operation, self.sent = operation, 0

    def said(self) -> str:
        """The operation in words, e.g. 'all_reduce of wte, call 3,'."""
        if isinstance(self.operation, str):
            return self.operation
        collective, name, call = self.operation
        return f"{collective}{f' of {name}' if name else ''}, call {call},"

    def fail(self, phase: str, error: RuntimeError) -> NoReturn:
        """Raise a backend's failure in `phase` as a `CommError` that says where it happened; one that is, as it is."""
        if isinstance(error, CommError):
            raise error
        raise CommError(f"{self.who}: {self.said()} failed in {phase}; the backend said: {error}") from error

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`fail` where anything inside fails."""
        try:
            yield
        except RuntimeError as error:
            self.fail(name, error)


class Link(Protocol):
    """Exchanges within one set of ranks (the group, a node, or the same place of every node).

    `start_*` begin a transfer and return what waits for it. overlap: the caller works on before it waits; on CUDA the
    transfer then runs beside the current stream, which waits for it, and otherwise on that stream.
    """

    def start_all_to_all(self, stacks: Sequence[Tensor], *, overlap: bool = False) -> Transfer:
        """Row i of each uint8 [size, P] goes to member i; row i of each result comes from member i."""

    def start_all_gather(self, packets: Sequence[Tensor], *, overlap: bool = False) -> Transfer:
        """Each uint8 [P] goes to every member; row i of each result [size, P] is member i's."""

    def all_to_all(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """`start_all_to_all`, and wait."""

    def all_gather(self, packets: Sequence[Tensor]) -> list[Tensor]:
        """`start_all_gather`, and wait."""


class Waiting:
    """The exchanges of a `Link` that wait, made of those that start."""

    def all_to_all(self: Link, stacks: Sequence[Tensor]) -> list[Tensor]:
        return self.start_all_to_all(stacks)()

    def all_gather(self: Link, packets: Sequence[Tensor]) -> list[Tensor]:
        return self.start_all_gather(packets)()


class Plain(Protocol):
    """Uncompressed exchanges and sums over a group, for any dtype."""

    def all_to_all(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """As `Link`'s."""

    def all_gather(self, packets: Sequence[Tensor]) -> list[Tensor]:
        """As `Link`'s."""

    def all_reduce(self, parts: Sequence[Tensor]) -> Tensor:
        """Sum of one tensor per rank."""

    def reduce_scatter(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """Each [size, n]; the sum of row r over all ranks, for each played rank r: [n]."""


@dataclass(frozen=True)
class Links:
    """The exchanges of one communicator. ranks: those played here; node_size, intra, inter: set when it spans nodes.

    plain: the uncompressed exchanges and sums.
    """

    ranks: tuple[int, ...]
    world: Link | None = None
    plain: Plain | None = None
    node_size: int = 0
    intra: Link | None = None
    inter: Link | None = None


class GroupLink(Waiting):
    """`Link` and `Plain` of this process in a process group; group None is the default group.

    exchange: what an all-gather is made of, see `EXCHANGES`.
    """

    def __init__(
        self, group: dist.ProcessGroup | None, journal: Journal, name: str = "", exchange: str = "all_gather"
    ) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._exchange = exchange
        self._journal = journal
        self._all_to_all, self._all_gather = f"{name} all-to-all".lstrip(), f"{name} all-gather".lstrip()

    # What waits at once is written out: the halves of a transfer, which are for more than one, cost more host time.

    def all_to_all(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        [stack] = stacks
        out = torch.empty_like(stack)
        try:
            dist.all_to_all_single(out, stack, group=self.group)
        except RuntimeError as error:
            self._journal.fail(self._all_to_all, error)
        self._journal.sent += stack.nbytes // self.size * (self.size - 1)
        return [out]

    def all_gather(self, packets: Sequence[Tensor]) -> list[Tensor]:
        [packet] = packets
        if self._exchange == "send_recv":
            return self.start_all_gather(packets)()
        numel = packet.numel()
        out = packet.new_empty(self.size * numel)
        try:
            all_gather_single(out, packet, group=self.group)
        except RuntimeError as error:
            self._journal.fail(self._all_gather, error)
        self._journal.sent += (self.size - 1) * packet.nbytes
        return [out.view(self.size, numel)]

    def start_all_to_all(self, stacks: Sequence[Tensor], *, overlap: bool = False) -> Transfer:
        [stack] = stacks
        out, phase = torch.empty_like(stack), self._all_to_all
        with self._journal.phase(phase):
            work = dist.all_to_all_single(out, stack, group=self.group, async_op=overlap)
        self._journal.sent += (self.size - 1) * stack[0].nbytes
        return self._arrival(phase, [work], stack, out)

    def start_all_gather(self, packets: Sequence[Tensor], *, overlap: bool = False) -> Transfer:
        [packet] = packets
        out, phase = packet.new_empty(self.size, packet.numel()), self._all_gather
        with self._journal.phase(phase):
            if self._exchange == "send_recv":
                works = self._send_to_each(packet, out)
            else:
                works = [all_gather_single(out.view(-1), packet, group=self.group, async_op=overlap)]
        self._journal.sent += (self.size - 1) * packet.nbytes
        return self._arrival(phase, works, packet, out)

    def _send_to_each(self, packet: Tensor, out: Tensor) -> list[dist.Work]:
        """Start one batch of messages between all pairs of members; row i of `out` becomes member i's packet."""
        out[self.rank].copy_(packet)
        peers = [(self.rank + step) % self.size for step in range(1, self.size)]
        sends = [dist.P2POp(dist.isend, packet, group=self.group, group_peer=peer) for peer in peers]
        receives = [dist.P2POp(dist.irecv, out[peer], group=self.group, group_peer=peer) for peer in peers]
        return dist.batch_isend_irecv(sends + receives) if peers and packet.numel() else []

    def _arrival(self, phase: str, works: Sequence[dist.Work | None], sent: Tensor, out: Tensor) -> Transfer:
        """What waits for the works; until then it keeps what is being sent alive."""
        kept = [sent]

        def arrive() -> list[Tensor]:
            with self._journal.phase(phase):
                for work in works:
                    if work is not None:
                        work.wait()
            kept.clear()
            return [out]

        return arrive

    def all_reduce(self, parts: Sequence[Tensor]) -> Tensor:
        [x] = parts
        out = x.clone(memory_format=torch.contiguous_format)
        try:
            dist.all_reduce(out, group=self.group)
        except RuntimeError as error:
            self._journal.fail("uncompressed all-reduce", error)
        return out

    def reduce_scatter(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        [stack] = stacks
        out = torch.empty_like(stack[0])
        try:
            reduce_scatter_single(out, stack.view(-1), group=self.group)
        except RuntimeError as error:
            self._journal.fail("uncompressed reduce-scatter", error)
        return [out]


def group_links(
    group: dist.ProcessGroup | None, rank: int, journal: Journal, node_size: int, exchange: str = "all_gather"
) -> Links:
    """Links of this process. node_size > 0 creates the two subgroups of a node and of its place in every node.

    exchange: of packets within the whole group, see `EXCHANGES`. Collective over `group` if node_size > 0: each member
    calls it, in the same order; others need not. Raises ValueError for another exchange.
    """
    if exchange not in EXCHANGES:
        raise ValueError(f"got exchange={exchange!r}; need one of {', '.join(EXCHANGES)}; because these exist")
    world, plain = GroupLink(group, journal, exchange=exchange), GroupLink(group, journal)
    if not node_size:
        return Links((rank,), world, plain)
    node, place = divmod(rank, node_size)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    timeout = _timeout(group)
    with journal.phase("creation of the groups within and across nodes"):
        # every rank first joins its node, then its place: no cycle of waiting groups
        intra = _subgroup(ranks[node * node_size : (node + 1) * node_size], timeout)
        inter = _subgroup(ranks[place::node_size], timeout)
    within, across = GroupLink(intra, journal, "intra-node"), GroupLink(inter, journal, "inter-node")
    return Links((rank,), world, plain, node_size, within, across)


def _subgroup(ranks: list[int], timeout: timedelta | None) -> dist.ProcessGroup:
    return dist.new_group(ranks, timeout=timeout, use_local_synchronization=True, **_OWN_ORDER)


def _timeout(group: dist.ProcessGroup | None) -> timedelta | None:
    """The timeout of a group's backend, so that its subgroups wait no longer; None is the backend's default."""
    pg = group or dist.group.WORLD
    options = getattr(pg._get_backend(pg._device_types[0]), "options", None)
    return getattr(options, "_timeout", None)

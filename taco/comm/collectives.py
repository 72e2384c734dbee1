"""What the communicators of real and of virtual ranks share: choice of path, seeds, metering, collectives on parts.

All functions run without autograd on the values of their inputs, never change them, and return new tensors.
Symbols: N ranks; a 'part' is the tensor of one played rank (one here, all N in taco/comm/virtual.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from taco.codec import coder as make_coder
from taco.comm import algorithms
from taco.comm.crossover import FUSED_PATHS, Crossover
from taco.comm.errors import check_local
from taco.comm.layout import slice_count
from taco.comm.links import Journal, Links
from taco.comm.meter import Mark, Meter, raw_bytes
from taco.comm.numerics import joined, mix_seed, rows
from taco.comm.peers import Peers
from taco.comm.pending import Lane
from taco.comm.plan import LIMIT, Form, Option, Plan
from taco.comm.select import PEER_PATHS, Route, check_algorithm, compresses, measured_route, resolve, spans_nodes
from taco.config import Codec

Observer = Callable[[str, str, Tensor], None]
Parts = Sequence[Sequence[Tensor] | Tensor]
Gathered = Sequence[Tensor] | Tensor  # the flat tensors of all ranks; of one size perhaps as one tensor [N, numel]


class Collectives:
    """Everything but who the peers are: path, seeds, metering, and the collectives on parts.

    rank, world_size: place in the group. codec, role, min_bytes, algorithm, node_size, seed, slice_bytes, crossover: as
    given. paths: how often each path ran (see `Route.path` of taco/comm/select.py); of virtual ranks, the path that
    real ones would take.
    calls, messages: collectives and packets so far, part of the next one's seed. Setting both to what they were at a
        checkpoint continues the sequence of a stochastic codec's seeds. calls is the same on all ranks.
    """

    min_bytes, algorithm, node_size = Option(), Option(), Option()
    slice_bytes, crossover = Option(), Option()

    def __init__(
        self,
        rank: int,
        world_size: int,
        codec: Codec,
        *,
        role: str,
        meter: Meter | None,
        min_bytes: int,
        algorithm: str,
        node_size: int,
        observer: Observer | None,
        seed: int,
        slice_bytes: int,
        crossover: Crossover | None,
    ) -> None:
        check_algorithm(algorithm, world_size, node_size)
        self.rank, self.world_size = rank, world_size
        self.role, self.min_bytes, self.seed = role, min_bytes, seed
        self.algorithm, self.node_size = algorithm, node_size
        self.slice_bytes, self.crossover = slice_bytes, crossover
        self.meter = meter if meter is not None else Meter()
        self.observer = observer
        self.paths: Counter[str] = Counter()
        self.calls = 0
        self.messages = 0
        self._codec, self._coder = codec, make_coder(codec)
        self._journal = Journal(rank, world_size, role)
        self._peers: Peers | None = None
        self._lane: Lane | None = None
        self._plans: dict[Form, Plan]  # of messages so far; empty once an option is set

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role}, codec={self.codec.name}, {self.algorithm}, {self.world_size} ranks)"

    @property
    def codec(self) -> Codec:
        """Fixed: coder and kernels are made for it. Messages with another codec need another communicator."""
        return self._codec

    @property
    def seeded(self) -> bool:
        """Whether packets depend on the seed, the counts of calls and messages."""
        return self._coder.seeded

    def _node_size(self) -> int:
        """node_size where operations may be hierarchical, else 0."""
        hierarchical = self.algorithm in ("auto", "hierarchical") and spans_nodes(self.world_size, self.node_size)
        return self.node_size if hierarchical else 0

    def check(self) -> None:
        """Raise `CommError` if a call of taco's kernels has timed out on the GPU; calls under way may still do so."""
        if self._peers is not None:
            self._peers.check()

    def _route(self, collective: str, x: Tensor, numel: int, *, even: bool) -> Route:
        """The way of a message of x's dtype and device. numel: elements of the full tensor (see `raw_bytes`). even:
        whether all ranks' chunks have one size."""
        algorithm, nbytes = "uncompressed", numel * x.itemsize
        if compresses(self.codec, x.dtype, nbytes, self.min_bytes):
            algorithm = resolve(collective, self.algorithm, numel, x.dtype, self.world_size, self.codec, self.node_size)
        table = self.crossover
        if table is None or collective not in table.times:
            return Route(algorithm, algorithm)
        return measured_route(table, collective, x.dtype, nbytes, algorithm, even=even, role=self.role)

    def _measured(self, collective: str, dtype: torch.dtype) -> bool:
        """Whether the table, if there is one, chooses the path."""
        return self.crossover is not None and collective in self.crossover.times and self.crossover.holds(dtype)

    def _check_device(self, device: torch.device) -> None:
        """Raise ValueError where messages on `device` cannot be planned."""

    def _plan(self, collective: str, x: Tensor, numel: int, *, even: bool) -> Plan:
        """Arguments as of `_route`. May be collective, see `Peers.why_not`. Virtual ranks have links for all routes."""
        self._check_device(x.device)
        route = self._route(collective, x, numel, even=even)
        raw, peers = raw_bytes(collective, numel, x.dtype, self.world_size), self._peers is not None
        wire = None if route.compressed else raw
        if route.path in FUSED_PATHS and peers:
            algorithm = route.algorithm if route.path == "fused" else "auto"
            wire = self._peers.sent_bytes(route.path, collective, algorithm, numel, x)
        slices = slice_count(self._coder, numel * x.itemsize, self.slice_bytes)
        peers &= route.path in PEER_PATHS
        return Plan(route.path, route.algorithm, route.compressed, peers, slices, raw, wire)

    def _begin(
        self, collective: str, name: str, sent: Sequence[Tensor], numel: int, even: bool = True
    ) -> tuple[Plan, int, Mark]:
        """Before one operation: its plan, seed, and what `_end` takes when it has succeeded.

        sent: the tensors about to be sent. Both AG and RS choose by the full tensor's size, so that an operation and
        its gradient take the same path.
        """
        x = sent[0]
        device = x.device
        if self._lane is not None and self._lane.last is not None:
            self._lane.join(device)
        form = (collective, numel, x.dtype, device, even)
        plan = self._plans.get(form)
        if plan is None:
            plan = self._plan(collective, x, numel, even=even)
            if len(self._plans) >= LIMIT:
                self._plans.clear()
            self._plans[form] = plan
        self.calls += 1
        if self.observer is not None:
            for tensor in sent:
                self.observer(self.role, name, tensor.detach())
        self._journal.begin((collective, name, self.calls))
        seed = mix_seed(self.seed, self.calls) if self._coder.seeded else 0
        return plan, seed, self.meter.start(device)

    def _end(self, plan: Plan, mark: Mark) -> None:
        """Count an operation that has succeeded."""
        self.meter.stop(self.role, mark)
        self.meter.add(self.role, self._journal.sent if plan.wire is None else plan.wire, plan.raw)
        self.paths[plan.path] += 1

    def _idle(self, numel: int) -> bool:
        return self.world_size == 1 or numel == 0

    def _all_reduce(self, links: Links, parts: Sequence[Tensor], name: str) -> Tensor:
        x = parts[0]
        numel = x.numel()
        if self._idle(numel):
            return x.clone()
        plan, seed, mark = self._begin("all_reduce", name, parts, numel)
        if plan.peers:
            total = self._peers.all_reduce(plan.path, x, plan.algorithm, seed)
        elif plan.compressed:
            total = self._compressed_all_reduce(plan, links, parts, seed)
            if x.dim() != 1:
                total = total.view(x.shape)
        else:
            total = links.plain.all_reduce(parts)
        self._end(plan, mark)
        return total

    def _compressed_all_reduce(self, plan: Plan, links: Links, parts: Sequence[Tensor], seed: int) -> Tensor:
        """The sum of the parts, flat or in their shape."""
        return algorithms.all_reduce(plan.algorithm, links, self._coder, parts, self.world_size, seed, plan.slices)

    def _reduce_scatter(self, links: Links, parts: Parts, name: str, sent: Sequence[Tensor]) -> list[Tensor]:
        """parts[i][r]: what played rank i gives to rank r -> the flat sum of each played rank.

        parts[i] may be one tensor [N, numel].
        """
        sizes = _sizes(parts[0])
        most = max(sizes)
        if self._idle(most):
            return [parts[i][r].reshape(-1).clone() for i, r in enumerate(links.ranks)]
        numel, even = most * self.world_size, sizes.count(most) == len(sizes)
        plan, seed, mark = self._begin("reduce_scatter", name, sent, numel, even)
        if plan.peers:
            sums = [self._peers.reduce_scatter(plan.path, rows(parts[0]).view(-1), seed)]
        elif plan.compressed:
            sums = algorithms.reduce_scatter(plan.algorithm, links, self._coder, parts, sizes, seed, plan.slices)
        else:
            sums = links.plain.reduce_scatter([_stack(shards, most) for shards in parts])
            if not even:
                sums = [total[: sizes[r]] for total, r in zip(sums, links.ranks, strict=True)]
        self._end(plan, mark)
        return sums

    def _all_gather(self, links: Links, parts: Sequence[Tensor], sizes: Sequence[int], name: str) -> Gathered:
        """parts[i]: the tensor of played rank i -> the flat tensors of all N ranks."""
        most = max(sizes)
        if self._idle(most):
            return [parts[0].reshape(-1).clone() for _ in sizes]
        numel, even = most * self.world_size, sizes.count(most) == len(sizes)
        plan, seed, mark = self._begin("all_gather", name, parts, numel, even)
        gathered: Gathered
        if plan.peers:
            gathered = self._peers.all_gather(plan.path, parts[0].reshape(-1), seed)
        elif plan.compressed:
            gathered = algorithms.all_gather(links, self._coder, parts, sizes, seed, plan.slices)
        else:
            gathered = links.plain.all_gather([_stack([part], most)[0] for part in parts])[0]
            if not even:
                gathered = [row[:size] for row, size in zip(gathered, sizes, strict=True)]
        self._end(plan, mark)
        return gathered

    def _all_to_all(self, links: Links, parts: Parts, name: str, sent: Sequence[Tensor]) -> list[list[Tensor]]:
        """parts[i][r]: what played rank i sends to rank r -> flat, what each played rank has received by source."""
        size = parts[0][0].numel()
        if self._idle(size):
            return [[part.reshape(-1).clone() for part in shards] for shards in parts]
        plan, seed, mark = self._begin("all_to_all", name, sent, size * self.world_size)
        if plan.compressed:
            received = algorithms.all_to_all(links, self._coder, parts, seed)
        else:
            received = [list(each) for each in links.plain.all_to_all([_stack(shards, size) for shards in parts])]
        self._end(plan, mark)
        return received

    def _shards(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """The N equal shards of x along dim. Raises ValueError for a dim that does not exist or does not divide."""
        self._shard_shape(x, dim)
        return x.tensor_split(self.world_size, dim)

    def _shard_shape(self, x: Tensor, dim: int) -> list[int]:
        """That of each of the shards. Raises as `_shards`."""
        self._check_dim(x, dim)
        shape = list(x.shape)
        if shape[dim] % self.world_size:
            raise ValueError(
                f"got shape {shape} with size {shape[dim]} in dim {dim}; need a multiple of "
                f"{self.world_size}; because {self.role} splits it equally over the ranks (uneven: the _chunks methods)"
            )
        shape[dim] //= self.world_size
        return shape

    def _check_dim(self, x: Tensor, dim: int) -> None:
        if not -x.dim() <= dim < x.dim():
            raise ValueError(
                f"got dim={dim} of a {x.dim()}-d tensor; need one that exists; because ranks' shards lie along it"
            )

    def _check_chunks(self, chunks: Sequence, what: str) -> None:
        if len(chunks) != self.world_size:
            raise ValueError(
                f"got {len(chunks)} {what}; need {self.world_size}; because each rank of {self.role} has one"
            )
        for chunk in chunks:
            check_local(chunk)

    def _check_shards(self, chunks: Sequence[Tensor]) -> None:
        self._check_chunks(chunks, "chunks")
        dtypes = sorted({str(chunk.dtype) for chunk in chunks})
        if len(dtypes) > 1:
            raise ValueError(f"got chunks of {', '.join(dtypes)}; need one dtype; because a sum has one")

    def _join(self, parts: Gathered, shape: torch.Size, dim: int) -> Tensor:
        """The flat parts in `shape`, concatenated along dim."""
        if dim % len(shape) == 0:
            return joined(parts).view(len(parts) * shape[0], *shape[1:])
        return torch.cat([part.view(shape) for part in parts], dim)


def _sizes(parts: Sequence[Tensor] | Tensor) -> list[int]:
    return [parts.shape[1]] * len(parts) if isinstance(parts, Tensor) else [part.numel() for part in parts]


def _stack(parts: Sequence[Tensor] | Tensor, size: int) -> Tensor:
    """[len(parts), size] of flattened parts, zero padded; a view where they are that already."""
    if isinstance(parts, Tensor) or all(part.numel() == size for part in parts):
        return rows(parts)
    out = parts[0].new_zeros(len(parts), size)
    for row, part in zip(out, parts, strict=True):
        row[: part.numel()] = part.reshape(-1)
    return out

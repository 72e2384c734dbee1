"""What the communicators of real and of virtual ranks share: choice of path, seeds, metering, collectives on parts.

All functions run without autograd on the values of their inputs, never change them, and return new tensors.
Symbols: N ranks; a 'part' is the tensor of one played rank (one here, all N in taco/comm/virtual.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from taco.codec import coder as make_coder
from taco.comm import algorithms
from taco.comm.crossover import Crossover
from taco.comm.layout import slice_count
from taco.comm.links import Journal, Links
from taco.comm.meter import Meter, raw_bytes, wire_bytes
from taco.comm.numerics import joined, mix_seed, rows
from taco.comm.peers import Peers
from taco.comm.select import PEER_PATHS, Route, check_algorithm, compresses, measured_route, resolve, spans_nodes
from taco.config import Codec

Observer = Callable[[str, str, Tensor], None]
Parts = Sequence[Sequence[Tensor]]


class Collectives:
    """Everything but who the peers are: path, seeds, metering, and the collectives on parts.

    rank, world_size: place in the group. codec, role, min_bytes, algorithm, node_size, seed, slice_bytes, crossover: as
    given. paths: how often each path ran (see `Route.path` of taco/comm/select.py); of virtual ranks, the path that
    real ones would take.
    calls, messages: collectives and packets so far, part of the next one's seed. Setting both to what they were at a
        checkpoint continues the sequence of a stochastic codec's seeds. calls is the same on all ranks.
    """

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
        self.codec, self.role, self.min_bytes, self.seed = codec, role, min_bytes, seed
        self.algorithm, self.node_size = algorithm, node_size
        self.slice_bytes, self.crossover = slice_bytes, crossover
        self.meter = meter if meter is not None else Meter()
        self.observer = observer
        self.paths: Counter[str] = Counter()
        self.calls = 0
        self.messages = 0
        self._coder = make_coder(codec)
        self._journal = Journal(rank, world_size, role)
        self._peers: Peers | None = None
        self._choices: dict[tuple, Route] = {}  # those of the table so far, by message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role}, codec={self.codec.name}, {self.algorithm}, {self.world_size} ranks)"

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
        if not self._measured(collective, x.dtype):
            return Route(algorithm, algorithm)
        key = (collective, nbytes, algorithm, even)
        if key not in self._choices:
            self._choices[key] = measured_route(self.crossover, collective, nbytes, algorithm, even=even)
        return self._choices[key]

    def _measured(self, collective: str, dtype: torch.dtype) -> bool:
        """Whether the table, if there is one, decides: it holds for one dtype."""
        table = self.crossover
        return table is not None and collective in table.times and str(dtype) == f"torch.{table.key.dtype}"

    def _before(self, device: torch.device) -> None:
        """What comes before anything of a new operation is sent."""

    @contextmanager
    def _operation(
        self, collective: str, name: str, sent: Sequence[Tensor], numel: int, *, even: bool = True
    ) -> Iterator[tuple[Route, int]]:
        """Around one operation: yields (route, seed); counts it when it has succeeded.

        sent: the tensors about to be sent. Both AG and RS choose by the full tensor's size, so that an operation and
        its gradient take the same path.
        """
        dtype = sent[0].dtype
        self._before(sent[0].device)
        route = self._route(collective, sent[0], numel, even=even)
        self.calls += 1
        if self.observer is not None:
            for x in sent:
                self.observer(self.role, name, x.detach())
        self._journal.begin(f"{collective}{f' of {name}' if name else ''}, call {self.calls},")
        with self.meter.timed(self.role, sent[0].device):
            yield route, mix_seed(self.seed, self.calls)
        raw = raw_bytes(collective, numel, dtype, self.world_size)
        wire = self._journal.sent if route.compressed else raw
        if route.path == "fused" and self._peers is not None:
            algorithm = route.algorithm if collective == "all_reduce" else "auto"
            wire = wire_bytes(collective, algorithm, numel, dtype, self.world_size, self.codec)
        self.meter.add(self.role, wire, raw)
        self.paths[route.path] += 1

    def _kernels(self, route: Route) -> Peers | None:
        """Where the route's kernels are; None where it runs over links, as all routes of virtual ranks do."""
        return self._peers if route.path in PEER_PATHS else None

    def _slices(self, numel: int, dtype: torch.dtype) -> int:
        return slice_count(self._coder, numel * dtype.itemsize, self.slice_bytes)

    def _idle(self, numel: int) -> bool:
        return self.world_size == 1 or numel == 0

    def _all_reduce(self, links: Links, parts: Sequence[Tensor], name: str) -> Tensor:
        x = parts[0]
        if self._idle(x.numel()):
            return x.clone()
        with self._operation("all_reduce", name, parts, x.numel()) as (route, seed):
            if peers := self._kernels(route):
                return peers.all_reduce(route.path, x, route.algorithm, seed)
            if not route.compressed:
                return links.plain.all_reduce(parts)
            flats, slices = [part.reshape(-1) for part in parts], self._slices(x.numel(), x.dtype)
            total = algorithms.all_reduce(route.algorithm, links, self._coder, flats, self.world_size, seed, slices)
            return total.view(x.shape)

    def _reduce_scatter(self, links: Links, parts: Parts, name: str, sent: Sequence[Tensor]) -> list[Tensor]:
        """parts[i][r]: what played rank i gives to rank r -> the flat sum of each played rank."""
        sizes = [part.numel() for part in parts[0]]
        if self._idle(sum(sizes)):
            return [parts[i][r].reshape(-1).clone() for i, r in enumerate(links.ranks)]
        numel, even = max(sizes) * self.world_size, len(set(sizes)) == 1
        with self._operation("reduce_scatter", name, sent, numel, even=even) as (route, seed):
            if peers := self._kernels(route):
                return [peers.reduce_scatter(route.path, rows(parts[0]).reshape(-1), seed)]
            if route.compressed:
                slices = self._slices(numel, sent[0].dtype)
                return algorithms.reduce_scatter(route.algorithm, links, self._coder, parts, sizes, seed, slices)
            sums = links.plain.reduce_scatter([_stack(shards, max(sizes)) for shards in parts])
            return [total[: sizes[r]] for total, r in zip(sums, links.ranks, strict=True)]

    def _all_gather(self, links: Links, parts: Sequence[Tensor], sizes: Sequence[int], name: str) -> list[Tensor]:
        """parts[i]: the tensor of played rank i -> the flat tensors of all N ranks."""
        if self._idle(sum(sizes)):
            return [parts[0].reshape(-1).clone() for _ in sizes]
        numel, even = max(sizes) * self.world_size, len(set(sizes)) == 1
        with self._operation("all_gather", name, parts, numel, even=even) as (route, seed):
            if peers := self._kernels(route):
                return list(peers.all_gather(route.path, parts[0].reshape(-1), seed))
            if route.compressed:
                slices = self._slices(numel, parts[0].dtype)
                return algorithms.all_gather(links, self._coder, parts, sizes, seed, slices)
            gathered = links.plain.all_gather([_stack([part], max(sizes))[0] for part in parts])[0]
            return [row[:size] for row, size in zip(gathered, sizes, strict=True)]

    def _all_to_all(self, links: Links, parts: Parts, name: str, sent: Sequence[Tensor]) -> list[list[Tensor]]:
        """parts[i][r]: what played rank i sends to rank r -> flat, what each played rank has received by source."""
        size = parts[0][0].numel()
        if self._idle(size):
            return [[part.reshape(-1).clone() for part in shards] for shards in parts]
        with self._operation("all_to_all", name, sent, size * self.world_size) as (route, seed):
            if route.compressed:
                return algorithms.all_to_all(links, self._coder, parts, seed)
            return [list(each) for each in links.plain.all_to_all([_stack(shards, size) for shards in parts])]

    def _shards(self, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """The N equal shards of x along dim. Raises ValueError for a dim that does not exist or does not divide."""
        self._check_dim(x, dim)
        if x.shape[dim] % self.world_size:
            raise ValueError(
                f"got shape {list(x.shape)} with size {x.shape[dim]} in dim {dim}; need a multiple of "
                f"{self.world_size}; because {self.role} splits it equally over the ranks (uneven: the _chunks methods)"
            )
        return x.tensor_split(self.world_size, dim)

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

    def _check_shards(self, chunks: Sequence[Tensor]) -> None:
        self._check_chunks(chunks, "chunks")
        dtypes = sorted({str(chunk.dtype) for chunk in chunks})
        if len(dtypes) > 1:
            raise ValueError(f"got chunks of {', '.join(dtypes)}; need one dtype; because a sum has one")

    def _join(self, parts: Sequence[Tensor], shape: torch.Size, dim: int) -> Tensor:
        """The flat parts in `shape`, concatenated along dim."""
        if dim % len(shape) == 0:
            return joined(parts).view(len(parts) * shape[0], *shape[1:])
        return torch.cat([part.view(shape) for part in parts], dim)


def _stack(parts: Sequence[Tensor], size: int) -> Tensor:
    """[len(parts), size] of flattened parts, zero padded; a view where they are that already."""
    if all(part.numel() == size for part in parts):
        return rows(parts)
    out = parts[0].new_zeros(len(parts), size)
    for row, part in zip(out, parts, strict=True):
        row[: part.numel()] = part.reshape(-1)
    return out

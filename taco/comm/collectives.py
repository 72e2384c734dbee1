"""Compressed collectives of a process group: `Communicator`, and what it shares with the virtual one.

All functions run without autograd on the values of their inputs, never change them, and return new tensors.
Symbols: N ranks; a 'part' is the tensor of one played rank (one here, all N in taco/comm/virtual.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from taco.codec import coder as make_coder
from taco.comm import algorithms
from taco.comm.links import Journal, Links, group_links
from taco.comm.meter import Meter, raw_bytes
from taco.comm.numerics import mix_seed
from taco.comm.point_to_point import PointToPoint
from taco.comm.select import check_algorithm, compresses, resolve, spans_nodes
from taco.config import Codec

Observer = Callable[[str, str, Tensor], None]
Parts = Sequence[Sequence[Tensor]]


class Collectives:
    """Everything but who the peers are: path, seeds, metering, and the collectives on parts.

    rank, world_size: place in the group. codec, role, min_bytes, algorithm, node_size, seed: as given.
    paths: how often each path ran ('uncompressed', 'one_shot', 'two_shot', 'hierarchical', 'direct').
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
    ) -> None:
        check_algorithm(algorithm, world_size, node_size)
        self.rank, self.world_size = rank, world_size
        self.codec, self.role, self.min_bytes, self.seed = codec, role, min_bytes, seed
        self.algorithm, self.node_size = algorithm, node_size
        self.meter = meter if meter is not None else Meter()
        self.observer = observer
        self.paths: Counter[str] = Counter()
        self.calls = 0
        self.messages = 0
        self._coder = make_coder(codec)
        self._journal = Journal(rank, world_size, role)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.role}, codec={self.codec.name}, {self.algorithm}, {self.world_size} ranks)"

    def _node_size(self) -> int:
        """node_size where operations may be hierarchical, else 0."""
        hierarchical = self.algorithm in ("auto", "hierarchical") and spans_nodes(self.world_size, self.node_size)
        return self.node_size if hierarchical else 0

    @contextmanager
    def _operation(self, collective: str, name: str, sent: Sequence[Tensor], numel: int) -> Iterator[tuple[str, int]]:
        """Around one operation: yields (path, seed); counts it when it has succeeded.

        sent: the tensors about to be sent. numel: elements of the full tensor (see `raw_bytes`). Both AG and RS compare
        the full tensor with min_bytes, so that an operation and its gradient take the same path.
        """
        dtype = sent[0].dtype
        path = "uncompressed"
        if compresses(self.codec, dtype, numel * dtype.itemsize, self.min_bytes):
            path = resolve(collective, self.algorithm, numel, dtype, self.world_size, self.codec, self.node_size)
        self.calls += 1
        if self.observer is not None:
            for x in sent:
                self.observer(self.role, name, x.detach())
        self._journal.begin(f"{collective}{f' of {name}' if name else ''}, call {self.calls},")
        with self.meter.timed(self.role, sent[0].device):
            yield path, mix_seed(self.seed, self.calls)
        raw = raw_bytes(collective, numel, dtype, self.world_size)
        self.meter.add(self.role, raw if path == "uncompressed" else self._journal.sent, raw)
        self.paths[path] += 1

    def _idle(self, numel: int) -> bool:
        return self.world_size == 1 or numel == 0

    def _all_reduce(self, links: Links, parts: Sequence[Tensor], name: str) -> Tensor:
        x = parts[0]
        if self._idle(x.numel()):
            return x.clone()
        with self._operation("all_reduce", name, parts, x.numel()) as (path, seed):
            if path == "uncompressed":
                return links.plain.all_reduce(parts)
            flats = [part.reshape(-1) for part in parts]
            return algorithms.all_reduce(path, links, self._coder, flats, self.world_size, seed).view(x.shape)

    def _reduce_scatter(self, links: Links, parts: Parts, name: str, sent: Sequence[Tensor]) -> list[Tensor]:
        """parts[i][r]: what played rank i gives to rank r -> the flat sum of each played rank."""
        sizes = [part.numel() for part in parts[0]]
        if self._idle(sum(sizes)):
            return [parts[i][r].reshape(-1).clone() for i, r in enumerate(links.ranks)]
        with self._operation("reduce_scatter", name, sent, max(sizes) * self.world_size) as (path, seed):
            if path != "uncompressed":
                return algorithms.reduce_scatter(path, links, self._coder, parts, sizes, seed)
            sums = links.plain.reduce_scatter([_stack(shards, max(sizes)) for shards in parts])
            return [total[: sizes[r]] for total, r in zip(sums, links.ranks, strict=True)]

    def _all_gather(self, links: Links, parts: Sequence[Tensor], sizes: Sequence[int], name: str) -> list[Tensor]:
        """parts[i]: the tensor of played rank i -> the flat tensors of all N ranks."""
        if self._idle(sum(sizes)):
            return [parts[0].reshape(-1).clone() for _ in sizes]
        with self._operation("all_gather", name, parts, max(sizes) * self.world_size) as (path, seed):
            if path != "uncompressed":
                return algorithms.all_gather(links, self._coder, parts, sizes, seed)
            rows = links.world.all_gather([_stack([part], max(sizes))[0] for part in parts])[0]
            return [row[:size] for row, size in zip(rows, sizes, strict=True)]

    def _all_to_all(self, links: Links, parts: Parts, name: str, sent: Sequence[Tensor]) -> list[list[Tensor]]:
        """parts[i][r]: what played rank i sends to rank r -> flat, what each played rank has received by source."""
        size = parts[0][0].numel()
        if self._idle(size):
            return [[part.reshape(-1).clone() for part in shards] for shards in parts]
        with self._operation("all_to_all", name, sent, size * self.world_size) as (path, seed):
            if path != "uncompressed":
                return algorithms.all_to_all(links, self._coder, parts, seed)
            return [list(rows) for rows in links.world.all_to_all([_stack(shards, size) for shards in parts])]

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

    def _join(self, rows: Sequence[Tensor], shape: torch.Size, dim: int) -> Tensor:
        return torch.cat([row.view(shape) for row in rows], dim)


def _stack(parts: Sequence[Tensor], size: int) -> Tensor:
    """[len(parts), size] of flattened parts, zero padded."""
    out = parts[0].new_zeros(len(parts), size)
    for row, part in zip(out, parts, strict=True):
        row[: part.numel()] = part.reshape(-1)
    return out


class Communicator(PointToPoint, Collectives):
    """Collectives and messages of this process in `group` (None: the default group, or one rank where there is none).

    codec: `NoCodec` runs torch's own collectives. role: what the meter and errors call it. min_bytes: messages smaller
    than this (full tensor, before compression) go uncompressed; so do integers. algorithm: of all_reduce, 'auto',
    'one_shot', 'two_shot' or 'hierarchical' (then reduce_scatter too). node_size: consecutive ranks on a node, 0: all.
    observer(role, name, x): called with each tensor about to be sent. seed: base of the seeds of stochastic codecs.
    With a node_size the constructor is collective over the group. Rank-identical results: every rank gets the same
    bits (uncompressed ones in the backend's order of summation; compressed ones in rank order in fp32, cast once).
    Without autograd: results carry no gradient (taco.parallel's layers do). Raises ValueError before anything is sent
    for bad input, `CommError` when a peer or the backend fails.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        codec: Codec,
        *,
        role: str,
        meter: Meter | None = None,
        min_bytes: int = 0,
        algorithm: str = "auto",
        node_size: int = 0,
        observer: Observer | None = None,
        seed: int = 0,
    ) -> None:
        alone = group is None and not dist.is_initialized()
        rank, world_size = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        if rank < 0:
            raise ValueError("got a group without this process; need one it belongs to; because others cannot use it")
        super().__init__(
            rank, world_size, codec, role=role, meter=meter, min_bytes=min_bytes, algorithm=algorithm,
            node_size=node_size, observer=observer, seed=seed,
        )  # fmt: skip
        self.group = group
        self._links = Links((0,)) if alone else group_links(group, rank, self._journal, self._node_size())

    @torch.no_grad()
    def all_reduce(self, x: Tensor, *, name: str = "") -> Tensor:
        """Sum of x over the ranks: same shape and dtype."""
        return self._all_reduce(self._links, [x], name)

    @torch.no_grad()
    def reduce_scatter(self, x: Tensor, dim: int = 0, *, name: str = "") -> Tensor:
        """This rank's shard along `dim` of the sum of x. Raises ValueError unless N divides x.shape[dim]."""
        shards = self._shards(x, dim)
        return self._reduce_scatter(self._links, [shards], name, [x])[0].view(shards[self.rank].shape)

    @torch.no_grad()
    def all_gather(self, x: Tensor, dim: int = 0, *, name: str = "") -> Tensor:
        """All ranks' x (of one shape) concatenated along `dim` in rank order; own part decoded too."""
        self._check_dim(x, dim)
        rows = self._all_gather(self._links, [x], [x.numel()] * self.world_size, name)
        return self._join(rows, x.shape, dim)

    @torch.no_grad()
    def all_to_all(self, x: Tensor, dim: int = 0, *, name: str = "") -> Tensor:
        """Shard r of x along `dim` goes to rank r; what comes in is concatenated along `dim` in rank order."""
        shards = self._shards(x, dim)
        return self._join(self._all_to_all(self._links, [shards], name, [x])[0], shards[0].shape, dim)

    @torch.no_grad()
    def reduce_scatter_chunks(self, chunks: Sequence[Tensor], *, name: str = "") -> Tensor:
        """chunks[r]: what goes into rank r's sum, of any size, the same on all ranks -> own sum, shape of own chunk."""
        self._check_shards(chunks)
        return self._reduce_scatter(self._links, [chunks], name, chunks)[0].view(chunks[self.rank].shape)

    @torch.no_grad()
    def all_gather_chunks(self, chunk: Tensor, sizes: Sequence[int], *, name: str = "") -> list[Tensor]:
        """Flat tensors [sizes[r]] of every rank r; chunk has sizes[rank] elements, `sizes` is the same on all ranks."""
        self._check_chunks(sizes, "sizes")
        if chunk.numel() != sizes[self.rank]:
            raise ValueError(
                f"got a chunk of {chunk.numel()} elements; need sizes[{self.rank}] = {sizes[self.rank]}; "
                "because the peers decode that many"
            )
        return self._all_gather(self._links, [chunk], sizes, name)

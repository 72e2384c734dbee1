"""The communicator of a process group: collectives, their asynchronous form, and messages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from taco.comm.collectives import Collectives, Observer
from taco.comm.crossover import MEMORY_OF, Crossover
from taco.comm.errors import CommError, check_group
from taco.comm.layout import SLICE_BYTES
from taco.comm.links import Links, group_links
from taco.comm.machine import device_name
from taco.comm.meter import Meter
from taco.comm.numerics import rows
from taco.comm.peers import Peers
from taco.comm.pending import Asynchronous, Lane
from taco.comm.plan import Option, without_autograd
from taco.comm.point_to_point import PointToPoint
from taco.comm.select import COMPRESSIBLE, Route, check_selection
from taco.config import Codec, NoCodec


class Communicator(PointToPoint, Asynchronous, Collectives):
    """Collectives and messages of this process in `group` (None: the default group, or one rank where there is none).

    codec: `NoCodec` runs torch's own collectives. role: what the meter and errors call it. min_bytes: messages smaller
    than this (full tensor, before compression) go uncompressed; so do integers. algorithm: of all_reduce, 'auto',
    'one_shot', 'two_shot' or 'hierarchical' (then reduce_scatter too). node_size: consecutive ranks on a node, 0: all.
    observer(role, name, x): called with each tensor about to be sent. seed: base of the seeds of stochastic codecs.
    slice_bytes: a compressed message of at least twice so many bytes travels in slices whose encoding and decoding
    overlap the transfer of others, with the bits of the whole (`Coder.sliceable`; at most 8; 0: never). exchange: how
    packets are gathered, 'all_gather' or 'send_recv' (see `EXCHANGES` of taco/comm/links.py).
    crossover: a measured table, which chooses the path of every message of its dtype that it has times of, from
    min_bytes on also a compressed one; of a collective that it has times of, messages of another dtype go uncompressed,
    with one warning; others follow the rules above. fused: whether compressed messages (with
    `NoCodec`: all of a dtype that codecs take) use taco's kernels over shared memory: 'off' unless the table says so,
    'auto' where they can run, 'require'; memory: which, 'peer', 'host' or 'auto'; sms: SMs that they occupy at
    most, 0: all (see `Fused`). Not for all_to_all, messages, chunks of several sizes, several nodes.
    With a node_size or a table the constructor is collective over the group, and the first use of shared memory is.
    Rank-identical results: every rank gets the same bits (uncompressed ones in the backend's order of summation;
    compressed ones in rank order in fp32, cast once). Without autograd: results carry no gradient (taco.parallel's
    layers do). Raises ValueError before anything is sent for bad input, `CommError` when a peer or the backend fails.
    """

    fused = Option()

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
        slice_bytes: int = SLICE_BYTES,
        exchange: str = "all_gather",
        crossover: Crossover | None = None,
        fused: str = "off",
        memory: str = "auto",
        sms: int = 0,
    ) -> None:
        check_group(group)
        alone = group is None and not dist.is_initialized()
        rank, world_size = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        if rank < 0:
            raise ValueError("got a group without this process; need one it belongs to; because others cannot use it")
        super().__init__(
            rank, world_size, codec, role=role, meter=meter, min_bytes=min_bytes, algorithm=algorithm,
            node_size=node_size, observer=observer, seed=seed, slice_bytes=slice_bytes, crossover=crossover,
        )  # fmt: skip
        check_selection(fused, crossover, codec, world_size, self._node_size(), algorithm)
        self.group, self.fused, self.exchange = group, fused, exchange
        self._links = Links((0,)) if alone else group_links(group, rank, self._journal, self._node_size(), exchange)
        if crossover is not None and not alone:
            self._check_table(crossover)
        self._lane = Lane(self._journal)
        shared = MEMORY_OF.get(crossover.key.transport.rpartition(" ")[2], memory) if crossover else memory
        self._peers = Peers(group, codec, self._journal, shared, sms)
        self._known: set[torch.device] = set()  # devices that the table is of

    def _check_table(self, crossover: Crossover) -> None:
        """Raise ValueError unless every rank has this table. Collective."""
        found: list = [None] * self.world_size
        with self._journal.phase("comparing the ranks' tables"):
            dist.all_gather_object(found, crossover.digest(), group=self.group)
        if other := [rank for rank, digest in enumerate(found) if digest != found[0]]:
            raise ValueError(
                f"got another crossover table on ranks {other} than on rank 0; need one on all; because ranks on "
                "different paths wait for each other without end"
            )

    def _check_device(self, device: torch.device) -> None:
        if self.crossover is not None and device not in self._known:
            if device_name(device) != self.crossover.key.device:
                raise ValueError(
                    f"got a tensor on {device_name(device)} with a crossover table of {self.crossover.key.device}; "
                    "need a table of this device; because another one has other times"
                )
            self._known.add(device)

    def _route(self, collective: str, x: Tensor, numel: int, *, even: bool) -> Route:
        route = super()._route(collective, x, numel, even=even)
        if self.fused == "off" or not even or collective == "all_to_all" or self._measured(collective, x.dtype):
            return route
        path = "fused" if route.compressed else "fused_uncompressed"
        plain = isinstance(self.codec, NoCodec) and x.dtype in COMPRESSIBLE
        if route.algorithm == "hierarchical" or not (route.compressed or plain):
            return route
        reason = self._peers.why_not(path, x.device, x.dtype)
        if reason and self.fused == "require":
            raise CommError(f"{self._journal.who}: got fused='require' for {collective}, which cannot run: {reason}")
        return route if reason else Route(path, route.algorithm)

    @without_autograd
    def all_reduce(self, x: Tensor, *, name: str = "") -> Tensor:
        """Sum of x over the ranks: same shape and dtype."""
        return self._all_reduce(self._links, [x], name)

    @without_autograd
    def reduce_scatter(self, x: Tensor, dim: int = 0, *, name: str = "") -> Tensor:
        """This rank's shard along `dim` of the sum of x. Raises ValueError unless N divides x.shape[dim]."""
        shape = self._shard_shape(x, dim)
        if dim % x.dim() == 0 and x.is_contiguous():
            block = x.view(self.world_size, x.numel() // self.world_size)
        else:
            block = rows(x.tensor_split(self.world_size, dim))
        return self._reduce_scatter(self._links, [block], name, [x])[0].view(shape)

    @without_autograd
    def all_gather(self, x: Tensor, dim: int = 0, *, name: str = "") -> Tensor:
        """All ranks' x (of one shape) concatenated along `dim` in rank order; own part decoded too."""
        self._check_dim(x, dim)
        parts = self._all_gather(self._links, [x], [x.numel()] * self.world_size, name)
        return self._join(parts, x.shape, dim)

    @without_autograd
    def all_to_all(self, x: Tensor, dim: int = 0, *, name: str = "") -> Tensor:
        """Shard r of x along `dim` goes to rank r; what comes in is concatenated along `dim` in rank order."""
        shards = self._shards(x, dim)
        return self._join(self._all_to_all(self._links, [shards], name, [x])[0], shards[0].shape, dim)

    @without_autograd
    def reduce_scatter_chunks(self, chunks: Sequence[Tensor], *, name: str = "") -> Tensor:
        """chunks[r]: what goes into rank r's sum, of any size, the same on all ranks -> own sum, shape of own chunk."""
        self._check_shards(chunks)
        return self._reduce_scatter(self._links, [chunks], name, chunks)[0].view(chunks[self.rank].shape)

    @without_autograd
    def all_gather_chunks(self, chunk: Tensor, sizes: Sequence[int], *, name: str = "") -> list[Tensor]:
        """Flat tensors [sizes[r]] of every rank r; chunk has sizes[rank] elements, `sizes` is the same on all ranks."""
        self._check_chunks(sizes, "sizes")
        if chunk.numel() != sizes[self.rank]:
            raise ValueError(
                f"got a chunk of {chunk.numel()} elements; need sizes[{self.rank}] = {sizes[self.rank]}; "
                "because the peers decode that many"
            )
        return list(self._all_gather(self._links, [chunk], list(sizes), name))

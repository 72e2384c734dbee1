"""Collectives of ranks that are all in this process: what N ranks would compute, bit for bit, without processes.

The algorithms and the arithmetic are those of the real ones (taco/comm/algorithms.py); only the exchange differs: a
transposition of lists instead of a transfer. So one process can measure what compression does at any world size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taco.comm.collectives import Collectives, Observer
from taco.comm.crossover import Crossover
from taco.comm.layout import SLICE_BYTES
from taco.comm.links import Journal, Links, Transfer, Waiting
from taco.comm.meter import Meter
from taco.comm.numerics import mix_seed
from taco.comm.plan import Plan
from taco.comm.select import check_selection
from taco.config import Codec


class VirtualLink(Waiting):
    """`Link` and `Plain` of ranks in this process. groups: sets of ranks that exchange among themselves.

    order: of the uncompressed sums, one of taco.config.VIRTUAL_SUMS.
    """

    def __init__(self, groups: Sequence[Sequence[int]], journal: Journal, order: str = "once") -> None:
        self._order = order
        self._groups = groups
        self._count = sum(map(len, groups))
        self._journal = journal

    def start_all_to_all(self, stacks: Sequence[Tensor], *, overlap: bool = False) -> Transfer:
        out: list[Tensor] = [stacks[0]] * self._count
        for group in self._groups:
            for place, rank in enumerate(group):
                out[rank] = torch.stack([stacks[source][place] for source in group])
        self._journal.sent += (len(self._groups[0]) - 1) * stacks[0][0].nbytes
        return lambda: out

    def start_all_gather(self, packets: Sequence[Tensor], *, overlap: bool = False) -> Transfer:
        out: list[Tensor] = [packets[0]] * self._count
        for group in self._groups:
            gathered = torch.stack([packets[source] for source in group])
            for rank in group:
                out[rank] = gathered
        self._journal.sent += (len(self._groups[0]) - 1) * packets[0].nbytes
        return lambda: out

    def all_reduce(self, parts: Sequence[Tensor]) -> Tensor:
        return _sum(parts, self._order)

    def reduce_scatter(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        return [_sum([stack[rank] for stack in stacks], self._order) for rank in range(self._count)]


def _sum(parts: Sequence[Tensor], order: str) -> Tensor:
    """'once': in rank order, narrow floats in fp32, cast once. 'reversed': the same from the last rank on. 'stepwise':
    cast after each addition. A backend may do any of these."""
    dtype = parts[0].dtype
    if order == "reversed":
        parts = parts[::-1]
    wide = torch.promote_types(dtype, torch.float32) if dtype.is_floating_point and order != "stepwise" else dtype
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total += part
    return total.to(dtype)


class VirtualCommunicator(Collectives):
    """`Communicator` of `ways` virtual ranks: parts[r] is what rank r would pass. Options as `Communicator`.

    plain_sum: the order of uncompressed sums, one of taco.config.VIRTUAL_SUMS.

    Compressed results are bit-identical to those of real ranks. Uncompressed sums run in the order of `plain_sum`; a
    backend chooses its own: equal for two ranks, within rounding for more. The meter counts what one rank would send.
    """

    def __init__(
        self,
        ways: int,
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
        crossover: Crossover | None = None,
        plain_sum: str = "once",
    ) -> None:
        super().__init__(
            0, ways, codec, role=role, meter=meter, min_bytes=min_bytes, algorithm=algorithm,
            node_size=node_size, observer=observer, seed=seed, slice_bytes=slice_bytes, crossover=crossover,
        )  # fmt: skip
        check_selection("off", crossover, codec, ways, self._node_size(), algorithm)
        ranks = tuple(range(ways))
        world = VirtualLink([ranks], self._journal, plain_sum)
        self._links = Links(ranks, world, world)
        if size := self._node_size():
            intra = VirtualLink([ranks[start : start + size] for start in ranks[::size]], self._journal)
            inter = VirtualLink([ranks[place::size] for place in range(size)], self._journal)
            self._links = Links(ranks, world, world, size, intra, inter)

    @torch.no_grad()
    def all_reduce(self, parts: Sequence[Tensor], *, name: str = "") -> Tensor:
        """Sum of the parts (one shape and dtype)."""
        self._check_parts(parts)
        return self._all_reduce(self._links, parts, name)

    def _compressed_all_reduce(self, plan: Plan, links: Links, parts: Sequence[Tensor], seed: int) -> Tensor:
        even = parts[0].numel() % (self.world_size * self._coder.align) == 0
        if plan.algorithm == "two_shot" and plan.slices == 1 and even:
            return self._two_shot(parts, seed)
        return super()._compressed_all_reduce(plan, links, parts, seed)

    def _two_shot(self, parts: Sequence[Tensor], seed: int) -> Tensor:
        """taco.comm.algorithms' two-shot all-reduce in three calls of the codec, for equal chunks.

        Chunks are put in the order of their owners before they are encoded: [owner, source, numel].
        """
        ways, coder, dtype = self.world_size, self._coder, parts[0].dtype
        chunks = torch.stack([part.reshape(ways, -1) for part in parts], 1)
        seeds = [mix_seed(mix_seed(seed, source), owner) for owner in range(ways) for source in range(ways)]
        numel = chunks.shape[2]
        packets = coder.encode_rows(chunks.view(ways * ways, numel), seeds).view(ways, ways, -1)
        own = [mix_seed(seed, owner, 1) for owner in range(ways)]
        sums = coder.decode_sum_encode_rows(packets, numel, dtype, own)
        self._journal.sent += 2 * (ways - 1) * sums[0].nbytes
        return coder.decode_rows(sums, numel, dtype).reshape(-1)

    @torch.no_grad()
    def reduce_scatter(self, parts: Sequence[Tensor], dim: int = 0, *, name: str = "") -> list[Tensor]:
        """The shard along `dim` of the sum, for every rank."""
        self._check_parts(parts)
        shards = [self._shards(part, dim) for part in parts]
        sums = self._reduce_scatter(self._links, shards, name, parts)
        return [total.view(shards[0][0].shape) for total in sums]

    @torch.no_grad()
    def all_gather(self, parts: Sequence[Tensor], dim: int = 0, *, name: str = "") -> Tensor:
        """The parts as every rank receives them, concatenated along `dim`."""
        self._check_parts(parts)
        self._check_dim(parts[0], dim)
        rows = self._all_gather(self._links, parts, [part.numel() for part in parts], name)
        return self._join(rows, parts[0].shape, dim)

    @torch.no_grad()
    def all_to_all(self, parts: Sequence[Tensor], dim: int = 0, *, name: str = "") -> list[Tensor]:
        """What every rank receives when shard r of each part goes to rank r."""
        self._check_parts(parts)
        shards = [self._shards(part, dim) for part in parts]
        received = self._all_to_all(self._links, shards, name, parts)
        return [self._join(rows, shards[0][0].shape, dim) for rows in received]

    @torch.no_grad()
    def reduce_scatter_chunks(self, parts: Sequence[Sequence[Tensor]], *, name: str = "") -> list[Tensor]:
        """parts[i][r]: what rank i gives to rank r's sum -> every rank's sum, in the shape of its chunk."""
        self._check_chunks(parts, "parts")
        for chunks in parts:
            self._check_shards(chunks)
        sums = self._reduce_scatter(self._links, parts, name, [chunk for chunks in parts for chunk in chunks])
        return [total.view(chunk.shape) for total, chunk in zip(sums, parts[0], strict=True)]

    @torch.no_grad()
    def all_gather_chunks(self, parts: Sequence[Tensor], *, name: str = "") -> list[Tensor]:
        """The parts, of any sizes, as every rank receives them, flat."""
        self._check_chunks(parts, "parts")
        return list(self._all_gather(self._links, parts, [part.numel() for part in parts], name))

    def _check_parts(self, parts: Sequence[Tensor]) -> None:
        self._check_chunks(parts, "parts")
        forms = {(part.shape, part.dtype) for part in parts}
        if len(forms) > 1:
            raise ValueError(
                f"got parts of {sorted(map(str, forms))}; need one shape and dtype; because ranks agree on it"
            )

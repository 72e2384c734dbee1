"""The ways to run a collective that are timed beside each other.

arm             codecs          what runs
nccl, gloo      none            torch.distributed into preallocated memory; all_reduce in place
nccl-eager      none            the same called from Python, where `nccl` is a CUDA graph: not always slower
symm-two-shot   none            torch's kernel over symmetric memory, in place
symm-one-shot   none            the same, each rank reading everything
symm-copies     none            torch's reduce-scatter and all-gather of the copy engines, through symmetric memory
fused           none and each   `taco.comm.fused`: our kernel over symmetric memory
unfused         each            `taco.comm.Communicator`: our packets, carried by the backend
chosen          with a table    `taco.comm.Communicator` on the path that a table of `taco crossover` chooses
others          their own       a file of peers

symm-* and fused need GPUs that address each other: they run over nvlink only. None of these kernels uses NVLink
multicast; NCCL may, unless NCCL_NVLS_ENABLE=0 forbids it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _symmetric_memory as symmetric_memory

from taco.bench.collective_case import bytes_of, dtype_of, numel_of, sets_of
from taco.bench.collective_peers import CollectivePeer
from taco.bench.collective_timer import Ready
from taco.bench.peer_files import failure
from taco.codec import coder, cuda
from taco.comm import Communicator, fused, wire_bytes
from taco.comm.crossover import COMPRESSED, FUSED_PATHS, Crossover
from taco.comm.links import all_gather_single, reduce_scatter_single
from taco.config import require
from taco.recipes import CollectiveCase, CollectiveGrid, preset
from taco.recipes.collective import CHOSEN, FUSED, UNFUSED
from taco.train.launch import World

SHOTS = {"two-shot": "two_shot_all_reduce_", "one-shot": "one_shot_all_reduce"}
"""Arms symm-* of all-reduce and their operators."""
COPIES = {"reduce_scatter": "_low_contention_reduce_scatter", "all_gather": "_low_contention_all_gather"}
"""The operators of symm-copies, which torch.compile uses for tensor parallelism."""
MEMORIES = {"nvlink": "peer", "host": "host"}
"""Transport: the memory in which the ranks of our kernels meet."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to run a case. make: inputs [sets, numel] of this rank, which it must not change -> the calls on them.

    graph: whether a CUDA graph may hold its calls. wire_bytes: what one rank sends in a call, None where only its
    author knows. source, note: a peer's. path: asked after the calls, which code ran, where an arm has several.
    """

    name: str
    codec: str
    make: Callable[[Tensor], Ready]
    graph: bool
    wire_bytes: int | None
    source: str = ""
    note: str = ""
    path: Callable[[], str] | None = None


class Arms:
    """Every arm of a grid on these ranks; communicators and symmetric memory are made once, when first needed.

    l2_bytes: as in `sets_of`. tables: of crossovers, by codec. All methods and the arms that they return are collective
    over the default group.
    """

    def __init__(
        self,
        grid: CollectiveGrid,
        here: World,
        l2_bytes: int,
        peers: list[CollectivePeer],
        tables: Mapping[str, Crossover],
    ) -> None:
        self.grid, self.here, self.peers, self.tables, self._l2_bytes = grid, here, peers, tables, l2_bytes
        self._communicators: dict[tuple[str, str], Communicator] = {}
        self._fused: dict[str, fused.Fused | str] = {}
        self._symmetric: Tensor | None = None

    def of(self, case: CollectiveCase) -> list[Arm]:
        """The arms of a case, in the order of their rows."""
        nvlink = self.grid.transport == "nvlink"
        arms = [self._backend(case)]
        if nvlink:
            arms.append(replace(arms[0], name=f"{arms[0].name}-eager", graph=False))
        if nvlink and case.collective == "all_reduce":
            arms += [self._symm(case, shots) for shots in SHOTS]
        elif nvlink:
            arms.append(self._copies(case))
        if self.grid.transport in MEMORIES:
            arms += [self._our_kernel(case, codec) for codec in ("none", *case.codecs)]
        arms += [self._packets(case, codec) for codec in case.codecs]
        arms += [self._chosen(case, codec) for codec in self._measured(case)]
        return arms + [self._peer(case, peer) for peer in self.peers if peer.collective == case.collective]

    def _sent(self, case: CollectiveCase, codec: str) -> int:
        numel, size = numel_of(case, self.here.size), self.here.size
        return wire_bytes(case.collective, "auto", numel, dtype_of(case), size, preset(codec))

    # --- uncompressed --------------------------------------------------------------------------------

    def _backend(self, case: CollectiveCase) -> Arm:
        size = self.here.size

        def in_place(xs: Tensor) -> Ready:
            buffers = xs.clone()
            return Ready(calls=tuple(partial(_reduced, x) for x in buffers), reset=lambda: buffers.copy_(xs))

        def into(xs: Tensor) -> Ready:
            gathers = case.collective == "all_gather"
            outs = xs.new_empty(len(xs), xs.shape[1] * size if gathers else xs.shape[1] // size)
            run = _gathered if gathers else _scattered
            return Ready(calls=tuple(partial(run, out, x) for out, x in zip(outs, xs, strict=True)))

        return Arm(
            name=self.here.backend,
            codec="none",
            make=in_place if case.collective == "all_reduce" else into,
            graph=True,
            wire_bytes=self._sent(case, "none"),
        )

    def _symm(self, case: CollectiveCase, shots: str) -> Arm:
        def make(xs: Tensor) -> Ready:
            buffers = self._shared(xs, list(SHOTS).index(shots))
            op, group = getattr(torch.ops.symm_mem, SHOTS[shots]), dist.group.WORLD.group_name
            return Ready(calls=tuple(partial(op, x, "sum", group) for x in buffers), reset=lambda: buffers.copy_(xs))

        # the one-shot kernel reads the whole tensor of every peer
        nbytes = bytes_of(case, self.here.size)
        sent = self._sent(case, "none") if shots == "two-shot" else (self.here.size - 1) * nbytes
        return Arm(name=f"symm-{shots}", codec="none", make=make, graph=True, wire_bytes=sent)

    def _copies(self, case: CollectiveCase) -> Arm:
        def make(xs: Tensor) -> Ready:
            op, group = getattr(torch.ops.symm_mem, COPIES[case.collective]), dist.group.WORLD.group_name
            options = ("sum", group) if case.collective == "reduce_scatter" else (group,)
            return Ready(calls=tuple(partial(_waited, op, x, *options) for x in xs))

        return Arm(name="symm-copies", codec="none", make=make, graph=True, wire_bytes=self._sent(case, "none"))

    def _shared(self, xs: Tensor, place: int) -> Tensor:
        """Symmetric memory in the shape of xs, the same on all ranks; one piece serves every case.

        place: an arm's own part of it, whose results the other's operands must not overwrite.
        """
        if self._symmetric is None:
            cases = [c for c in self.grid.cases() if c.collective == "all_reduce"]
            size = self.here.size
            most = max(sets_of(c, size, self._l2_bytes) * numel_of(c, size) for c in cases)
            made = symmetric_memory.empty(len(SHOTS), most, dtype=xs.dtype, device=xs.device)
            symmetric_memory.rendezvous(made, dist.group.WORLD)
            self._symmetric = made
        return self._symmetric[place, : xs.numel()].view(xs.shape)

    # --- ours ----------------------------------------------------------------------------------------

    def _our_kernel(self, case: CollectiveCase, codec: str) -> Arm:
        def make(xs: Tensor) -> Ready:
            ours = self._kernels(codec)
            run = getattr(ours, case.collective)
            return Ready(calls=tuple(partial(run, x) for x in xs), check=ours.check)

        return Arm(name=FUSED, codec=codec, make=make, graph=True, wire_bytes=self._written(case, codec))

    def _written(self, case: CollectiveCase, codec: str) -> int | None:
        """Bytes that our kernels write for others; None where there are no kernels."""
        if not cuda.available():
            return None
        numel, size = numel_of(case, self.here.size), self.here.size
        return fused.sent_bytes(case.collective, "auto", numel, dtype_of(case), size, preset(codec))

    def _kernels(self, codec: str) -> fused.Fused:
        """The kernels of a codec. Raises `ConfigError` where they cannot run: what failed once is not tried again."""
        if codec not in self._fused:
            config, device = preset(codec), self.here.device
            reason = fused.why_not(config, dist.group.WORLD, device)
            try:
                memory = MEMORIES[self.grid.transport]
                self._fused[codec] = reason or fused.Fused(dist.group.WORLD, config, device=device, memory=memory)
            except Exception as error:  # its reason is told at every size
                self._fused[codec] = failure(error)
        found = self._fused[codec]
        refused = isinstance(found, str)
        require(not refused, f"codec {codec} in the fused kernels", "ranks and a codec that they serve", str(found))
        return found

    def _packets(self, case: CollectiveCase, codec: str) -> Arm:
        made = self._through(UNFUSED, case, codec, None)
        sent = self._sent(case, codec)
        return Arm(
            name=UNFUSED, codec=codec, make=made, graph=True, wire_bytes=sent, path=lambda: coder(preset(codec)).path
        )

    def _measured(self, case: CollectiveCase) -> list[str]:
        """The codecs of a case whose table has times of its collective."""
        return [codec for codec in case.codecs if codec in self.tables and case.collective in self.tables[codec].times]

    def _chosen(self, case: CollectiveCase, codec: str) -> Arm:
        table = self.tables[codec]
        path = table.choose(case.collective, bytes_of(case, self.here.size))
        sends = self._written if path in FUSED_PATHS else self._sent
        sent = sends(case, codec if path in COMPRESSED else "none")
        made = self._through(CHOSEN, case, codec, table)
        return Arm(name=CHOSEN, codec=codec, make=made, graph=True, wire_bytes=sent, path=lambda: path)

    def _through(
        self, arm: str, case: CollectiveCase, codec: str, table: Crossover | None
    ) -> Callable[[Tensor], Ready]:
        """Calls of a communicator, one an arm and codec."""

        def make(xs: Tensor) -> Ready:
            if (arm, codec) not in self._communicators:
                comm = Communicator(None, preset(codec), role="measure", crossover=table)
                self._communicators[arm, codec] = comm
            comm = self._communicators[arm, codec]
            run = getattr(comm, case.collective)
            return Ready(calls=tuple(partial(run, x) for x in xs), check=comm.check)

        return make

    # --- others --------------------------------------------------------------------------------------

    def _peer(self, case: CollectiveCase, peer: CollectivePeer) -> Arm:
        def make(xs: Tensor) -> Ready:
            buffers = xs.clone()
            run = peer.make(dist.group.WORLD, xs.shape[1], self.here.device)
            return Ready(calls=tuple(partial(run, x) for x in buffers), reset=lambda: buffers.copy_(xs))

        return Arm(
            name=peer.name, codec=peer.codec, make=make, graph=True, wire_bytes=None, source=peer.source, note=peer.note
        )


def _waited(op: Callable[..., Tensor], *args: object) -> Tensor:
    """The result of an operator that works on a stream of its own."""
    return torch.ops._c10d_functional.wait_tensor(op(*args))


def _reduced(x: Tensor) -> Tensor:
    dist.all_reduce(x)
    return x


def _scattered(out: Tensor, x: Tensor) -> Tensor:
    reduce_scatter_single(out, x)
    return out


def _gathered(out: Tensor, x: Tensor) -> Tensor:
    all_gather_single(out, x)
    return out

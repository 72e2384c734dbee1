"""All-reduce, reduce-scatter and all-gather in one kernel each, on GPUs that address a common memory.

Encode, transfer, sum and decode of all chunks of a message overlap within one launch (kernels/README.md has the
protocol). Results equal those of the unfused algorithms (taco/comm/algorithms.py) bit for bit and are the same on every
rank. NVLink multicast is not used.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor, library

from taco.codec import cuda
from taco.codec.base import check_dtype
from taco.comm import workspace
from taco.comm.errors import CommError, check_group
from taco.comm.numerics import mix_seed
from taco.comm.order import Order, order_of
from taco.comm.plan import without_autograd
from taco.comm.workspace import Workspace
from taco.config import NONE, Codec, GroupCodec, NoCodec

ONE_SHOT, TWO_SHOT, REDUCE_SCATTER, ALL_GATHER = range(4)
NAMES = ("all_reduce", "all_reduce", "reduce_scatter", "all_gather")
ALGORITHMS = ("auto", "one_shot", "two_shot")
PHASES = ("the exchange of packets", "the gathering of sums")
MEMORIES = ("auto", "peer", "host")
# of a kernel that exchanges through the host's memory: more do not speed up PCIe, and their polls take of it
HOST_SMS = 32
MIN_CAPABILITY = (9, 0)
MAX_SEEDS = 32


@lru_cache(maxsize=1)
def load() -> None:
    """Load the library and register the operator's fake, once a process. Raises `BuildError` as `cuda.load`."""
    cuda.load()
    library.register_fake("taco::collective", _fake_collective)


def _fake_collective(
    x: Tensor, token: Tensor, numbers: Sequence[int], codec: int, kind: int, seeds: Sequence[int]
) -> Tensor:
    numel, world_size = x.numel(), numbers[workspace.WORLD_SIZE]
    if kind == ALL_GATHER:
        return x.new_empty((world_size, numel))
    return x.new_empty((numel // world_size if kind == REDUCE_SCATTER else numel,))


def why_not(codec: Codec, group: dist.ProcessGroup | None, device: torch.device) -> str:
    """Why `Fused` cannot run there, or ''. Asks no other rank: `Fused` itself finds memory that they cannot share."""
    if not isinstance(codec, (GroupCodec, NoCodec)):
        return f"codec {codec.name!r} has no fused kernel (group codecs and none have)"
    if isinstance(codec, GroupCodec) and (reason := cuda.why_not(codec)):
        return f"codec {codec.name!r} has no fused kernel: {reason}"
    if device.type != "cuda":
        return f"tensors are on {device.type}, not on a GPU"
    if not torch.cuda.is_available():
        return "torch finds no CUDA GPU"
    if torch.cuda.get_device_capability(device) < MIN_CAPABILITY:
        return "the GPU is older than compute capability 9.0, whose bulk copies the kernels use"
    if not cuda.available():
        return "the kernel library is not built (`taco kernels build`)"
    if not dist.is_initialized() or dist.get_world_size(group) < 2:
        return "there are no peers"
    if getattr(codec, "rounding", "") == "stochastic" and dist.get_world_size(group) >= MAX_SEEDS:
        return f"stochastic rounding has kernels for fewer than {MAX_SEEDS} ranks"
    return ""


@lru_cache(maxsize=1024)
def sent_bytes(
    collective: str, algorithm: str, numel: int, dtype: torch.dtype, world_size: int, codec: GroupCodec | NoCodec
) -> int:
    """Bytes that the kernels of one rank write for its peers: whole packets of chunks, trailers and padding included.

    collective, numel: as of `wire_bytes` of taco/comm/meter.py. algorithm: 'one_shot', 'two_shot' or 'auto', as of
    `Fused.all_reduce`. Raises `BuildError` without the library.
    """
    load()
    packet = torch.ops.taco.collective_packet(dtype, workspace.number_of(codec))
    group, vectors = (codec.group, 8 if codec.group > 1024 else 4) if codec != NONE else (128, 8 // dtype.itemsize)
    shares, exchanges = 1, 1
    if collective != "all_reduce" or algorithm == "two_shot" or (algorithm == "auto" and world_size > 2):
        shares, exchanges = world_size, 2 if collective == "all_reduce" else 1
    part = -(-numel // shares)
    if exchanges == 2:
        part = -(-part // group) * group
    chunks = -(-part // (workspace.WARPS * workspace.TILE * vectors))
    return exchanges * (world_size - 1) * chunks * packet


class Fused:
    """The fused collectives of this rank in `group`. The constructor is collective over it.

    codec: a group codec, or `NoCodec` for sums of the elements themselves. sms: SMs that a kernel occupies at most, 0:
    all, or 32 through the host's memory; a GEMM runs beside a small number. timeout: seconds after which a wait for a
    peer ends in a `CommError`. memory: where ranks exchange packets: 'peer', their GPUs' (NVLink); 'host', the host's
    (PCIe); 'auto': the former where all GPUs address each other. `memory` says which it is.

    All ranks make the same calls in the same order. Calls on several streams of a GPU follow each other in the order of
    issue, those of other `Fused` on it too: kernels that wait for each other's ranks must not keep each other out.
    Calls may be captured in CUDA graphs and replayed in any number, in the same order on all ranks; the constructor may
    not. Other kernels that wait for peers, as NCCL's, may run beside them on another stream only where `sms` leaves
    them room. The user orders replays and calls on other streams, and keeps the object as long as its calls and graphs
    run.
    Raises ValueError for what `why_not` names or where ranks differ, CommError where they cannot share memory.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        codec: Codec,
        *,
        device: torch.device | None = None,
        sms: int = 0,
        timeout: float = 60.0,
        memory: str = "auto",
    ) -> None:
        check_group(group)
        if device is None or (device.type == "cuda" and device.index is None):
            device = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0)
        if reason := why_not(codec, group, device):
            raise ValueError(f"got fused collectives where {reason}; need an unfused path; because no kernel can run")
        if torch.cuda.is_current_stream_capturing():
            raise CommError(
                "got the first fused collective inside the capture of a CUDA graph; need one call before it; because "
                "ranks exchange the addresses of their memory then"
            )
        group = dist.group.WORLD if group is None else group
        mine = torch.cuda.get_device_properties(device).multi_processor_count
        if sms < 0 or sms > mine:
            raise ValueError(f"got sms={sms}; need 0 (all) to {mine}; because this GPU has that many")
        if memory not in MEMORIES:
            raise ValueError(f"got memory={memory!r}; need one of {', '.join(MEMORIES)}; because those can be shared")
        agreed = _agree(group, {"codec": codec, "sms": sms or mine, "asked": sms, "memory": memory, **_place(device)})
        self.memory = agreed["memory"]
        sms = agreed["sms"] if sms or self.memory == "peer" else min(agreed["sms"], HOST_SMS)
        meet = workspace.rendezvous if self.memory == "peer" else workspace.rendezvous_on_host
        try:
            space = meet(group, device, sms, workspace.slot_bytes(codec), timeout)
        except RuntimeError as error:
            raise CommError(
                f"got {dist.get_world_size(group)} ranks that cannot share memory of the {self.memory}; need GPUs with "
                f"peer access, or one host; because kernels write what others read; the reason: {error}"
            ) from error
        self._setup(codec, device, space, order_of(device))

    @classmethod
    def of(cls, codec: Codec, space: Workspace) -> Fused:
        """With a workspace of one's own, one `Fused` a workspace. Its calls are in order among themselves only."""
        self = cls.__new__(cls)
        self.memory = "peer" if space.buffer.is_cuda else "host"
        self._setup(codec, space.addresses.device, space, Order(space.addresses.device))
        return self

    def _setup(self, codec: Codec, device: torch.device, space: Workspace, order: Order) -> None:
        load()
        self.codec, self.device, self.workspace = codec, device, space
        self.rank, self.world_size = space.rank, space.world_size
        self._numbers, self._number = space.numbers, workspace.number_of(codec)
        self._stochastic = getattr(codec, "rounding", "") == "stochastic"
        self._told = space.report.numpy()
        self._order = order

    def __repr__(self) -> str:
        where = f"rank {self.rank} of {self.world_size}, {self.workspace.sms} SMs, memory of the {self.memory}"
        return f"Fused(codec={self.codec.name}, {where})"

    @without_autograd
    def all_reduce(self, x: Tensor, *, algorithm: str = "auto", seed: int = 0) -> Tensor:
        """Sum of x over the ranks: same shape and dtype. algorithm: 'one_shot', 'two_shot' or 'auto': one-shot for two
        ranks."""
        if algorithm not in ALGORITHMS:
            raise ValueError(f"got algorithm={algorithm!r}; need one of {', '.join(ALGORITHMS)}; because those exist")
        if algorithm == "one_shot" or (algorithm == "auto" and self.world_size == 2):
            total = self._run(ONE_SHOT, x, [mix_seed(seed, self.rank)] if self._stochastic else [])
        else:
            seeds = [*self._each(seed), mix_seed(seed, self.rank, 1)] if self._stochastic else []
            total = self._run(TWO_SHOT, x, seeds)
        return total if x.dim() == 1 else total.view(x.shape)

    @without_autograd
    def reduce_scatter(self, x: Tensor, *, seed: int = 0) -> Tensor:
        """x [N * size], flattened -> this rank's part [size] of the sum. Raises ValueError unless N divides it."""
        if x.numel() % self.world_size:
            raise ValueError(
                f"got {x.numel()} elements; need a multiple of {self.world_size}; because ranks get equal parts"
            )
        return self._run(REDUCE_SCATTER, x, self._each(seed) if self._stochastic else [])

    @without_autograd
    def all_gather(self, x: Tensor, *, seed: int = 0) -> Tensor:
        """x [numel], flattened, of one size on all ranks -> [N, numel]; the own part is decoded too."""
        return self._run(ALL_GATHER, x, [mix_seed(mix_seed(seed, self.rank), 0)] if self._stochastic else [])

    def sent_bytes(self, collective: str, algorithm: str, numel: int, dtype: torch.dtype) -> int:
        """Bytes that this rank writes for others in one call, see the function of this name."""
        return sent_bytes(collective, algorithm, numel, dtype, self.world_size, self.codec)

    def check(self) -> None:
        """Raise `CommError` if a call on the GPU has timed out: what it did not receive in time, and later, is NaN."""
        if self._told[0]:
            _, peer, phase, call, kind = self._told.tolist()
            raise CommError(
                f"rank {self.rank} of {self.world_size}: {NAMES[kind]}, call {call + 1}, failed in {PHASES[phase]}: "
                f"rank {peer} sent nothing for {self.workspace.timeout:g} s; results since are NaN"
            )

    def _each(self, seed: int) -> list[int]:
        mine = mix_seed(seed, self.rank)
        return [mix_seed(mine, part) for part in range(self.world_size)]

    def _run(self, kind: int, x: Tensor, seeds: Sequence[int]) -> Tensor:
        """seeds: of the packets, none where they are not stochastic."""
        check_dtype(x.dtype, "a tensor")
        if x.device != self.device:
            raise ValueError(f"got a tensor on {x.device}; need {self.device}; because its kernels share memory")
        if self._told[0]:
            self.check()
        self._order.follow()
        token = self.workspace.token
        result = torch.ops.taco.collective(x.contiguous(), token, self._numbers, self._number, kind, seeds)
        self._order.passed()
        return result


def _place(device: torch.device) -> dict:
    return {"host": socket.gethostname(), "device": device.index, "gpus": torch.cuda.device_count()}


def _agree(group: dist.ProcessGroup, mine: dict) -> dict:
    """What all ranks have, with the fewest SMs of any and the memory that they share.

    Raises ValueError where codecs, `sms` or `memory` differ.
    """
    all_of: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(all_of, mine, group=group)
    for rank, other in enumerate(all_of):
        for name in ("codec", "asked", "memory"):
            if other[name] != mine[name]:
                raise ValueError(
                    f"got {name} {mine[name]} here, {other[name]} on rank {rank}; need one; because they run one kernel"
                )
    blocked: list = [None] * len(all_of)
    dist.all_gather_object(blocked, _blocked(all_of, mine), group=group)
    memory = mine["memory"] if mine["memory"] != "auto" else ("host" if any(blocked) else "peer")
    return {"sms": min(each["sms"] for each in all_of), "memory": memory}


def _blocked(all_of: Sequence[dict], mine: dict) -> bool:
    """Whether this GPU is known not to address another's memory."""
    devices = [each["device"] for each in all_of]
    if len({each["host"] for each in all_of}) > 1 or len(set(devices)) < len(devices) or max(devices) >= mine["gpus"]:
        return False  # each rank sees GPUs of its own: torch's rendezvous finds out
    return not all(torch.cuda.can_device_access_peer(mine["device"], d) for d in devices if d != mine["device"])

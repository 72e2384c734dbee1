"""Memory that all GPUs of a group address: where fused collectives exchange packets.

It is that of the GPUs (torch symmetric memory), each rank's part on its own; or, where they do not address each other,
memory of the host that all ranks share, pinned, which every GPU reads and writes over PCIe.

Layout: kernels/mesh.cuh. With W ranks, P = 4 pipelines an SM and `slot` bytes for a packet of 4096 elements (8192 for
groups of 2048), a workspace has

    2 phases * P * 4 slots * (W - 1) * slot bytes

whatever the size of the messages: 2 GPUs of 132 SMs and INT8 take 21 MiB.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor

from taco.codec import cuda, wire
from taco.config import Codec, GroupCodec, NoCodec

# as in kernels/mesh.cuh
HEADER, PHASES, SLOTS, PIPES = 32, 2, 4, 4
REPORT = 5
WORLD_SIZE = 4  # of `Workspace.numbers`
WARPS, TILE = 4, 256
TRAILER = 32  # bytes
REPEATS = 2  # of the state: how many tiles have been read again
# between two looks at packets: those of the host's memory are read over PCIe
PAUSE_NS, HOST_PAUSE_NS = 32, 500
SHARED = Path("/dev/shm")  # a file system in memory, which processes of one host share


def slot_bytes(codec: Codec) -> int:
    """Bytes that hold the packet of a chunk, for tensors of any dtype."""
    if not isinstance(codec, GroupCodec):
        return _padded(WARPS * TILE * 8 + TRAILER)
    vectors = 8 if codec.group > 1024 else 4
    return _padded(WARPS * (TILE * vectors * wire.PAYLOAD_BITS[codec.payload] // 8 + 256) + TRAILER)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 128) * 128


def nbytes(world_size: int, sms: int, slot: int) -> int:
    """Bytes of a workspace for kernels on at most `sms` SMs."""
    pipelines = PIPES * sms
    return PHASES * pipelines * SLOTS * (world_size - 1) * slot


@dataclass(frozen=True)
class Workspace:
    """One rank's part. buffer: uint8, on its GPU or of the host. addresses: int64 [world_size] on the GPU, of every
    rank's buffer. state: int32 [HEADER + pipelines] on the GPU: what kernels keep from call to call.

    token: int32 [1], which the operator says it changes: calls keep their order in a traced program, which may copy
    what is changed, as no workspace may be. report: int64 [REPORT] of pinned host memory, where a kernel says who did
    not arrive. keep: what the memory of the peers lives as long as.
    """

    buffer: Tensor
    addresses: Tensor
    state: Tensor
    token: Tensor
    report: Tensor
    rank: int
    world_size: int
    sms: int
    slot: int
    timeout: float
    keep: object = None

    @property
    def numbers(self) -> list[int]:
        """As kernels/binding_collective.cpp reads it."""
        return [
            *(self.addresses.data_ptr(), self.state.data_ptr(), self.report.data_ptr(), self.rank, self.world_size),
            *(PIPES * self.sms, self.slot, PAUSE_NS if self.buffer.is_cuda else HOST_PAUSE_NS),
            *(int(self.timeout * 1e9), self.sms, self.buffer.numel()),
        ]


def _private(device: torch.device, sms: int) -> tuple[Tensor, Tensor, Tensor]:
    """state, token and report."""
    state = torch.zeros(HEADER + PIPES * sms, dtype=torch.int32, device=device)
    return state, torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(REPORT, dtype=torch.int64).pin_memory()


def rendezvous(group: dist.ProcessGroup, device: torch.device, sms: int, slot: int, timeout: float) -> Workspace:
    """A workspace in torch symmetric memory. Collective over the group. Raises `RuntimeError` where there is none."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    buffer = symmetric.empty(nbytes(size, sms, slot), dtype=torch.uint8, device=device)
    handle = symmetric.rendezvous(buffer, group=group)
    buffer.zero_()
    torch.cuda.current_stream(device).synchronize()
    # nobody may write into a workspace before it is zero
    dist.barrier(group, device_ids=[device.index])
    addresses = torch.tensor(list(handle.buffer_ptrs), dtype=torch.int64, device=device)
    return Workspace(buffer, addresses, *_private(device, sms), rank, size, sms, slot, timeout, handle)


def rendezvous_on_host(
    group: dist.ProcessGroup, device: torch.device, sms: int, slot: int, timeout: float
) -> Workspace:
    """A workspace in pinned memory that the processes of one host share. Collective over the group.

    Raises `RuntimeError` on every rank where one cannot map it: another host, or too little of /dev/shm.
    """
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    each = -(-nbytes(size, sms, slot) // mmap.PAGESIZE) * mmap.PAGESIZE
    named: list = [None]
    if rank == 0:
        named = [_shared_file(each * size)]
    dist.broadcast_object_list(named, group=group, group_src=0)
    [name] = named
    mapped, failure = None, name if isinstance(name, OSError) else None
    if failure is None:
        try:
            mapped = _mapped(SHARED / name, each * size)
        except (OSError, RuntimeError) as error:
            failure = error
    failures: list = [None] * size
    # all have it open, or one has failed: the name can go
    dist.all_gather_object(failures, failure and f"rank {rank}: {failure}", group=group)
    if rank == 0 and not isinstance(name, OSError):
        (SHARED / name).unlink(missing_ok=True)
    if failed := [text for text in failures if text]:
        raise RuntimeError(f"ranks cannot share {each * size} bytes of {SHARED}: {'; '.join(failed)}")
    addresses = torch.tensor([mapped.data_ptr() + each * r for r in range(size)], dtype=torch.int64, device=device)
    buffer = mapped[each * rank : each * rank + nbytes(size, sms, slot)]
    return Workspace(buffer, addresses, *_private(device, sms), rank, size, sms, slot, timeout, mapped)


def _shared_file(size: int) -> str | OSError:
    """The name of a new file of zeroes in `SHARED`, or why there is none."""
    try:
        descriptor, path = tempfile.mkstemp(prefix="taco-", dir=SHARED)
    except OSError as error:
        return error
    try:
        os.posix_fallocate(descriptor, 0, size)  # fails here, and not at the first access, where room is short
    except OSError as error:
        Path(path).unlink()
        return error
    finally:
        os.close(descriptor)
    return Path(path).name


def _mapped(path: Path, size: int) -> Tensor:
    """A file as uint8 [size] that this process's GPU addresses as the CPU does."""
    with path.open("r+b") as file:
        memory = torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(int(runtime.cudaHostRegister(memory.data_ptr(), size, 0)))
    weakref.finalize(memory, runtime.cudaHostUnregister, memory.data_ptr()).atexit = False
    return memory


def local(world_size: int, device: torch.device, sms: int, slot: int, timeout: float) -> Sequence[Workspace]:
    """Workspaces of ranks that share one GPU, for tests: each runs on a stream of its own, at most sms SMs of it."""
    buffers = [torch.zeros(nbytes(world_size, sms, slot), dtype=torch.uint8, device=device) for _ in range(world_size)]
    addresses = torch.tensor([b.data_ptr() for b in buffers], dtype=torch.int64, device=device)
    return [
        Workspace(buffer, addresses, *_private(device, sms), rank, world_size, sms, slot, timeout, buffers)
        for rank, buffer in enumerate(buffers)
    ]


def number_of(codec: Codec) -> int:
    """The codec as torch.ops.taco.collective takes it: 0 for none. Raises `ValueError` for one without a kernel."""
    if isinstance(codec, NoCodec):
        return 0
    if isinstance(codec, GroupCodec):
        return cuda.number(codec)
    raise ValueError(f"got codec {codec.name!r}; need a group codec or none; because others have no fused collectives")

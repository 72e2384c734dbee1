"""torch's own all-reduce over symmetric memory: uncompressed, between GPUs that address each other. No multicast."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import torch.nn.functional as F
from torch import Tensor

from taco.comm.errors import CommError
from taco.comm.order import order_of
from taco.comm.pending import capturing

DTYPES = (torch.float32, torch.bfloat16)  # those that its kernels add
_ALIGN = 16


def why_not(group: dist.ProcessGroup | None, device: torch.device, dtype: torch.dtype) -> str:
    """Why `SymmetricReduce` cannot run between the devices of the group; '' where it can. Collective."""
    here = {"host": socket.gethostname(), "device": device.index if device.type == "cuda" else None}
    everyone: list = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, here, group=group)
    if dtype not in DTYPES:
        return f"got {dtype}; need float32 or bfloat16; because torch's symmetric all-reduce adds those"
    if any(there["device"] is None for there in everyone):
        return f"got a {device.type} tensor; need CUDA tensors on every rank; because kernels exchange them"
    if len({there["host"] for there in everyone}) > 1:
        return "got ranks on several hosts; need one host; because GPUs address each other within it"
    peers = {there["device"] for there in everyone}
    if len(peers) < len(everyone) or max(peers) >= torch.cuda.device_count():
        return f"got devices {sorted(peers)}; need one for each rank, all visible to each; because peers read them"
    blocked = [p for p in peers if p != device.index and not torch.cuda.can_device_access_peer(device, p)]
    if blocked:
        return f"got no peer access to devices {blocked}; need it; because peers read each other's memory"
    return ""


class SymmetricReduce:
    """All-reduce over `group`. Every call is collective; the first ones of each size also allocate.

    torch's kernels wait for a peer without end: where one has died, the caller's own timeout must find out.
    """

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self._name = (group or dist.group.WORLD).group_name
        self._device = device
        self._buffer: Tensor | None = None
        self._outgrown: list[Tensor] = []  # graphs that were captured with them may still run

    def all_reduce(self, x: Tensor, *, two_shot: bool) -> Tensor:
        """Sum of x (fp32 or bf16) over the ranks in its dtype, added in rank order: same shape, the same bits on all.

        two_shot: each rank adds a share and hands it to the others; else each adds everything. Raises `CommError`
        where the buffer would have to grow inside a CUDA graph capture.
        """
        order_of(self._device).follow()
        flat = x.contiguous().view(-1)
        padded = -(-flat.nbytes // _ALIGN) * _ALIGN // flat.itemsize
        buffer = self._of_size(padded * flat.itemsize).view(flat.dtype)[:padded]
        if two_shot:
            buffer[: len(flat)].copy_(flat)
            torch.ops.symm_mem.two_shot_all_reduce_(buffer, "sum", self._name)
            total = buffer[: len(flat)].clone()
            order_of(self._device).passed()
            return total.view(x.shape)
        if len(flat) < padded:
            flat = F.pad(flat, (0, padded - len(flat)))
        elif flat.data_ptr() % _ALIGN:
            flat = flat.clone()
        total = torch.ops.symm_mem.one_shot_all_reduce_copy(buffer, flat, "sum", self._name)
        order_of(self._device).passed()
        return total[: x.numel()].view(x.shape)

    def _of_size(self, nbytes: int) -> Tensor:
        """A symmetric uint8 buffer of at least `nbytes`; the first, or a larger one, is made by all ranks together."""
        if self._buffer is None or len(self._buffer) < nbytes:
            if capturing():
                raise CommError(
                    f"got a first all-reduce of {nbytes} bytes inside a CUDA graph capture; need one of this size "
                    "before it; because symmetric memory is allocated by all ranks together"
                )
            torch.cuda.synchronize(self._device)  # peers may read the old buffer until all have come here
            size = 1 << max(nbytes - 1, _ALIGN - 1).bit_length()
            buffer = symmetric_memory.empty(size, dtype=torch.uint8, device=self._device)
            symmetric_memory.rendezvous(buffer, self._name)
            if self._buffer is not None:
                self._outgrown.append(self._buffer)
            self._buffer = buffer
        return self._buffer

"""Ranks of fused collectives that share one GPU, each with its own workspace and stream; what they must get."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from taco.codec import cuda
from taco.comm import VirtualCommunicator, workspace
from taco.comm.fused import MIN_CAPABILITY, Fused
from taco.config import Codec, GroupCodec
from taco.recipes import preset

# kernels of all ranks wait for each other, so none may queue behind another rank's; before CUDA starts
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

ALL_REDUCES = ("one_shot", "two_shot")
COLLECTIVES = (*ALL_REDUCES, "reduce_scatter", "all_gather")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
PRESETS = tuple(
    preset(name)
    for name in (
        *("none", "taco", "taco-e5m2", "int8", "int6", "int4", "fp8", "mxfp8"),
        *("sdp4bit-gradient", "sdp4bit-weight"),
    )
)
# groups and scales that no preset has: in the lanes of a part, a half and all of a warp
OWN = (
    GroupCodec(name="int8-64", group=64, rotation="hadamard", scale="fp32", adaptive_scale=True),
    GroupCodec(name="int8-32", group=32, rotation="hadamard", rotation_size=16, scale="fp32", adaptive_scale=True),
    GroupCodec(name="int6-512", payload="int6", group=512, rotation="hadamard", scale="fp32"),
    GroupCodec(name="e4m3-1024", payload="e4m3", group=1024, rotation="hadamard", adaptive_scale=True),
    GroupCodec(name="int4-1024", payload="int4", group=1024, rotation="hadamard", rotation_size=32, scale="e8m0"),
    GroupCodec(name="int6-2048", payload="int6", group=2048, rotation="signed", adaptive_scale=True),
    GroupCodec(name="e5m2-2048", payload="e5m2", group=2048, rotation="hadamard", scale="fp32"),
)
one_gpu = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build"),
]
_LEFT_FREE = 12  # SMs for what else runs
_STREAMS = 32  # that torch has of one priority

T = TypeVar("T")


class Ranks:
    """`Fused` of `world_size` ranks on the current GPU.

    A kernel waits for its peers, on an SM a block: the SMs of all ranks must exist at once (sms: of each rank, 0: a
    few), and between the calls of one collective the host must not wait. streams: one a rank.
    """

    def __init__(
        self,
        world_size: int,
        codec: Codec,
        *,
        sms: int = 0,
        timeout: float = 5.0,
        streams: Sequence[torch.cuda.Stream] = (),
    ) -> None:
        if torch.cuda.get_device_capability() < MIN_CAPABILITY:
            pytest.skip("needs a GPU of compute capability 9.0")
        self.codec, self.device = codec, torch.device("cuda", torch.cuda.current_device())
        room = (torch.cuda.get_device_properties(self.device).multi_processor_count - _LEFT_FREE) // world_size
        sms = sms or min(8, room)
        if sms > room:
            pytest.skip(f"needs a GPU with {world_size * sms + _LEFT_FREE} SMs")
        spaces = workspace.local(world_size, self.device, sms, workspace.slot_bytes(codec), timeout)
        self.fused = [Fused.of(codec, space) for space in spaces]
        self.streams = list(streams) or [torch.cuda.Stream(priority=-(r // _STREAMS)) for r in range(world_size)]
        torch.cuda._sleep(1)  # a kernel's first launch may wait for others

    def issue(self, call: Callable[[Fused, int], T]) -> list[T]:
        """call(fused, rank) on the stream of every rank; their results, on which nobody has waited."""
        results = []
        for rank, (fused, stream) in enumerate(zip(self.fused, self.streams, strict=True)):
            with torch.cuda.stream(stream):
                results.append(call(fused, rank))
        return results

    def finish(self) -> None:
        """Wait for all that was issued. Raises `CommError` where a rank has waited in vain."""
        torch.cuda.synchronize(self.device)
        for fused in self.fused:
            fused.check()

    def each(self, call: Callable[[Fused, int], T]) -> list[T]:
        """`issue` when inputs are there, and `finish`."""
        torch.cuda.synchronize(self.device)
        results = self.issue(call)
        self.finish()
        return results

    def run(self, collective: str, parts: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
        """Results of the ranks for parts[r] of rank r."""
        return self.each(lambda fused, rank: collect(fused, collective, parts[rank], seed))

    def wrong(self, collective: str, parts: Sequence[Tensor], what: str = "") -> list[str]:
        """Where results are not the bits of virtual ranks; [] where all are."""
        got = self.run(collective, parts)
        label = f"{self.codec.name} {collective} {list(parts[0].shape)} {parts[0].dtype} {what}"
        return differences(got, expected(self.codec, collective, parts), label)


def collect(fused: Fused, collective: str, x: Tensor, seed: int = 0) -> Tensor:
    """One of `COLLECTIVES` of one rank."""
    if collective in ALL_REDUCES:
        return fused.all_reduce(x, algorithm=collective, seed=seed)
    return getattr(fused, collective)(x, seed=seed)


def expected(codec: Codec, collective: str, parts: Sequence[Tensor], seed: int = 0) -> list[Tensor]:
    """What each rank gets for parts[r] of rank r, from virtual ranks, whose seed is `seed`."""
    flat, algorithm = [part.reshape(-1) for part in parts], collective if collective in ALL_REDUCES else "auto"
    comm = VirtualCommunicator(len(parts), codec, role="dp_weight", algorithm=algorithm, seed=seed)
    if collective == "reduce_scatter":
        return comm.reduce_scatter(flat)
    if collective == "all_gather":
        return [comm.all_gather(flat).view(len(flat), flat[0].numel())] * len(parts)
    return [comm.all_reduce(flat).view(parts[0].shape)] * len(parts)


def inputs(world_size: int, numel: int, dtype: torch.dtype, *, seed: int = 0, scale: float = 1.0) -> list[Tensor]:
    """A part of [numel] for every rank, noise with outliers, on the current GPU: the same on every GPU."""
    generator = torch.Generator().manual_seed(1000 * seed + world_size)
    parts = torch.randn(world_size, numel, generator=generator) * scale
    parts[:, ::97] *= 30.0
    return [part.to(dtype).cuda() for part in parts]


def shared_out(parts: Sequence[Tensor], collective: str) -> list[Tensor]:
    """The parts, of as many elements as the collective takes."""
    if collective != "reduce_scatter":
        return list(parts)
    return [part[: part.numel() // len(parts) * len(parts)] for part in parts]


def difference(got: Tensor, want: Tensor) -> str:
    """'' where bits are equal, NaN to NaN; else what is not."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"got {got.dtype} {list(got.shape)}, need {want.dtype} {list(want.shape)}"
    nan = want.isnan()
    if not torch.equal(got.isnan(), nan):
        return f"{(got.isnan() != nan).sum().item()} of {want.numel()} are NaN where they must not be, or the reverse"
    word = torch.int16 if want.element_size() == 2 else torch.int32
    wrong = (got.masked_fill(nan, 0.0).view(word) != want.masked_fill(nan, 0.0).view(word)).view(-1)
    if not wrong.any():
        return ""
    first = wrong.nonzero()[0].item()
    return (
        f"{wrong.sum().item()} of {want.numel()} differ, first at {first}: "
        f"got {got.reshape(-1)[first].item()}, need {want.reshape(-1)[first].item()}"
    )


def differences(got: Sequence[Tensor], want: Sequence[Tensor], what: str) -> list[str]:
    """`difference` of every rank that has one."""
    texts = [difference(g, w) for g, w in zip(got, want, strict=True)]
    return [f"{what} rank {rank}: {text}" for rank, text in enumerate(texts) if text]

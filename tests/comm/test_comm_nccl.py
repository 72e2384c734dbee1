"""Compressed collectives over NCCL: the kernels and the wire give the bits of virtual ranks on one GPU."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from taco.comm import Communicator, VirtualCommunicator
from taco.recipes import preset

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
]

CODECS = ("taco", "taco-e5m2", "int8", "int6", "int4", "fp8", "sdp4bit-gradient", "tahquant", "flash-int4")
SIZES = (1, 127, 4096, 100_003)


def _part(rank: int, numel: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * numel + rank)
    return torch.randn(numel, generator=generator).to(dtype)


def _compare(rank: int, world_size: int, codec: str, numel: int, dtype: torch.dtype, algorithm: str) -> list[str]:
    where = torch.device("cuda", rank)
    real = Communicator(None, preset(codec), role="tp_forward", algorithm=algorithm)
    virtual = VirtualCommunicator(world_size, preset(codec), role="tp_forward", algorithm=algorithm)
    parts = [_part(r, numel, dtype).to(where) for r in range(world_size)]
    shards = [p[: numel // world_size * world_size] for p in parts]
    pairs = {
        "all_reduce": (real.all_reduce(parts[rank]), virtual.all_reduce(parts)),
        "reduce_scatter": (real.reduce_scatter(shards[rank]), virtual.reduce_scatter(shards)[rank]),
        "all_gather": (real.all_gather(parts[rank]), virtual.all_gather(parts)),
    }
    label = f"{codec} {numel} {dtype} {algorithm}"
    return [f"{label}: {name}" for name, (got, want) in pairs.items() if not torch.equal(got, want)]


def _neighbours(rank: int, codec: str) -> list[str]:
    comm = Communicator(None, preset(codec), role="pp_forward")
    sent = _part(7, 5000, torch.bfloat16).cuda()
    if rank == 0:
        comm.send(sent, 1)
        return []
    got = comm.recv(sent.shape, sent.dtype, 0, sent.device)
    want = comm.unpack(comm.packet(sent), sent.shape, sent.dtype)
    return [] if torch.equal(got, want) else [f"{codec}: send/recv"]


def _rank(rank: int, world_size: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    wrong: list[str] = []
    for codec in CODECS:
        wrong += _neighbours(rank, codec)
        for numel in SIZES:
            for dtype in (torch.bfloat16, torch.float32):
                for algorithm in ("one_shot", "two_shot"):
                    wrong += _compare(rank, world_size, codec, numel, dtype, algorithm)
    Path(f"{folder}/wrong-{rank}").write_text("\n".join(wrong))
    dist.destroy_process_group()


def test_two_gpus_give_the_bits_of_virtual_ranks(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_rank, args=(2, str(tmp_path)), nprocs=2)
    assert [(tmp_path / f"wrong-{rank}").read_text() for rank in range(2)] == ["", ""]

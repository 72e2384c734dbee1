"""Fused collectives of two processes on two GPUs: over NVLink, in process groups, and when a rank is lost."""

from __future__ import annotations

import json
import traceback
from datetime import timedelta
from pathlib import Path

import fused_gpus
import pytest
import torch
import torch.distributed as dist

from taco.codec import cuda
from taco.comm.fused import MIN_CAPABILITY

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(280),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs"),
    pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build"),
]
WORLD = 2


def _rank(rank: int, folder: str, names: list[str]) -> None:
    """Run the checks called `names` and write what each found; one that raises is the last."""
    torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", WORLD)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60),
        device_id=torch.device("cuda", rank),
    )  # fmt: skip
    found = {}
    for name in names:
        try:
            found[name] = getattr(fused_gpus, name)(rank, WORLD)
            torch.cuda.synchronize()
        except Exception:
            found[name] = [traceback.format_exc()]
            break
    Path(f"{folder}/found-{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def _found(folder: Path, names: list[str]) -> list[dict[str, list[str]]]:
    """What each rank found wrong in each check, in processes of their own."""
    if torch.cuda.get_device_capability() < MIN_CAPABILITY or not torch.cuda.can_device_access_peer(0, 1):
        pytest.skip("needs GPUs of compute capability 9.0 that address each other's memory")
    torch.multiprocessing.spawn(_rank, args=(str(folder), names), nprocs=WORLD, daemon=True)
    return [json.loads((folder / f"found-{rank}").read_text()) for rank in range(WORLD)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[str]]]:
    """All checks of one pair of processes, which take longer to start than most checks."""
    return _found(tmp_path_factory.mktemp("gpus"), list(fused_gpus.CHECKS))


@pytest.mark.parametrize("name", fused_gpus.CHECKS)
def test_two_gpus(name: str, found: list[dict[str, list[str]]]) -> None:
    assert [each.get(name, ["an earlier check raised"]) for each in found] == [[], []]


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    assert _found(tmp_path, ["lost"]) == [{"lost": []}, {"lost": []}]

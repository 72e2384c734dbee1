"""The harness itself: every way a rank can end is reported, and the pool after it is usable."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from distributed import RankError, run_ranks


def _sum_of_ranks(rank: int, world_size: int, scale: float) -> torch.Tensor:
    x = torch.full((3,), float(rank + 1)) * scale
    dist.all_reduce(x)
    return x


def _pid(rank: int, world_size: int) -> int:
    return os.getpid()


def _raise_on(rank: int, world_size: int, bad: int) -> None:
    if rank == bad:
        raise ValueError(f"broken on purpose on {rank}")


def _exit_on(rank: int, world_size: int, bad: int) -> int:
    if rank == bad:
        os._exit(7)
    return rank


def _sleep_on(rank: int, world_size: int, bad: int) -> None:
    if rank == bad:
        time.sleep(30)


def test_results_come_back_in_rank_order_from_reused_processes() -> None:
    for result in run_ranks(3, _sum_of_ranks, 2.0):
        assert result.tolist() == [12.0] * 3
    first = run_ranks(3, _pid)
    assert len(set(first)) == 3
    assert run_ranks(3, _pid) == first


def test_an_exception_names_its_rank_and_keeps_its_traceback() -> None:
    with pytest.raises(RankError, match=r"(?s)rank 1 of 3: Traceback.*_raise_on.*ValueError: broken on purpose on 1"):
        run_ranks(3, _raise_on, 1)
    assert run_ranks(3, _exit_on, -1) == [0, 1, 2]


def test_a_rank_that_exits_is_an_error_unless_expected() -> None:
    with pytest.raises(RankError, match="rank 2 of 3: exited 7"):
        run_ranks(3, _exit_on, 2)
    assert run_ranks(3, _exit_on, 2, dies=(2,)) == [0, 1, None]


def test_a_silent_rank_times_out() -> None:
    with pytest.raises(RankError, match="rank 0 of 2: no answer in time"):
        run_ranks(2, _sleep_on, 0, timeout=1.0)

"""Collectives that return at once: the same results and errors, in the order of issue."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from comm_cases import STOCHASTIC, equal, gaussian, parts_of
from distributed import run_ranks

from taco.comm import CommError, Communicator, Pending, VirtualCommunicator, pending
from taco.comm.links import Journal
from taco.recipes import preset


def test_one_rank_gets_its_own_tensor_back() -> None:
    comm, [x] = Communicator(None, preset("int8"), role="r"), gaussian(1, 4, 6)
    for result in (comm.all_reduce_async(x), comm.reduce_scatter_async(x, 1), comm.all_gather_async(x, 1)):
        assert isinstance(result, Pending)
        assert torch.equal(result.wait(), x)
        assert result.wait() is result.wait()


def _as_the_others(rank: int, world_size: int) -> None:
    """Seeds of a stochastic codec tell in which order calls ran: they count."""
    seen: list[str] = []
    comm = Communicator(None, STOCHASTIC, role="r", observer=lambda role, name, x: seen.append(name))
    virtual = VirtualCommunicator(world_size, STOCHASTIC, role="r")
    parts = parts_of(world_size, (world_size, 4, 100))
    first = comm.all_reduce_async(parts[rank], name="a")
    second = comm.reduce_scatter_async(parts[rank], name="b")
    third = comm.all_reduce(parts[rank], name="c")
    fourth = comm.all_gather_async(parts[rank], 1, name="d")
    assert seen == ["a", "b", "c", "d"]
    expected = [virtual.all_reduce(parts), virtual.reduce_scatter(parts)[rank], virtual.all_reduce(parts)]
    expected.append(virtual.all_gather(parts, 1))
    for got, want in zip([first.wait(), second.wait(), third, fourth.wait()], expected, strict=True):
        assert equal(got, want)
    assert comm.meter.totals() == virtual.meter.totals()
    assert comm.paths == virtual.paths


@pytest.mark.parametrize("world_size", [2, 3])
def test_results_bytes_and_paths_are_those_of_the_calls_that_wait(world_size: int) -> None:
    run_ranks(world_size, _as_the_others)


def _repeat(comm: Communicator) -> None:
    for _ in range(5):  # a send may still fit into a socket's buffer
        comm.all_reduce_async(torch.ones(1200)).wait()


def _dies(rank: int, world_size: int) -> str:
    comm = Communicator(None, preset("int8"), role="r")
    comm.all_reduce(torch.ones(300))
    if rank == 1:
        os._exit(9)
    with pytest.raises(CommError) as info:
        _repeat(comm)
    return str(info.value)


def test_a_lost_peer_is_a_comm_error() -> None:
    [text, _] = run_ranks(2, _dies, dies=(1,), group_timeout=5.0, timeout=40)
    assert re.match(r"rank 0 of 2, role r: all_reduce, call [2-6], failed in all-gather; the backend said: ", text)


def test_bad_input_is_refused_at_the_call() -> None:
    comm = Communicator(None, preset("int8"), role="r")
    with pytest.raises(ValueError, match="got dim=3"):
        comm.reduce_scatter_async(torch.ones(2), 3)


class _Stream:
    def __init__(self) -> None:
        self.waited_for: list[str] = []

    def wait_event(self, event: str) -> None:
        self.waited_for.append(event)


@pytest.mark.parametrize("captured", [False, True])
def test_calls_follow_the_last_one_unless_a_capture_lies_between(captured: bool, monkeypatch) -> None:
    lane, stream = pending.Lane(Journal(0, 2, "r")), _Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    lane.last = ("event", captured)
    monkeypatch.setattr(pending, "capturing", lambda: not captured)
    lane.join(torch.device("cuda", 0))
    assert stream.waited_for == []
    monkeypatch.setattr(pending, "capturing", lambda: captured)
    lane.join(torch.device("cuda", 0))
    assert stream.waited_for == ["event"]
    lane.waited("another event")
    lane.join(torch.device("cuda", 0))
    assert stream.waited_for == ["event"] * 2
    lane.waited("event")  # those of a capture are over with it
    lane.join(torch.device("cuda", 0))
    assert stream.waited_for == ["event"] * (2 if captured else 3)


# --- on GPUs ----------------------------------------------------------------------------------------


def _overlaps(rank: int, world_size: int, folder: str) -> None:
    torch.cuda.set_device(rank)
    store = dist.FileStore(f"{folder}/store", world_size)
    where = torch.device("cuda", rank)
    dist.init_process_group(
        "nccl", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60), device_id=where
    )
    comm = Communicator(None, preset("int8"), role="r", slice_bytes=1 << 20)
    plain = Communicator(None, preset("int8"), role="r", slice_bytes=0)
    wrong = []
    for numel in (4096, 1 << 21):
        parts = [part.to(where, torch.bfloat16) for part in gaussian(world_size, numel)]
        want = plain.all_reduce(parts[rank])
        for _ in range(20):
            busy = torch.randn(1024, 1024, device=where)
            late = parts[rank] * 1  # made on the current stream just before the call
            started = comm.all_reduce_async(late)
            del late  # its memory must not be handed out while the side stream reads it
            scratch = [torch.full((numel,), float("nan"), dtype=torch.bfloat16, device=where) for _ in range(4)]
            busy = busy @ busy
            after = comm.all_reduce(parts[rank])  # ordered after the first one
            got = started.wait()
            del started
            copy = got.clone()
            del got
            scratch += [torch.full((numel,), float("nan"), dtype=torch.bfloat16, device=where) for _ in range(4)]
            if not (torch.equal(copy, want) and torch.equal(after, want)):
                wrong.append(str(numel))
    Path(f"{folder}/wrong-{rank}").write_text(" ".join(wrong))
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_work_beside_a_collective_changes_neither(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_overlaps, args=(2, str(tmp_path)), nprocs=2)
    assert [(tmp_path / f"wrong-{rank}").read_text() for rank in range(2)] == ["", ""]

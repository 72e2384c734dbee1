"""What ranks do in the tests of collective: each function runs on every rank and returns what that rank saw."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from speed_cases import FakeCuda

from taco.bench import collective_arms, collective_timer
from taco.bench.collective import measure_collective
from taco.bench.collective_case import agreed, identical, inputs, largest, relative_error, wanted
from taco.bench.collective_timer import EventClock, HostClock, Ready, batch, timed, tried
from taco.comm import Communicator
from taco.recipes import COLLECTIVE, CollectiveCase
from taco.train.launch import World

GLOO = COLLECTIVE["gloo"]


def place(rank: int, size: int) -> World:
    return World(rank=rank, size=size, local_rank=rank, local_size=size)


def case(collective: str = "all_reduce", mib: float = 1 / 64) -> CollectiveCase:
    return CollectiveCase(collective=collective, mib=mib, dtype="bfloat16", codecs=("int8",))


def measures(rank: int, size: int, out: Path, peers: Path | None, collectives: tuple[str, ...]) -> None:
    grid = GLOO.narrowed(collectives=collectives, mib=[1 / 64])
    measure_collective(
        "fresh", [], out, {"device": "cpu"}, here=place(rank, size), grid=grid, peers=peers, settings={"NCCL_X": "1"}
    )


def measures_chosen(rank: int, size: int, out: Path, tables: Path) -> None:
    """With a folder of tables."""
    grid = GLOO.narrowed(mib=[1 / 64])
    measure_collective("fresh", [], out, {}, here=place(rank, size), grid=grid, tables=tables)


class Kernels:
    """Stands in for the fused kernels; how it is broken is in its codec's name."""

    def __init__(self, group, codec, *, device=None, sms=0, timeout=60.0, memory="auto") -> None:
        if codec.name == "int6":
            raise RuntimeError("no symmetric memory")
        self.codec, self.rank = codec.name, torch.distributed.get_rank()
        self._comm = Communicator(group, codec, role="stand-in")

    def all_reduce(self, x, *, algorithm="auto", seed=0):
        y = self._comm.all_reduce(x)
        if self.codec == "int4" and self.rank == 1:
            y[0] += 1
        return -y if self.codec == "fp8" else y

    def reduce_scatter(self, x, *, seed=0):
        return self._comm.reduce_scatter(x)

    def all_gather(self, x, *, seed=0):
        return self._comm.all_gather(x).view(self._comm.world_size, -1)

    def check(self) -> None:
        if self.codec == "taco" and self.rank == 1:
            raise RuntimeError("rank 0 did not come in 60 s")


def measures_kernels(rank: int, size: int, out: Path, refusal: str) -> None:
    """The arms of nvlink on CPUs, with a stand-in for our kernels; torch's own have no symmetric memory here."""
    whole = COLLECTIVE["nvlink"].narrowed(mib=[1 / 64])
    grid = replace(whole, least_rounds=2, most_rounds=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective_arms.fused, "Fused", Kernels)
        patch.setattr(collective_arms.fused, "why_not", lambda codec, group, device: refusal)
        measure_collective("fresh", [], out, {}, here=place(rank, size), grid=grid, clock=HostClock())


def operands(rank: int, size: int, collective: str) -> tuple[torch.Tensor, torch.Tensor]:
    here = place(rank, size)
    return inputs(case(collective), here, 3, 2), wanted(case(collective), here, 3)


def agreements(rank: int, size: int) -> dict:
    here, ones = place(rank, size), torch.ones(8)
    broken = ones * (float("nan") if rank == 1 else 1.0)
    return {
        "largest": largest([rank, -rank], here),
        "nobody": agreed("", here),
        "somebody": agreed("no memory" if rank == 1 else "", here),
        "error": relative_error(ones * (1.25 if rank == 1 else 1.0), ones, here),
        "no number": relative_error(broken, ones, here),
        "same": identical(torch.tensor([float("nan"), 1.0]).bfloat16(), here),
        "other": identical(torch.tensor([0.0, -0.0][rank % 2]).bfloat16(), here),
    }


def failures(rank: int, size: int) -> list[str]:
    """Reasons of arms that raise when made and when called, on one rank alone."""
    here = place(rank, size)

    def make():
        if rank == 1:
            raise OSError("no\nkernel")
        return Ready(calls=(lambda: torch.ones(1),))

    def call():
        if rank == 0:
            raise ValueError("no launch")
        return torch.ones(1)

    found = [tried(make, HostClock(), here), tried(lambda: Ready(calls=(call,)), HostClock(), here)]
    assert all(ready is None for ready, _ in found)
    return [reason for _, reason in found]


class OwnClock(HostClock):
    """A clock that calls advance; `us_a_call` of it on this rank."""

    def __init__(self, us: float) -> None:
        self.now, self.us = 0.0, us

    def call(self) -> torch.Tensor:
        self.now += self.us * 1e-6
        return torch.ones(1)

    def mark(self) -> float:
        return self.now


def slowest(rank: int, size: int) -> dict:
    """Two arms of 4 sets, of which the second takes 1 s a call: more than any budget."""
    here, clock = place(rank, size), OwnClock(10.0 * (rank + 1))
    resets = []

    def slow():
        clock.now += 1.0
        return torch.ones(1)

    arms = [Ready(calls=(clock.call,) * 4, reset=lambda: resets.append(clock.now)), Ready(calls=(slow,) * 4)]
    batches = [batch(each, clock, here, graph=True) for each in arms]
    grid = replace(GLOO, least_rounds=5, most_rounds=9, budget_s=0.1)
    fast, slow_ = timed(batches, clock, here, grid)
    return {"fast": fast, "slow": slow_, "resets": len(resets)}


def sets_in_turn(rank: int, size: int) -> list[int]:
    """Which of 6 sets each of three turns of a clock that allows 4 calls a turn uses."""
    used: list[int] = []
    clock = OwnClock(1.0)

    def call(i: int):
        used.append(i)
        clock.now += collective_timer.EAGER_US * 1e-6 / 4.5
        return torch.ones(1)

    made = batch(Ready(calls=tuple(lambda i=i: call(i) for i in range(6))), clock, place(rank, size), graph=True)
    used.clear()
    for _ in range(3):
        made.run()
    return used


def graphs(rank: int, size: int, refuses_on: int | None) -> dict:
    """A graph of two sets beside a call that escapes it, on a stand-in for CUDA that takes 5 us a call."""
    here = place(rank, size)
    with pytest.MonkeyPatch.context() as patch:
        cuda = FakeCuda(patch)
        cuda.refuses = refuses_on == rank
        clock = object.__new__(EventClock)
        clock.device, clock.graphs, clock.l2_bytes = torch.device("cpu"), True, 1
        lost = torch.ones(4)
        arms = [Ready(calls=(cuda.kernel(5, "a"), cuda.kernel(5, "b"))), Ready(calls=(lambda: lost,))]
        batches = [batch(each, clock, here, graph=True) for each in arms]
        eager = batch(arms[0], clock, here, graph=False)
        times = timed(batches, clock, here, replace(GLOO, least_rounds=3, most_rounds=3))
        answers = [float(each.answer().sum()) for each in batches]
        made = list(itertools.islice(reversed(cuda.made), 4))
    return {"timing": times[0], "words": [each.timing for each in (*batches, eager)], "answers": answers, "made": made}


def symmetric(rank: int, size: int) -> list[torch.Tensor]:
    """Results of torch's two kernels over symmetric memory, each made of set 1 after both have had their operands.

    On CPUs plain memory and all-reduces stand in for them.
    """

    def in_place(x, op, group):
        torch.distributed.all_reduce(x)
        return x

    memory = SimpleNamespace(empty=torch.empty, rendezvous=lambda x, group: None)
    operators = SimpleNamespace(
        two_shot_all_reduce_=in_place, one_shot_all_reduce=lambda x, op, group: in_place(x.clone(), op, group)
    )
    here, small = place(rank, size), COLLECTIVE["nvlink"].narrowed(mib=[1 / 64, 1 / 32])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collective_arms, "symmetric_memory", memory)
        patch.setattr(torch.ops, "symm_mem", operators, raising=False)
        arms = collective_arms.Arms(small, here, 0, [], {})
        xs = inputs(case(), here, 0, 2)
        both = [arm.make(xs) for arm in arms.of(case()) if arm.name.startswith("symm-")]
        results = []
        for each in both:
            each.reset()
            results.append(each.calls[1]())
    return results

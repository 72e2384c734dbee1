"""Real ranks over gloo: calls in any order and pace, subgroups, and the seeds of stochastic codecs."""

from __future__ import annotations

import inspect
import time

import torch
import torch.distributed as dist
from comm_cases import STOCHASTIC, digest, equal, parts_of
from distributed import run_ranks

from taco.comm import Communicator, VirtualCommunicator
from taco.recipes import preset

OWN_ORDER = {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}


def _repeated(rank: int, world_size: int, delay: float) -> None:
    comm = Communicator(None, preset("int8"), role="r")
    virtual = VirtualCommunicator(world_size, preset("int8"), role="r")
    for call in range(30):
        parts = [torch.full((257,), 1e-6 * (r + call + 1)) for r in range(world_size)]
        if delay and rank == call % world_size and call < 4:
            time.sleep(delay)
        assert equal(comm.all_reduce(parts[rank]), virtual.all_reduce(parts)), call


def test_back_to_back_calls_and_a_delayed_rank() -> None:
    run_ranks(3, _repeated, 0.0)
    run_ranks(3, _repeated, 0.2)


def _two_groups(rank: int, world_size: int) -> tuple[str, int]:
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = groups[rank % 2]
    comm = Communicator(mine, preset("taco"), role="r")
    assert (comm.rank, comm.world_size) == (rank // 2, 2)
    parts = [torch.randn(500, generator=torch.Generator().manual_seed(10 * (rank % 2) + r)) for r in range(2)]
    calls = 1 + 3 * (rank % 2)  # one group works more often than the other
    for _ in range(calls):
        y = comm.all_reduce(parts[comm.rank])
    assert equal(y, VirtualCommunicator(2, preset("taco"), role="r").all_reduce(parts))
    return digest(y), calls


def test_two_subgroups_work_independently() -> None:
    results = run_ranks(4, _two_groups)
    assert results[0] == results[2]
    assert results[1] == results[3]
    assert results[0] != results[1]


def _hierarchy_in_a_subgroup(rank: int, world_size: int) -> str | None:
    group = dist.new_group([4, 1, 3, 0], **OWN_ORDER)  # older versions of torch sort the ranks
    if rank == 2:
        return None
    comm = Communicator(group, preset("int8"), role="r", node_size=2)
    y = comm.all_reduce(parts_of(4, (700,))[comm.rank])
    assert equal(y, VirtualCommunicator(4, preset("int8"), role="r", node_size=2).all_reduce(parts_of(4, (700,))))
    return digest(y)


def test_hierarchy_inside_a_subgroup_in_its_own_order_without_the_other_ranks() -> None:
    results = run_ranks(5, _hierarchy_in_a_subgroup)
    assert len({r for i, r in enumerate(results) if i != 2}) == 1


def _stochastic_seeds(rank: int, world_size: int) -> None:
    comm = Communicator(None, STOCHASTIC, role="r", seed=1)
    again = Communicator(None, STOCHASTIC, role="r", seed=1)
    other = Communicator(None, STOCHASTIC, role="r", seed=2)
    x = parts_of(world_size, (512,))[rank]
    first = comm.all_reduce(x)
    assert equal(first, again.all_reduce(x))
    assert not equal(first, comm.all_reduce(x))
    assert not equal(first, other.all_reduce(x))


def test_stochastic_rounding_depends_on_seed_and_call_only() -> None:
    run_ranks(2, _stochastic_seeds)

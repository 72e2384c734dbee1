"""Measuring a table: every path that can run, the same table on every rank, and a path that is really slow loses."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from crossover_cases import CPU
from distributed import run_ranks
from fake_kernels import FakeFused, FakeSymmetric, kernels
from torch import Tensor

from taco.comm import Communicator, Crossover, crossover_measure, measure_crossover
from taco.comm.crossover import key_here
from taco.config import NONE, ConfigError, GroupCodec
from taco.recipes import preset

QUICK = {"device": CPU, "dtype": torch.float32, "sizes": (1 << 12, 1 << 14), "repeats": 2}


def _measured(rank: int, world_size: int) -> Crossover:
    said: list[str] = []
    found = measure_crossover(None, preset("int8"), provenance={"rank": str(rank)}, say=said.append, **QUICK)
    assert said[0].startswith("4096 bytes: ")
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_rank_gets_the_same_table(world_size: int) -> None:
    first, *others = run_ranks(world_size, _measured)
    assert all(other == first for other in others)
    assert first.provenance == {"rank": "0"}
    assert first.key == key_here(CPU, "auto", world_size, preset("int8"), torch.float32)
    assert set(first.times) == {"all_reduce", "reduce_scatter", "all_gather"}
    for by_size in first.times.values():
        assert {size: set(times) for size, times in by_size.items()} == {
            size: {"uncompressed", "unfused"} for size in QUICK["sizes"]
        }


def _all_paths(rank: int, world_size: int, transport: str, node_size: int) -> dict[str, set[str]]:
    with kernels():
        found = measure_crossover(
            None, preset("int8"), transport=transport, node_size=node_size, **QUICK | {"sizes": (1 << 12,)}
        )
    return {collective: set(by_size[1 << 12]) for collective, by_size in found.times.items()}


def test_shared_memory_is_measured_where_gpus_have_it() -> None:
    own, fused = {"uncompressed", "unfused"}, {"fused", "fused_uncompressed"}
    [found, _] = run_ranks(2, _all_paths, "auto", 0)
    assert found == {
        "all_reduce": own | fused | {"symmetric", "symmetric_one_shot"},
        "reduce_scatter": own | fused,
        "all_gather": own | fused,
    }
    [found, _] = run_ranks(2, _all_paths, "host", 0)
    assert all(paths == own | fused for paths in found.values())
    [found, _] = run_ranks(2, _all_paths, "tcp", 0)
    assert all(paths == own for paths in found.values())
    found = run_ranks(4, _all_paths, "auto", 2)[0]
    assert all(paths == own for paths in found.values())


def _no_codec(rank: int, world_size: int) -> set[str]:
    with kernels():
        found = measure_crossover(None, NONE, **QUICK | {"sizes": (1 << 12,)})
    return set(found.times["all_gather"][1 << 12])


def test_without_a_codec_only_uncompressed_paths_are_measured() -> None:
    assert run_ranks(2, _no_codec)[0] == {"uncompressed", "fused_uncompressed"}


class _Slow(FakeFused):
    """Kernels that take 20 ms on rank 1."""

    def all_reduce(self, x: Tensor, **options) -> Tensor:
        if dist.get_rank() == 1:
            time.sleep(0.02)
        return super().all_reduce(x, **options)


class _Fast(FakeSymmetric):
    """An all-reduce that does nothing."""

    def all_reduce(self, x: Tensor, *, two_shot: bool) -> Tensor:
        return x


def _uneven(rank: int, world_size: int) -> tuple[float, str]:
    with kernels(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("taco.comm.peers.Fused", _Slow)
        patch.setattr("taco.comm.symmetric.SymmetricReduce", _Fast)
        found = measure_crossover(None, preset("int8"), collectives=("all_reduce",), **QUICK)
    return found.times["all_reduce"][1 << 14]["fused"], found.choose("all_reduce", 1 << 14)


def test_a_time_is_the_slowest_ranks_and_the_fastest_path_is_chosen() -> None:
    for us, chosen in run_ranks(2, _uneven):
        assert us > 15_000
        assert chosen in ("symmetric", "symmetric_one_shot")


def _stops(rank: int, world_size: int) -> tuple[list[int], list[int], list[str]]:
    said: list[str] = []
    codec = GroupCodec(name="mine", group=64)
    short = measure_crossover(None, codec, collectives=("all_gather",), limit_s=0.0, **QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crossover_measure, "_short_of_memory", lambda device, nbytes: float(rank == 1))
        full = measure_crossover(None, codec, collectives=("all_gather",), say=said.append, **QUICK)
    return list(short.times["all_gather"]), list(full.times["all_gather"]), said


def test_all_ranks_stop_together_where_time_or_one_ranks_memory_is_short() -> None:
    for timed, remembered, said in run_ranks(2, _stops):
        assert timed == remembered == [1 << 12]
        assert said[-1] == "stops before 16384 bytes: memory is short"


def _used(rank: int, world_size: int) -> None:
    found = measure_crossover(None, preset("int8"), **QUICK)
    comm = Communicator(None, preset("int8"), role="r", crossover=found)
    comm.all_reduce(torch.ones(1 << 12))
    assert sum(comm.paths.values()) == 1


def test_a_measured_table_serves_a_communicator() -> None:
    run_ranks(2, _used)


def _alone(rank: int, world_size: int) -> str:
    group = dist.new_group([rank], use_local_synchronization=True)
    with pytest.raises(ConfigError) as info:
        measure_crossover(group, preset("int8"), **QUICK)
    return str(info.value)


def test_one_rank_has_nothing_to_measure() -> None:
    assert run_ranks(2, _alone)[1].startswith("got 1 rank; need at least two")


class _Disturbed:
    """A host on which every batch of 100 us takes 1000 for a while: batches 30 to 69 of 132."""

    def __init__(self) -> None:
        self.batches = 0

    def worst(self, value: float) -> float:
        return value

    def largest(self, values: list[float]) -> list[float]:
        return values

    def batch_us(self, call, count: int) -> float:
        self.batches += 1
        return 1000.0 if 30 <= self.batches < 70 else 100.0


def test_a_disturbance_spoils_some_batches_of_a_size_and_not_all() -> None:
    comm = Communicator(None, NONE, role="r")
    host = _Disturbed()
    rounds = crossover_measure._Rounds({"uncompressed": comm}, ("all_reduce",), host, CPU, torch.float32, 1)
    for size in (1 << 12, 1 << 13, 1 << 14) * 43:
        rounds.add(size)
    assert host.batches == 132
    assert max(max(each["uncompressed"]) for each in rounds.samples["all_reduce"].values()) == 1000
    assert {us for by_path in rounds.times()["all_reduce"].values() for us in by_path.values()} == {100.0}

"""Real ranks over gloo: bit-identical to each other and to virtual ranks, and counted as the formula predicts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from comm_cases import STOCHASTIC, codec_of, digest, equal, parts_of
from distributed import run_ranks

from taco.comm import Communicator, Meter, VirtualCommunicator, wire_bytes
from taco.recipes import PRESETS, preset

SHAPES = [(), (1,), (3, 64), (5, 7, 37), (2048,)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


# --- all_reduce: every preset, algorithm and size ---------------------------------------------------


def _all_reduce_cases(world_size: int) -> Iterator[tuple[str, str, int]]:
    for algorithm in ("one_shot", "two_shot"):
        yield from ((name, algorithm, 0) for name in (*PRESETS, STOCHASTIC.name) if name != "none")
    yield from ((name, "auto", 0) for name in ("taco", "int8"))
    for node_size in range(2, world_size):
        if world_size % node_size == 0:
            names = ("taco", "int8", "int4", "sdp4bit-gradient", "fp8-tensor", STOCHASTIC.name)
            yield from ((name, "hierarchical", node_size) for name in names)


def _all_reduce(rank: int, world_size: int) -> dict[str, str]:
    digests = {}
    for name, algorithm, node_size in _all_reduce_cases(world_size):
        options = {"role": "tp_forward", "algorithm": algorithm, "node_size": node_size, "seed": 5}
        codec = codec_of(name)
        comm = Communicator(None, codec, **options)
        virtual = VirtualCommunicator(world_size, codec, **options)
        for i, shape in enumerate(SHAPES):
            parts = parts_of(world_size, shape, DTYPES[i % len(DTYPES)])
            x = parts[rank].clone()
            y = comm.all_reduce(x)
            key = f"{name} {algorithm} {node_size} {shape}"
            assert equal(x, parts[rank]), f"{key}: the input has changed"
            assert (y.shape, y.dtype) == (x.shape, x.dtype), key
            digests[key] = digest(y)
            if rank == 0:  # the others' results are compared through their digests
                assert equal(y, virtual.all_reduce(parts)), f"{key}: virtual ranks give other bits"
        if rank == 0:
            assert comm.meter.totals() == virtual.meter.totals(), f"{name} {algorithm}"
            assert comm.paths == virtual.paths
    return digests


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_reduce_is_bit_identical_on_all_ranks_and_to_virtual_ranks(world_size: int) -> None:
    first, *others = run_ranks(world_size, _all_reduce)
    assert len(first) >= 2 * (len(PRESETS) - 1) * len(SHAPES)
    for other in others:
        assert other == first


def _eight(rank: int, world_size: int) -> list[str]:
    digests = []
    for node_size in (0, 2, 4):
        for name in ("taco", "int8", "sdp4bit-gradient"):
            options = {"role": "tp_forward", "node_size": node_size}
            comm = Communicator(None, preset(name), **options)
            parts = parts_of(world_size, (9, 130))
            y = comm.all_reduce(parts[rank])
            assert comm.paths == {"hierarchical" if node_size else "two_shot": 1}
            if rank == 0:
                assert equal(y, VirtualCommunicator(world_size, preset(name), **options).all_reduce(parts))
            digests.append(digest(y))
    return digests


def test_eight_ranks_flat_and_in_nodes() -> None:
    digests = run_ranks(8, _eight)
    assert all(other == digests[0] for other in digests)


def _odd(rank: int, world_size: int) -> str:
    comm = Communicator(None, preset("int8"), role="tp_forward", algorithm="two_shot")
    parts = parts_of(world_size, (world_size * 128 + 1,), torch.bfloat16)
    y = comm.all_reduce(parts[rank])
    error = (y.float() - sum(p.float() for p in parts)).norm() / sum(p.float() for p in parts).norm()
    assert error < 0.02, error
    return digest(y)


@pytest.mark.parametrize("world_size", [5, 6, 7])
def test_world_sizes_that_are_not_powers_of_two(world_size: int) -> None:
    assert len(set(run_ranks(world_size, _odd))) == 1


# --- the others -------------------------------------------------------------------------------------


def _scatter_gather(rank: int, world_size: int, node_size: int) -> None:
    names = ("taco", "int6", "fp8-cast", "sdp4bit-gradient", "tahquant")
    for name in (*names, STOCHASTIC.name):
        options = {"role": "dp_gradient", "node_size": node_size}
        comm = Communicator(None, codec_of(name), **options)
        virtual = VirtualCommunicator(world_size, codec_of(name), **options)
        for dim in (0, 1, -1):
            shape = [6, 10, 11]
            shape[dim] = 5 * world_size
            parts = parts_of(world_size, tuple(shape))
            strided = parts[rank].transpose(0, 2).contiguous().transpose(0, 2)
            for op in ("reduce_scatter", "all_to_all"):
                expected = getattr(virtual, op)(parts, dim)[rank]
                assert equal(getattr(comm, op)(strided, dim), expected), f"{op} {name} {dim}"
            gathered = comm.all_gather(strided, dim)
            assert equal(gathered, virtual.all_gather(parts, dim)), f"all_gather {name} {dim}"
            assert gathered.shape[dim] == 5 * world_size * world_size
        assert comm.meter.totals() == virtual.meter.totals()


@pytest.mark.parametrize(("world_size", "node_size"), [(2, 0), (3, 0), (4, 0), (4, 2)])
def test_scatter_gather_and_exchange_equal_virtual_ranks_along_any_dim(world_size: int, node_size: int) -> None:
    run_ranks(world_size, _scatter_gather, node_size)


def _chunks(rank: int, world_size: int, name: str, min_bytes: int) -> None:
    options = {"role": "dp_gradient", "min_bytes": min_bytes}
    comm = Communicator(None, preset(name), **options)
    virtual = VirtualCommunicator(world_size, preset(name), **options)
    for sizes in ([300 * (r % 2) + 7 * r for r in range(world_size)], [129] + [0] * (world_size - 1), [0] * world_size):
        whole = parts_of(world_size, (sum(sizes),))
        parts = [part.split(sizes) for part in whole]
        mine = comm.reduce_scatter_chunks(parts[rank])
        expected = virtual.reduce_scatter_chunks(parts)
        same = equal if min_bytes == 0 and name != "none" else torch.allclose
        assert same(mine, expected[rank]), (name, sizes)
        rows = comm.all_gather_chunks(mine, sizes)
        for row, other in zip(rows, virtual.all_gather_chunks(expected), strict=True):
            assert same(row, other), (name, sizes)
    assert comm.meter.totals() == virtual.meter.totals()


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    ("name", "min_bytes"), [("int8", 0), ("taco", 0), ("sdp4bit-weight", 0), ("int8", 1 << 20), ("none", 0)]
)
def test_chunks_of_unequal_size_and_without_elements(world_size: int, name: str, min_bytes: int) -> None:
    run_ranks(world_size, _chunks, name, min_bytes)


# --- bytes ------------------------------------------------------------------------------------------


def _counted(rank: int, world_size: int, names: tuple[str, ...]) -> None:
    for name in names:
        for algorithm, node_size in (("auto", 0), ("one_shot", 0), ("two_shot", 0), ("hierarchical", 2)):
            if algorithm == "hierarchical" and world_size % 4:
                continue
            for numel in (world_size, 1000 * world_size, 1024 * world_size):
                codec, meter = preset(name), Meter()
                comm = Communicator(None, codec, role="r", meter=meter, algorithm=algorithm, node_size=node_size)
                x = torch.ones(numel, dtype=torch.bfloat16)
                shard = x[: numel // world_size]
                for op, argument in (
                    ("all_reduce", x),
                    ("reduce_scatter", x),
                    ("all_gather", shard),
                    ("all_to_all", x),
                ):
                    getattr(comm, op)(argument)
                    form = (numel, x.dtype, world_size)
                    predicted = wire_bytes(op, algorithm, *form, codec, node_size)
                    raw = wire_bytes(op, "uncompressed", *form, codec)
                    expected = {"wire": predicted, "raw": raw, "messages": 1}
                    assert meter.take() == {"r": expected}, f"{op} {name} {algorithm} {numel}"


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_counted_bytes_equal_the_formula(world_size: int) -> None:
    run_ranks(world_size, _counted, tuple(PRESETS))


# --- uncompressed and special values ----------------------------------------------------------------


def _uncompressed(rank: int, world_size: int) -> list[str]:
    digests = []
    comm = Communicator(None, preset("none"), role="r")
    virtual = VirtualCommunicator(world_size, preset("none"), role="r")
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        parts = [p.mul(100).to(dtype) for p in parts_of(world_size, (world_size * 2, 3))]
        x = parts[rank].t().contiguous().t()
        exact = world_size == 2 or not dtype.is_floating_point
        close = {"rtol": 0, "atol": 0} if exact else {"rtol": 2 * torch.finfo(dtype).eps * world_size, "atol": 1e-2}
        torch.testing.assert_close(comm.all_reduce(x), virtual.all_reduce(parts), **close)
        torch.testing.assert_close(comm.reduce_scatter(x), virtual.reduce_scatter(parts)[rank], **close)
        digests.append(digest(comm.all_reduce(x)))
        assert torch.equal(comm.all_gather(x, 1), torch.cat(parts, 1))
        assert torch.equal(comm.all_to_all(x), virtual.all_to_all(parts)[rank])
    assert set(comm.paths) == {"uncompressed"}
    small = Communicator(None, preset("int8"), role="r", min_bytes=4 * 100)
    assert torch.equal(small.all_reduce(torch.ones(99)), torch.full((99,), float(world_size)))
    small.all_reduce(torch.ones(100, dtype=torch.int32))
    assert small.paths == {"uncompressed": 2}
    small.all_reduce(torch.ones(100))
    assert small.paths["uncompressed"] == 2
    return digests


@pytest.mark.parametrize("world_size", [2, 3])
def test_uncompressed_paths(world_size: int) -> None:
    first, *others = run_ranks(world_size, _uncompressed)
    assert all(other == first for other in others)


def _not_finite(rank: int, world_size: int) -> None:
    for name in ("taco", "int8", "int6", "int4", "fp8"):
        for algorithm in ("one_shot", "two_shot"):
            comm = Communicator(None, preset(name), role="r", algorithm=algorithm)
            x = torch.ones(1000)
            if rank == 1:
                x[700] = torch.nan
                x[5] = torch.inf
            y = comm.all_reduce(x)
            assert not y[[5, 700]].isfinite().any(), f"{name} {algorithm}"
            assert y[256:512].isfinite().all(), f"{name} {algorithm}"
            assert torch.equal(comm.all_reduce(torch.zeros(300)), torch.zeros(300)), name


def test_nan_and_inf_survive_and_stay_in_their_group() -> None:
    run_ranks(3, _not_finite)

"""Communicators beside their numerics, in one process: one rank, metering, observers, choice of path, seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from comm_cases import STOCHASTIC, codec_of, equal, gaussian, virtual
from torch import Tensor

from taco.codec import coder, factory, register
from taco.codec.baselines import NoCoder
from taco.comm import Communicator, Meter, VirtualCommunicator
from taco.comm.collectives import Collectives
from taco.comm.numerics import mix_seed
from taco.config import CODEC_CLASSES, VIRTUAL_SUMS, Codec, GroupCodec
from taco.recipes import preset


@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: comm.all_reduce(x),
        lambda comm, x: comm.reduce_scatter(x, 1),
        lambda comm, x: comm.all_gather(x, 1),
        lambda comm, x: comm.all_to_all(x, -1),
        lambda comm, x: comm.reduce_scatter_chunks([x]),
        lambda comm, x: comm.all_gather_chunks(x, [x.numel()])[0].view(x.shape),
    ],
)
def test_one_rank_gets_a_copy_and_sends_nothing(call: Callable[[Communicator, Tensor], Tensor]) -> None:
    comm = Communicator(None, preset("int4"), role="r")
    x = gaussian(1, 3, 7)[0]
    y = call(comm, x)
    assert torch.equal(x, y)
    assert y.data_ptr() != x.data_ptr()
    assert (comm.meter.totals(), comm.paths, comm.rank, comm.world_size) == ({}, {}, 0, 1)


def test_roles_share_a_meter_and_take_empties_it() -> None:
    meter = Meter()
    first = VirtualCommunicator(2, preset("int8"), role="tp_forward", meter=meter)
    second = VirtualCommunicator(2, preset("none"), role="tp_backward", meter=meter)
    x = [torch.ones(256)] * 2
    first.all_reduce(x)
    first.all_reduce(x)
    second.all_reduce(x)
    packet = coder(preset("int8")).nbytes(256, torch.float32)
    assert packet == 256 + 2 * 2 + 12  # elements, two bf16 scales, padding to 16
    assert meter.seconds["tp_forward"] > 0
    assert meter.take() == {
        "tp_forward": {"wire": 2 * packet, "raw": 2 * 1024, "messages": 2},
        "tp_backward": {"wire": 1024, "raw": 1024, "messages": 1},
    }
    assert meter.totals() == {}
    assert not meter.seconds


def test_the_observer_sees_what_is_about_to_be_sent() -> None:
    seen: list[tuple[str, str, Tensor]] = []
    comm = virtual(2, "int8", observer=lambda role, name, x: seen.append((role, name, x)))
    parts = [part.requires_grad_() for part in gaussian(2, 4, 4)]
    y = comm.all_reduce(parts, name="layer0.mlp")
    comm.reduce_scatter(parts, 1, name="scatter")
    assert [(role, name) for role, name, _ in seen] == [("r", "layer0.mlp")] * 2 + [("r", "scatter")] * 2
    assert all(torch.equal(x, part) for (_, _, x), part in zip(seen, parts * 2, strict=True))
    assert not y.requires_grad
    assert not any(x.requires_grad for *_, x in seen)


def test_auto_takes_the_path_that_moves_the_fewest_bytes() -> None:
    for ways, numel, path in ((2, 4096, "one_shot"), (4, 4096, "two_shot"), (4, 100, "one_shot"), (8, 128, "one_shot")):
        comm = virtual(ways, "int8")
        comm.all_reduce([torch.ones(numel)] * ways)
        assert comm.paths == {path: 1}
    comm = virtual(4, "int8", node_size=2)
    comm.all_reduce([torch.ones(4096)] * 4)
    comm.reduce_scatter([torch.ones(4096)] * 4)
    comm.all_gather([torch.ones(4096)] * 4)
    assert comm.paths == {"hierarchical": 2, "direct": 1}
    assert repr(comm) == "VirtualCommunicator(r, codec=int8, auto, 4 ranks)"


def test_an_algorithm_that_is_asked_for_is_not_replaced_by_a_hierarchy() -> None:
    comm = virtual(4, "int8", node_size=2, algorithm="two_shot")
    comm.all_reduce([torch.ones(4096)] * 4)
    assert comm.paths == {"two_shot": 1}


def test_seeds_differ_between_calls_ranks_and_chunks_and_are_reproducible() -> None:
    seeds = {mix_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert mix_seed(1, 2) == mix_seed(1, 2) != mix_seed(2, 1)
    codec = GroupCodec(name="stochastic", rounding="stochastic", payload="int4", group=32)
    mean = torch.stack([virtual(2, codec, seed=s).all_reduce([torch.full((320,), 0.3)] * 2) for s in range(200)]).mean(
        0
    )
    assert mean.mean().item() == pytest.approx(0.6, abs=2e-3)  # unbiased


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_orders_of_uncompressed_sums_by_hand(collective: str) -> None:
    """bf16 has 8 significant bits: 256 + 1 is a tie that rounds to 256 each time, but 1 + 1 + 256 = 258 is held."""
    parts = [torch.full((4, 2), value).bfloat16() for value in (256.0, 1.0, 1.0, 0.0)]
    sums = {}
    for order in VIRTUAL_SUMS:
        total = getattr(virtual(4, "none", plain_sum=order), collective)(parts)
        sums[order] = (total if collective == "all_reduce" else total[1]).unique().tolist()
    assert sums == {"once": [258.0], "reversed": [258.0], "stepwise": [256.0]}


def test_reversed_sums_differ_by_rounding_alone() -> None:
    parts = gaussian(4, 64, 64)
    once, backwards = (virtual(4, "none", plain_sum=order).all_reduce(parts) for order in ("once", "reversed"))
    assert not torch.equal(once, backwards)
    torch.testing.assert_close(once, backwards, rtol=1e-5, atol=1e-6)
    assert torch.equal(backwards, virtual(4, "none").all_reduce(parts[::-1]))


@dataclass(frozen=True, kw_only=True)
class ExactCodec(Codec):
    """The tensor's own bytes, but through the compressed path."""


@pytest.fixture
def exact() -> Iterator[ExactCodec]:
    register(ExactCodec, NoCoder)
    yield ExactCodec(name="exact")
    del factory._CODERS[ExactCodec], CODEC_CLASSES["ExactCodec"]
    coder.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("ways", "path"), [(2, "one_shot"), (4, "two_shot"), (8, "two_shot")])
def test_the_compressed_path_itself_changes_no_bit(exact: ExactCodec, dtype: torch.dtype, ways: int, path: str) -> None:
    """With a codec that loses nothing, what remains is exchange, sum and rounding: those of uncompressed messages."""
    parts = gaussian(ways, 16, 48, dtype=dtype)
    comm = virtual(ways, exact, algorithm=path)
    assert equal(comm.all_reduce(parts), virtual(ways, "none").all_reduce(parts))
    assert comm.paths == {path: 1}


CODECS = ("taco", "int8", "int6", "sdp4bit-gradient", "flash-int4", "fp8-tensor", "tahquant", STOCHASTIC.name)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [64, 63, 4])
def test_all_ranks_at_once_are_the_ranks_one_by_one(codec: str, dtype: torch.dtype, rows: int) -> None:
    """Two-shot: same bits, bytes and counts as from the exchanges that real ranks make; 63 rows are unequal chunks,
    4 a group for each rank."""
    at_once, each = (virtual(4, codec_of(codec), algorithm="two_shot", seed=7, meter=Meter()) for _ in range(2))
    each._compressed_all_reduce = partial(Collectives._compressed_all_reduce, each)
    for scale in (1.0, 1e-3):
        parts = [scale * part for part in gaussian(4, rows, 128, dtype=dtype)]
        parts[1][2, 5] = torch.nan
        assert equal(at_once.all_reduce(parts), each.all_reduce(parts))
    assert at_once.meter.totals() == each.meter.totals()
    assert (at_once.paths, at_once.calls, at_once.messages) == (each.paths, each.calls, each.messages)
    turned = [part.t() for part in parts]
    assert equal(at_once.all_reduce(turned), each.all_reduce(turned))

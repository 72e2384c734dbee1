"""Messages in slices: the bits and bytes of the whole for every codec that is sliced, and transfers that overlap."""

from __future__ import annotations

import pytest
import torch
from comm_cases import STOCHASTIC, codec_of, digest, equal, parts_of, virtual
from distributed import run_ranks
from torch import Tensor

from taco.codec import coder
from taco.comm import Communicator, VirtualCommunicator, algorithms, wire_bytes
from taco.comm.layout import MAX_SLICES, SLICE_BYTES, cut_sizes, slice_count, slice_cuts
from taco.comm.links import Links, Transfer, Waiting
from taco.recipes import PRESETS, preset

WHOLE_ONLY = {"fp8-tensor", "int8-tensor", "tahquant", STOCHASTIC.name}
NAMES = (*PRESETS, STOCHASTIC.name)
SLICED = tuple(name for name in PRESETS if name not in WHOLE_ONLY and name != "none")
NUMEL = 3 * 4 * 2048 * 16 + 5  # some slices of the largest group, and a tail


def test_codecs_whose_packets_depend_on_the_whole_message_are_not_sliced() -> None:
    assert {name for name in NAMES if not coder(codec_of(name)).sliceable} == WHOLE_ONLY
    for name in WHOLE_ONLY:
        assert slice_count(coder(codec_of(name)), 1 << 30, 1 << 10) == 1


def test_the_number_of_slices_follows_the_size() -> None:
    packer = coder(preset("int8"))
    mib = 1 << 20
    expected = {1: 1, 127 * mib: 1, 128 * mib: 2, 256 * mib: 4, 512 * mib: MAX_SLICES, 4096 * mib: MAX_SLICES}
    assert {nbytes: slice_count(packer, nbytes, SLICE_BYTES) for nbytes in expected} == expected
    assert slice_count(packer, 1024 * mib, 0) == 1


@pytest.mark.parametrize("numel", [1, 2047, 2048, 16 * 2048 + 1, NUMEL])
@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLE_ONLY])
def test_cut_anywhere_a_message_has_the_bits_and_bytes_of_the_whole(name: str, numel: int) -> None:
    packer, dtype = coder(preset(name)), torch.bfloat16
    [x] = parts_of(1, (numel,), dtype)
    for slices in (1, 2, 3, 8):
        cuts = slice_cuts(packer, [numel], slices)
        assert len(cuts) <= slices
        assert torch.equal(torch.cat([packer.roundtrip(x[cut]) for cut in cuts]), packer.roundtrip(x))
        assert sum(packer.nbytes(n, dtype) for cut in cuts for n in cut_sizes([numel], cut)) == packer.nbytes(
            numel, dtype
        )


def test_cuts_leave_nothing_out_of_chunks_of_any_size() -> None:
    sizes = [5000, 4096, 0, 17]
    cuts = slice_cuts(coder(preset("int4")), sizes, 4)
    assert [sum(each) for each in zip(*(cut_sizes(sizes, cut) for cut in cuts), strict=True)] == sizes


# --- over real ranks --------------------------------------------------------------------------------


def _results(comm: Communicator, x: Tensor, sizes: list[int]) -> list[Tensor]:
    chunks = list(x.reshape(-1)[: sum(sizes)].split(sizes))
    return [
        comm.all_reduce(x),
        comm.reduce_scatter(x, 1),
        comm.all_gather(x, 1),
        comm.all_gather(x, 0),
        comm.reduce_scatter_chunks(chunks),
        *comm.all_gather_chunks(chunks[comm.rank], sizes),
    ]


def _sliced(rank: int, world_size: int, name: str, algorithm: str, exchange: str) -> list[str]:
    options = {"role": "r", "algorithm": algorithm}
    whole = Communicator(None, codec_of(name), slice_bytes=0, **options)
    comm = Communicator(None, codec_of(name), slice_bytes=1 << 14, exchange=exchange, **options)
    virtual_comm = VirtualCommunicator(world_size, codec_of(name), slice_bytes=1 << 14, **options)
    parts = parts_of(world_size, (11, 1024 * world_size + 256 * world_size), torch.bfloat16)
    sizes = [9000 * (r + 1) % 20000 for r in range(world_size)]
    results = _results(comm, parts[rank].clone(), sizes)
    for i, (mine, other) in enumerate(zip(results, _results(whole, parts[rank], sizes), strict=True)):
        assert equal(mine, other), f"{name} {algorithm} {i}: slices change bits"
    assert equal(results[0], virtual_comm.all_reduce(parts))
    assert equal(results[1], virtual_comm.reduce_scatter(parts, 1)[rank])
    assert equal(results[2], virtual_comm.all_gather(parts, 1))
    assert comm.meter.totals() == whole.meter.totals()
    return [digest(results[0]), digest(results[2])]


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_slices_change_neither_bits_nor_bytes(world_size: int, algorithm: str) -> None:
    for name in (*SLICED, STOCHASTIC.name, "fp8-tensor"):
        first, *others = run_ranks(world_size, _sliced, name, algorithm, "all_gather")
        assert all(other == first for other in others), name


@pytest.mark.parametrize("world_size", [2, 3])
def test_packets_gathered_by_messages_between_pairs_are_the_same(world_size: int) -> None:
    for name in ("int8", "tahquant"):
        for algorithm in ("one_shot", "two_shot"):
            first, *others = run_ranks(world_size, _sliced, name, algorithm, "send_recv")
            assert all(other == first for other in others)


def test_an_unknown_exchange_is_refused() -> None:
    assert run_ranks(2, _unknown_exchange)[0].startswith("got exchange='ring'; need one of all_gather, send_recv")


def _unknown_exchange(rank: int, world_size: int) -> str:
    with pytest.raises(ValueError, match="got exchange") as info:
        Communicator(None, preset("int8"), role="r", exchange="ring")
    return str(info.value)


@pytest.mark.parametrize("ways", [2, 3])
@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_counted_bytes_of_slices_equal_the_formula(ways: int, algorithm: str) -> None:
    for name in SLICED:
        comm = virtual(ways, name, algorithm=algorithm, slice_bytes=1 << 12)
        for numel in (NUMEL, NUMEL - 1):
            even = numel // ways * ways
            parts = [torch.ones(even)] * ways
            for op, given in (
                ("all_reduce", parts),
                ("reduce_scatter", parts),
                ("all_gather", [p[: even // ways] for p in parts]),
            ):
                getattr(comm, op)(given)
                predicted = wire_bytes(op, algorithm, even, torch.float32, ways, preset(name))
                assert comm.meter.take()["r"]["wire"] == predicted, f"{op} {name} {numel}"


# --- order ------------------------------------------------------------------------------------------


class _Recorder(Waiting):
    """A link of one rank that notes when transfers start and end."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.overlaps: list[bool] = []

    def _start(self, kind: str, tensors: list[Tensor], overlap: bool) -> Transfer:
        name = f"{kind}{sum(event.startswith(f'start {kind}') for event in self.events)}"
        self.events.append(f"start {name}")
        self.overlaps.append(overlap)

        def arrive() -> list[Tensor]:
            self.events.append(f"end {name}")
            return tensors

        return arrive

    def start_all_to_all(self, stacks: list[Tensor], *, overlap: bool = False) -> Transfer:
        return self._start("scatter", list(stacks), overlap)

    def start_all_gather(self, packets: list[Tensor], *, overlap: bool = False) -> Transfer:
        return self._start("gather", [torch.stack([p]) for p in packets], overlap)


def _events(path: str, slices: int) -> _Recorder:
    link, x = _Recorder(), torch.ones(3 * 2048)
    total = algorithms.all_reduce(path, Links((0,), link), coder(preset("int8")), [x], 1, 0, slices)
    assert equal(total, coder(preset("int8")).roundtrip(x))
    return link


def test_each_slice_starts_before_the_one_before_is_waited_for() -> None:
    link = _events("one_shot", 3)
    assert link.events == [
        "start gather0", "start gather1", "end gather0", "start gather2", "end gather1", "end gather2",
    ]  # fmt: skip
    assert link.overlaps == [True] * 3


def test_both_transfers_of_a_two_shot_overlap_other_slices() -> None:
    link = _events("two_shot", 3)
    assert link.events == [
        "start scatter0",
        "start scatter1", "end scatter0", "start gather0",
        "start scatter2", "end scatter1", "start gather1", "end gather0",
        "end scatter2", "start gather2", "end gather1",
        "end gather2",
    ]  # fmt: skip


def test_a_whole_message_does_not_overlap() -> None:
    assert _events("two_shot", 1).overlaps == [False] * 2

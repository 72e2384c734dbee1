"""Packets that a rank sees in part: nothing orders what a peer writes, so digests tell what has come."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from fused_ranks import ALL_REDUCES, COLLECTIVES, Ranks, collect, differences, inputs, one_gpu
from torch import Tensor

from taco.comm import CommError, workspace
from taco.recipes import preset

pytestmark = one_gpu

NUMEL = 50_000  # not more turns than slots: no packet replaces another
GARBAGE = 0x5A
PIECE = 32  # bytes: a sector, which arrives at once


def _slots(space: workspace.Workspace, memory: Tensor) -> Tensor:
    """uint8 [slots, bytes] of a workspace's memory."""
    return memory[: workspace.nbytes(space.world_size, space.sms, space.slot)].view(-1, space.slot)


def _start(
    name: str, collective: str, dtype: torch.dtype, timeout: float
) -> tuple[Ranks, Tensor, list[Tensor], Tensor]:
    """New ranks, what rank 1 writes into the workspace of rank 0, the parts, and what rank 0 must get."""
    parts = inputs(2, NUMEL, dtype)
    whole = Ranks(2, preset(name))
    want = whole.run(collective, parts)[0]
    ranks = Ranks(2, preset(name), timeout=timeout)
    return ranks, whole.fused[0].workspace.buffer, parts, want


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["int8", "taco", "int6", "int4", "none"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_comes_after_its_trailer_is_read_again(collective: str, name: str, dtype: torch.dtype) -> None:
    ranks, sent, parts, want = _start(name, collective, dtype, timeout=20.0)
    space = ranks.fused[0].workspace
    slots, whole = _slots(space, space.buffer), _slots(space, sent)
    slots.copy_(whole)
    for slot in range(slots.shape[0]):  # another sector of every slot is missing
        at = PIECE * (7 * slot % 64)
        slots[slot, at : at + PIECE] = GARBAGE
    torch.cuda.synchronize()
    with torch.cuda.stream(ranks.streams[0]):
        got = collect(ranks.fused[0], collective, parts[0])
    time.sleep(0.02)
    assert not ranks.streams[0].query()
    slots.copy_(whole)
    ranks.finish()
    assert differences([got], [want], f"{name} {collective}") == []
    assert space.state[workspace.REPEATS] > 0


def _spikes(seed: int) -> list[Tensor]:
    """Parts of zeroes with one element in every tile, at another place in its group for every seed: after the transform
    tiles of two seeds differ by patterns of signs, which a weak digest adds up to nothing."""
    generator, parts = torch.Generator().manual_seed(seed), torch.zeros(2, NUMEL // 1024 * 1024)
    tiles = parts.view(2, -1, 1024)
    at = torch.randint(128, tiles.shape[:2], generator=generator) + 128 * (torch.arange(tiles.shape[1]) % 8)
    tiles.scatter_(2, at.unsqueeze(2), 1.0)
    return [part.bfloat16().cuda() for part in parts]


@pytest.mark.parametrize(
    "make", [_spikes, lambda seed: inputs(2, NUMEL, torch.bfloat16, seed=seed)], ids=["spikes", "noise"]
)
@pytest.mark.parametrize("name", ["int8", "int4", "taco", "none"])
def test_contents_of_an_earlier_turn_with_the_trailers_of_this_one_are_not_taken(
    name: str, make: Callable[[int], list[Tensor]]
) -> None:
    earlier, now = Ranks(2, preset(name)), Ranks(2, preset(name))
    want = now.run("one_shot", make(2))[0]
    earlier.run("one_shot", make(1))
    ranks = Ranks(2, preset(name), timeout=20.0)
    space, sent = ranks.fused[0].workspace, now.fused[0].workspace.buffer
    slots, whole = _slots(space, space.buffer), _slots(space, sent)
    slots.copy_(_slots(space, earlier.fused[0].workspace.buffer))
    slots[:, -workspace.TRAILER :] = whole[:, -workspace.TRAILER :]
    torch.cuda.synchronize()
    with torch.cuda.stream(ranks.streams[0]):
        got = collect(ranks.fused[0], "one_shot", make(2)[0])
    time.sleep(0.02)
    assert not ranks.streams[0].query()
    slots.copy_(whole)
    ranks.finish()
    assert differences([got], [want], name) == []


@pytest.mark.parametrize("collective", ALL_REDUCES)
def test_a_packet_that_stays_incomplete_names_its_rank(collective: str) -> None:
    ranks, sent, parts, _ = _start("int8", collective, torch.bfloat16, timeout=0.3)
    space = ranks.fused[0].workspace
    slots = _slots(space, space.buffer)
    slots.copy_(_slots(space, sent))
    slots[:, 0] ^= 1  # one bit of every packet
    torch.cuda.synchronize()
    with torch.cuda.stream(ranks.streams[0]):
        got = collect(ranks.fused[0], collective, parts[0])
    torch.cuda.synchronize()
    assert got.isnan().any()
    said = "rank 0 of 2: all_reduce, call 1, failed in the exchange of packets: rank 1 sent"
    with pytest.raises(CommError, match=said):
        ranks.fused[0].check()

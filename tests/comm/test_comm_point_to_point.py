"""Messages between two ranks: the codec's own result on the other side, one packet a message."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from distributed import run_ranks

from taco.codec import coder
from taco.comm import Communicator, Meter, wire_bytes
from taco.recipes import preset

NAMES = ("none", "int8", "taco", "tahquant", "tahquant-backward", "fp8-cast")


def _tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def _send_recv(rank: int, world_size: int) -> None:
    src, dst = 0, world_size - 1
    for name in NAMES:
        meter = Meter()
        comm = Communicator(None, preset(name), role="pp_forward", meter=meter)
        for shape, dtype in (((2, 3, 65), torch.bfloat16), ((1,), torch.float32), ((0, 4), torch.float32)):
            x = _tensor(shape, dtype)
            if rank == src:
                comm.send(x.transpose(0, -1).contiguous().transpose(0, -1), dst, name="h")
                sent = wire_bytes("send", "auto", x.numel(), dtype, world_size, comm.codec)
                raw = x.numel() * x.element_size()
                assert meter.take() == {"pp_forward": {"wire": sent, "raw": raw, "messages": 1}}
            if rank == dst:
                y = comm.recv(shape, dtype, src)
                packer = coder(comm.codec)
                expected = packer.decode(packer.encode(x), x.numel(), dtype).view(shape)
                assert y.dtype == dtype
                assert torch.equal(y, expected), f"{name} {shape}"
                assert meter.totals() == {}


def _ring(rank: int, world_size: int) -> None:
    """Everyone sends to the next and receives from the previous, posted before anyone waits; twice over."""
    comm = Communicator(None, preset("int8"), role="pp_forward", min_bytes=64)
    following, previous = (rank + 1) % world_size, (rank - 1) % world_size
    for numel in (300, 8):
        pending = [comm.irecv((numel,), torch.float32, previous), comm.irecv((numel,), torch.float32, previous)]
        sent = [comm.isend(torch.full((numel,), float(rank + k)), following) for k in (0, 1)]
        assert [p.wait() for p in sent] == [None, None]
        for k, received in enumerate(pending):
            torch.testing.assert_close(received.wait(), torch.full((numel,), float(previous + k)), rtol=0.02, atol=0.02)
            assert received.wait() is not None
    assert comm.paths == {"direct": 2, "uncompressed": 2}


def _batched(rank: int, world_size: int) -> None:
    """A schedule's own P2POps carry the packets."""
    seen: list[tuple] = []
    comm = Communicator(None, preset("int6"), role="pp_forward", observer=lambda *event: seen.append(event))
    x = _tensor((4, 100), torch.float32)
    if rank == 0:
        packet = comm.packet(x, name="stage0")
        ops = [dist.P2POp(dist.isend, packet, 1)]
    else:
        packet = comm.packet_buffer(x.shape, x.dtype)
        ops = [dist.P2POp(dist.irecv, packet, 0)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    y = comm.unpack(packet, x.shape, x.dtype)
    assert (packet.dtype, packet.dim()) == (torch.uint8, 1)
    assert 0 < (y - x).norm() / x.norm() < 0.04
    assert [event[:2] for event in seen] == ([("pp_forward", "stage0")] if rank == 0 else [])


def _in_a_subgroup(rank: int, world_size: int) -> None:
    group = dist.new_group([1, 2])
    if rank:
        comm = Communicator(group, preset("int8"), role="pp_forward")
        if comm.rank == 0:
            comm.send(torch.ones(16), 1)
        else:
            torch.testing.assert_close(comm.recv((16,), torch.float32, 0), torch.ones(16), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_message_arrives_as_the_codec_decodes_it_and_counts_its_packet(world_size: int) -> None:
    run_ranks(world_size, _send_recv)


@pytest.mark.parametrize("world_size", [2, 3])
def test_posted_messages_arrive_in_order(world_size: int) -> None:
    run_ranks(world_size, _ring)


def test_packets_travel_in_a_schedule_of_ones_own() -> None:
    run_ranks(2, _batched)


def test_peers_are_ranks_of_the_group() -> None:
    run_ranks(3, _in_a_subgroup)


@pytest.mark.parametrize("peer", [-1, 0, 1])
def test_a_peer_outside_the_group_is_refused(peer: int) -> None:
    comm = Communicator(None, preset("int8"), role="pp_forward")
    with pytest.raises(ValueError, match=f"got peer {peer} on rank 0 of 1; need another rank"):
        comm.send(torch.ones(3), peer)

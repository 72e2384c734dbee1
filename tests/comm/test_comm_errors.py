"""A dead or silent rank is named by its peers within the timeout; bad input is refused before anything is sent."""

from __future__ import annotations

import os
import re
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from distributed import run_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from taco.comm import CommError, Communicator, VirtualCommunicator, wire_bytes
from taco.comm.fused import Fused
from taco.comm.select import resolve
from taco.recipes import preset


def _catch(comm: Communicator, op: str) -> tuple[str, float]:
    x = torch.ones(1200)
    start = time.monotonic()
    try:
        for _ in range(5):  # a send may still fit into a socket's buffer
            if op == "recv":
                comm.recv((1200,), torch.float32, comm.world_size - 1)
            else:
                getattr(comm, op)(x)
    except CommError as error:
        return str(error), time.monotonic() - start
    return "no error", time.monotonic() - start


def _dies(rank: int, world_size: int, op: str, name: str) -> tuple[str, float]:
    comm = Communicator(None, preset(name), role="tp_forward")
    comm.all_reduce(torch.ones(300))
    if rank == world_size - 1:
        os._exit(9)
    return _catch(comm, op)


@pytest.mark.parametrize(
    ("op", "name", "phase"),
    [
        ("all_reduce", "int8", "all-to-all"),
        ("reduce_scatter", "int8", "all-to-all"),
        ("all_gather", "int8", "all-gather"),
        ("all_reduce", "none", "uncompressed all-reduce"),
        ("reduce_scatter", "none", "uncompressed reduce-scatter"),
        ("recv", "int8", "waiting"),
    ],
)
def test_survivors_say_where_they_lost_a_rank(op: str, name: str, phase: str) -> None:
    results = run_ranks(3, _dies, op, name, dies=(2,), group_timeout=5.0, timeout=40)
    for rank, (text, seconds) in enumerate(results[:2]):
        head = f"rank {rank} of 3, role tp_forward: {op}"
        where = ", call [2-6]," if op != "recv" else " from rank 2, message 0,"
        assert re.match(f"{head}{where} failed in {phase}; the backend said: ", text), text
        assert seconds < 12


def _silent(rank: int, world_size: int) -> str:
    comm = Communicator(None, preset("int8"), role="tp_backward", node_size=2)
    if rank == 3:
        time.sleep(4)
        return "slept"
    return _catch(comm, "all_reduce")[0]


def test_a_silent_rank_ends_its_peers_within_the_groups_timeout() -> None:
    results = run_ranks(4, _silent, dies=(3,), group_timeout=1.5, timeout=30)
    assert results[3] == "slept"
    assert re.match(r"rank 2 of 4, role tp_backward: all_reduce, call 1, failed in intra-node all-to-all", results[2])
    for text in results[:2]:
        assert re.match(r"rank \d of 4, role tp_backward: all_reduce, call 1, failed in int\w+-node all-", text), text


def _outside(rank: int, world_size: int) -> str:
    group = dist.new_group([0])
    if rank == 0:
        return ""
    with pytest.raises(ValueError, match="got a group without this process") as info:
        Communicator(group, preset("int8"), role="r")
    return str(info.value)


def test_a_group_without_this_rank_is_refused() -> None:
    assert run_ranks(2, _outside)[1]


def _meshes_and_dtensors(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    for make in (partial(Communicator, role="r"), Fused):
        with pytest.raises(ValueError, match=r"got a DeviceMesh \('tp',\); need mesh\.get_group\('tp'\); because"):
            make(mesh["tp"], preset("int8"))
    with pytest.raises(ValueError, match=r"need mesh\.get_group\('dp'\) or mesh\.get_group\('tp'\)"):
        Communicator(mesh, preset("int8"), role="r")
    with pytest.raises(ValueError, match=r"got a DeviceMesh \(\); need mesh\.get_group\(\)"):
        Communicator(init_device_mesh("cpu", (2,)), preset("int8"), role="r")
    x = distribute_tensor(torch.ones(8), mesh["tp"], [Replicate()])
    comm = Communicator(mesh.get_group("tp"), preset("int8"), role="r")
    calls = [getattr(comm, name) for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "packet")]
    calls += [
        comm.all_reduce_async,
        comm.reduce_scatter_async,
        comm.all_gather_async,
        partial(comm.isend, dst=1 - rank),
    ]
    calls += [lambda x: comm.all_reduce(name="attn", x=x), lambda x: comm.all_gather_chunks(x, [8, 8])]
    calls += [lambda x: comm.reduce_scatter_chunks([x, x]), lambda x: virtual(2).all_reduce([x, x])]
    for call in calls:
        with pytest.raises(ValueError, match=r"got a DTensor \(Replicate\(\),\); need x\.to_local\(\); because"):
            call(x)
    assert (comm.calls, comm.messages, comm.meter.totals()) == (0, 0, {})
    torch.testing.assert_close(comm.all_reduce(x.to_local()), torch.full((8,), 2.0), rtol=0, atol=0.02)


def test_a_mesh_in_place_of_a_group_and_dtensors_are_refused() -> None:
    run_ranks(2, _meshes_and_dtensors)


def virtual(ways: int, name: str = "int8", **options) -> VirtualCommunicator:
    return VirtualCommunicator(ways, preset(name), role="r", **options)


def test_a_dim_that_does_not_divide_or_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got shape \[4, 5\] with size 5 in dim 1; need a multiple of 2; because r "):
        virtual(2).reduce_scatter([torch.ones(4, 5)] * 2, 1)
    with pytest.raises(ValueError, match="got dim=2 of a 2-d tensor; need one that exists"):
        virtual(2).all_gather([torch.ones(4, 5)] * 2, 2)
    with pytest.raises(ValueError, match="got dim=0 of a 0-d tensor"):
        virtual(2).all_to_all([torch.ones(())] * 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_dtype_that_codecs_lose_is_refused_and_nothing_is_counted(dtype: torch.dtype) -> None:
    comm = virtual(2)
    with pytest.raises(ValueError, match=f"got {dtype} with codec 'int8'; need float32, bfloat16 or float16"):
        comm.all_reduce([torch.ones(4, dtype=dtype)] * 2)
    assert comm.meter.totals() == {}
    assert comm.calls == 0


def test_parts_and_chunks_that_do_not_fit_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="got 3 parts; need 2; because each rank of r has one"):
        virtual(2).all_reduce([torch.ones(4)] * 3)
    with pytest.raises(ValueError, match="need one shape and dtype"):
        virtual(2).all_reduce([torch.ones(4), torch.ones(5)])
    alone = Communicator(None, preset("int8"), role="r")
    with pytest.raises(ValueError, match="got 2 chunks; need 1"):
        alone.reduce_scatter_chunks([torch.ones(1)] * 2)
    with pytest.raises(ValueError, match=r"got a chunk of 4 elements; need sizes\[0\] = 5"):
        alone.all_gather_chunks(torch.ones(4), [5])
    with pytest.raises(ValueError, match=r"got chunks of torch\.float16, torch\.float32; need one dtype"):
        virtual(2).reduce_scatter_chunks([[torch.ones(1), torch.ones(1).half()]] * 2)


def test_algorithms_that_cannot_run_are_refused() -> None:
    with pytest.raises(ValueError, match="got algorithm='ring'; need one of auto, one_shot, two_shot, hierarchical"):
        virtual(2, algorithm="ring")
    with pytest.raises(ValueError, match="got node_size=3 for 4 ranks; need 0 or a divisor of 4"):
        virtual(4, node_size=3)
    with pytest.raises(
        ValueError, match="got algorithm='hierarchical' with node_size=4 for 4 ranks; need 1 < node_size"
    ):
        virtual(4, algorithm="hierarchical", node_size=4)
    with pytest.raises(ValueError, match="got collective 'broadcast'; need one of all_reduce"):
        wire_bytes("broadcast", "auto", 8, torch.float32, 2, preset("int8"))
    with pytest.raises(ValueError, match="got node_size=-1"):
        resolve("all_gather", "auto", 8, torch.float32, 2, preset("int8"), -1)

"""Communicators with a crossover table and with kernels over peers' memory: which path runs, with which bits.

Fakes stand for the kernels (fake_kernels.py); their seeds and sums are those of the algorithms.
"""

from __future__ import annotations

import pytest
import torch
from comm_cases import STOCHASTIC, equal, gaussian, parts_of, virtual
from crossover_cases import table
from distributed import run_ranks
from fake_kernels import kernels
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from taco.comm import CommError, Communicator, Crossover, VirtualCommunicator, peers, pending, symmetric
from taco.config import NONE, Codec, Override, Policy
from taco.parallel import TensorComm
from taco.parallel.virtual import VirtualComm
from taco.recipes import preset


def _compare(comm: Communicator, virtual_comm: VirtualCommunicator, parts: list[Tensor]) -> None:
    mine = parts[comm.rank]
    assert equal(comm.all_reduce(mine), virtual_comm.all_reduce(parts))
    for dim in (0, 1):
        assert equal(comm.reduce_scatter(mine, dim), virtual_comm.reduce_scatter(parts, dim)[comm.rank])
        assert equal(comm.all_gather(mine, dim), virtual_comm.all_gather(parts, dim))
    assert comm.meter.totals() == virtual_comm.meter.totals()


# --- fused without a table --------------------------------------------------------------------------


def _fused(rank: int, world_size: int, mode: str) -> None:
    with kernels() as made:
        for codec in (preset("int8"), STOCHASTIC):
            for algorithm in ("auto", "two_shot"):
                options = {"role": "r", "algorithm": algorithm, "min_bytes": 64, "seed": 3}
                comm = Communicator(None, codec, fused=mode, **options)
                _compare(comm, VirtualCommunicator(world_size, codec, **options), parts_of(world_size, (6, 12, 30)))
                assert comm.paths == {"fused": 5}
                comm.all_reduce(torch.ones(100, dtype=torch.int32))
                comm.all_reduce(torch.ones(4))
                comm.all_to_all(torch.ones(12 * world_size))
                sizes = [300 + r for r in range(world_size)]
                comm.all_gather_chunks(torch.ones(sizes[rank]), sizes)
                assert comm.paths == {"fused": 5, "uncompressed": 2, "direct": 2}
                comm.check()
        assert made == ["int8"] * 2 + [STOCHASTIC.name] * 2


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("mode", ["auto", "require"])
def test_fused_collectives_give_the_bits_and_bytes_of_the_algorithms(world_size: int, mode: str) -> None:
    run_ranks(world_size, _fused, mode)


def _fused_uncompressed(rank: int, world_size: int) -> None:
    with kernels() as made:
        comm = Communicator(None, NONE, role="r", fused="auto")
        total = comm.all_reduce(torch.ones(5, 3))
        comm.reduce_scatter(torch.ones(4, 2), 1)
        comm.all_gather(torch.ones(4, dtype=torch.float16))
        assert torch.equal(total, torch.full((5, 3), float(world_size)))
        for dtype in (torch.float64, torch.int64):
            comm.all_reduce(torch.ones(3, dtype=dtype))
        assert comm.paths == {"fused_uncompressed": 3, "uncompressed": 2}
        assert made == ["none"]
        assert comm.meter.totals()["r"]["wire"] == comm.meter.totals()["r"]["raw"]


def test_without_a_codec_what_kernels_cannot_add_stays_with_the_backend() -> None:
    run_ranks(2, _fused_uncompressed)


def _cannot(rank: int, world_size: int) -> str:
    reason = "got a broken link; need one that works" if rank == 1 else ""
    with kernels(reason) as made:
        comm = Communicator(None, preset("int8"), role="r", fused="auto")
        comm.all_reduce(torch.ones(300))
        assert (dict(comm.paths), made) == ({"one_shot": 1}, [])
        comm = Communicator(None, preset("int8"), role="r", fused="require")
        with pytest.raises(CommError) as info:
            comm.all_reduce(torch.ones(300))
        assert comm.paths == {}
        return str(info.value)


def test_what_one_rank_cannot_no_rank_does_and_all_say_why() -> None:
    first, second = run_ranks(2, _cannot)
    for rank, text in enumerate((first, second)):
        head = f"rank {rank} of 2, role r: got fused='require' for all_reduce, which cannot run: "
        assert text == head + "got a broken link; need one that works (rank 1)"


def _captured(rank: int, world_size: int) -> None:
    with kernels(), pytest.MonkeyPatch.context() as patch:
        warm = Communicator(None, preset("int8"), role="r", fused="auto")
        warm.all_reduce(torch.ones(300))
        cold = Communicator(None, preset("int8"), role="r", fused="auto")
        patch.setattr(peers, "capturing", lambda: True)
        warm.all_reduce(torch.ones(300))
        with pytest.raises(CommError, match="got the first call of the path fused inside a CUDA graph capture; need "):
            cold.all_reduce(torch.ones(300))


def test_a_first_call_inside_a_capture_is_refused() -> None:
    run_ranks(2, _captured)


def test_a_call_that_timed_out_on_the_gpu_is_reported() -> None:
    run_ranks(2, _timed_out)


def _timed_out(rank: int, world_size: int) -> None:
    with kernels() as made:
        comm = Communicator(None, preset("int8"), role="r", fused="require")
        comm.check()
        comm.all_reduce(torch.ones(300))
        made[:] = ["timed out"]
        with pytest.raises(CommError, match="rank 1 came too late"):
            comm.check()


def test_outside_of_cuda_nothing_is_captured() -> None:
    assert torch.cuda.is_available() or not pending.capturing()


# --- with a table -----------------------------------------------------------------------------------

FAST = {"uncompressed": 100.0, "symmetric": 60.0, "fused_uncompressed": 40.0, "unfused": 30.0, "fused": 20.0}


def _fastest(path: str, world_size: int, codec: Codec, **options) -> Crossover:
    """A table in which `path` is the best one at 256 bytes and beyond."""
    times = {name: us for name, us in FAST.items() if us >= FAST[path]}
    return table({256: times}, codec=codec, world_size=world_size, **options)


def _chosen(rank: int, world_size: int) -> None:
    codec = STOCHASTIC
    ran = {"unfused": {"one_shot": 3, "direct": 2}, "fused": {"fused": 5}}
    if world_size > 2:
        ran["unfused"] = {"two_shot": 1, "one_shot": 2, "direct": 2}
    for path in FAST:
        with kernels() as made:
            crossover = _fastest(path, world_size, codec)
            comm = Communicator(None, codec, role="r", crossover=crossover)
            virtual_comm = VirtualCommunicator(world_size, codec, role="r", crossover=crossover)
            parts = [part.round() for part in parts_of(world_size, (6, 12, 30))]  # any order of summation is exact
            if path == "symmetric":
                assert equal(comm.all_reduce(parts[rank]), virtual_comm.all_reduce(parts))
                assert comm.paths == virtual_comm.paths == {"symmetric": 1}
                continue
            _compare(comm, virtual_comm, parts)
            assert comm.paths == virtual_comm.paths == ran.get(path, {path: 5})
            assert made == {"fused": [codec.name], "fused_uncompressed": ["none"]}.get(path, [])


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_path_that_a_table_chooses_runs_with_the_bits_of_virtual_ranks(world_size: int) -> None:
    run_ranks(world_size, _chosen)


def _exceptions(rank: int, world_size: int) -> None:
    with kernels():
        crossover = _fastest("fused", world_size, preset("int8"))
        comm = Communicator(None, preset("int8"), role="r", crossover=crossover, min_bytes=2048)
        comm.all_reduce(torch.ones(511))  # below min_bytes: the best uncompressed path
        assert comm.paths == {"fused_uncompressed": 1}
        sizes = [400 + r for r in range(world_size)]
        comm.all_gather_chunks(torch.ones(sizes[rank]), sizes)  # kernels take equal chunks
        assert comm.paths["direct"] == 1
        comm.all_reduce(torch.ones(1024, dtype=torch.int64))
        assert comm.paths["uncompressed"] == 1
        comm.all_to_all(torch.ones(1024))  # not in the table
        assert comm.paths["direct"] == 2
        comm.all_reduce(torch.ones(1024))
        assert comm.paths["fused"] == 1
        plain = Communicator(None, NONE, role="r", crossover=crossover)
        plain.all_reduce(torch.ones(1024))
        assert plain.paths == {"fused_uncompressed": 1}


def test_a_table_decides_only_what_it_holds() -> None:
    run_ranks(2, _exceptions)


def _cannot_as_measured(rank: int, world_size: int) -> None:
    with kernels("got no peer access"):
        comm = Communicator(None, preset("int8"), role="r", crossover=_fastest("fused", world_size, preset("int8")))
        with pytest.raises(CommError, match=r"cannot take the path fused: got no peer access \(rank 0\)"):
            comm.all_reduce(torch.ones(300))


def test_a_path_that_was_measured_and_cannot_run_is_not_replaced() -> None:
    run_ranks(2, _cannot_as_measured)


def _other_device(rank: int, world_size: int) -> None:
    measured = _fastest("unfused", world_size, preset("int8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taco.comm.communicator.device_name", lambda device: "another CPU")
        comm = Communicator(None, preset("int8"), role="r", crossover=measured)
        with pytest.raises(ValueError, match="got a tensor on another CPU with a crossover table of "):
            comm.all_reduce(torch.ones(300))
    assert comm.calls == 0


def test_a_table_of_another_device_is_refused() -> None:
    run_ranks(2, _other_device)


def test_options_that_do_not_go_together_are_refused() -> None:
    measured = _fastest("unfused", 2, preset("int8"))
    with pytest.raises(ValueError, match="got fused='on'; need one of off, auto, require"):
        Communicator(None, preset("int8"), role="r", fused="on")
    with pytest.raises(ValueError, match="got a crossover table with fused='off', algorithm='two_shot'"):
        virtual(2, "int8", crossover=measured, algorithm="two_shot")
    with pytest.raises(ValueError, match="got a crossover table of codec 'int8', 2 ranks, node_size 0; need 'int8', 4"):
        virtual(4, "int8", crossover=measured)
    with pytest.raises(ValueError, match="because other ones have other times"):
        virtual(2, "taco", crossover=measured)
    with pytest.raises(ValueError, match="need 'int8', 4, 2;"):
        virtual(4, "int8", crossover=_fastest("unfused", 4, preset("int8")), node_size=2)
    assert virtual(4, "int8", crossover=_fastest("unfused", 4, preset("int8"), node_size=2), node_size=2).crossover


def _no_kernels_across_nodes(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="got fused='require' for ranks on several nodes"):
        Communicator(None, preset("int8"), role="r", fused="require", node_size=2)


def test_kernels_are_not_required_across_nodes() -> None:
    run_ranks(4, _no_kernels_across_nodes)


def _inputs_stay(rank: int, world_size: int) -> None:
    comm = Communicator(None, NONE, role="r")
    for dim in (0, 1):
        [x] = gaussian(1, 2 * world_size, 2 * world_size)
        kept = x.clone()
        results = [comm.all_reduce(x), comm.reduce_scatter(x, dim), comm.all_gather(x, dim), comm.all_to_all(x, dim)]
        assert torch.equal(x, kept)
        for result in results:
            result.zero_()
        assert torch.equal(x, kept)


def test_uncompressed_collectives_leave_their_input_alone() -> None:
    run_ranks(3, _inputs_stay)


def _codecs_of_a_role(rank: int, world_size: int) -> None:
    first = Override(role="tp_forward", layers=(0,), codec=preset("int6"))
    codecs = Policy(tp_forward=preset("int4"), overrides=(first,), warmup_steps=2, warmup=preset("int8"))
    times = {1: {"uncompressed": 100.0, "fused": 50.0}}
    tables = {key: table(times, codec=codec) for key, codec in codecs.codecs("tp_forward").items()}
    with kernels() as made:
        real = TensorComm.build(init_device_mesh("cpu", (world_size,)), codecs, tables=tables)
        virtual_comm, parts = VirtualComm.build(world_size, codecs), parts_of(world_size, (6, 12, 30))
        for step in (1, 3, 2, 4):
            real.begin_step(step)
            virtual_comm.begin_step(step)
            for name in ("h.0.attn.c_proj", "h.1.attn.c_proj", "wte"):
                mine, theirs = (each.sender("tp_forward", name) for each in (real, virtual_comm))
                assert equal(mine.all_reduce(parts[rank]), theirs.all_reduce(parts))
        assert made == ["int8", "int6", "int4"]
        paths = {key: comm.paths for key, comm in real.communicators.items()}
    assert paths == {
        "tp_forward": {"fused": 4}, "tp_forward.int6": {"fused": 2}, "tp_forward.int8": {"fused": 6}, "tp_backward": {},
    }  # fmt: skip


def test_codecs_of_one_role_have_kernels_of_their_own() -> None:
    """So layers and a warm-up change codecs while others' workspaces stay."""
    run_ranks(2, _codecs_of_a_role)


# --- torch's symmetric memory -----------------------------------------------------------------------


def _symmetric_reasons(rank: int, world_size: int) -> list[str]:
    return [symmetric.why_not(None, torch.device("cpu"), dtype) for dtype in (torch.float32, torch.float16)]


def test_symmetric_memory_says_why_it_cannot_run() -> None:
    for device, dtype in run_ranks(2, _symmetric_reasons):
        assert device.startswith("got a cpu tensor; need CUDA tensors on every rank; because")
        assert dtype.startswith("got torch.float16; need float32 or bfloat16; because")

"""A crossover table holds for one dtype: compressed messages of another go uncompressed, with one warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from comm_cases import equal, parts_of, virtual
from crossover_cases import table
from distributed import run_ranks
from fake_kernels import kernels

from taco.comm import Communicator, Crossover
from taco.config import NONE, Codec
from taco.recipes import preset


def _table(codec: Codec, **options) -> Crossover:
    return table({256: {"uncompressed": 9.0, "unfused": 1.0}}, codec=codec, **options)


def _real(rank: int, world_size: int, fused: str) -> None:
    with kernels() as made, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        role = f"real-{fused}"  # a role is warned of once, also by another communicator of it
        comm = Communicator(None, preset("int8"), role=role, crossover=_table(preset("int8")), fused=fused)
        x = torch.full((1024,), 1.0 + rank, dtype=torch.bfloat16)
        assert torch.equal(comm.all_reduce(x), torch.full((1024,), 3.0, dtype=torch.bfloat16))
        comm.all_gather(x)
        comm.reduce_scatter(x)
        comm.all_gather_chunks(x[: 500 + rank], [500, 501])
        assert comm.paths == {"uncompressed": 4}
        assert comm.meter.totals()[role]["wire"] == comm.meter.totals()[role]["raw"]
        comm.all_reduce_async(x).wait()
        comm.all_reduce(x[:600])
        comm.all_to_all(x)  # no table has times of it
        comm.all_reduce(x.float())
        Communicator(None, preset("int8"), role=role, crossover=_table(preset("int8"))).all_reduce(x)
        assert comm.paths == {"uncompressed": 6, "direct": 1, "one_shot": 1}
        assert made == []
    assert [str(each.message) for each in said] == [
        f"real-{fused}: messages of bfloat16 go uncompressed, because the crossover table is of float32; "
        "measure bfloat16: torchrun --nproc-per-node 2 -m taco crossover --codec int8 --dtype bfloat16"
    ]


@pytest.mark.parametrize("fused", ["off", "auto"])
def test_messages_of_another_dtype_go_uncompressed_and_one_warning_says_so(fused: str) -> None:
    run_ranks(2, _real, fused)


def test_virtual_ranks_do_as_real_ones() -> None:
    comm = virtual(2, "taco", crossover=_table(preset("taco"), dtype=torch.bfloat16))
    parts = [part.round() for part in parts_of(2, (6, 12, 30))]
    with pytest.warns(UserWarning, match="messages of float32 go uncompressed, because the crossover table is of bfl"):
        total = comm.all_reduce(parts)
    assert equal(total, parts[0] + parts[1])
    assert comm.paths == {"uncompressed": 1}
    comm.all_reduce([part.bfloat16() for part in parts])
    assert comm.paths == {"uncompressed": 1, "one_shot": 1}


def _silent(rank: int, world_size: int) -> None:
    measured = _table(preset("int8"))
    with kernels() as made, warnings.catch_warnings():
        warnings.simplefilter("error")
        comm = Communicator(None, preset("int8"), role="silent", crossover=measured, min_bytes=4096)
        comm.all_reduce(torch.ones(1024, dtype=torch.int64))
        comm.all_reduce(torch.ones(1024, dtype=torch.bfloat16))  # below min_bytes
        plain = Communicator(None, NONE, role="silent", crossover=measured, fused="auto")
        plain.all_reduce(torch.ones(1024, dtype=torch.bfloat16))
        assert comm.paths == {"uncompressed": 2}
        assert plain.paths == {"fused_uncompressed": 1}
        assert made == ["none"]
        with pytest.raises(ValueError, match=r"got torch\.float64 with codec 'int8'"):
            comm.all_reduce(torch.ones(1024, dtype=torch.float64))


def test_what_no_table_would_compress_is_not_warned_of() -> None:
    run_ranks(2, _silent)

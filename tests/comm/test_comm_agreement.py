"""What ranks with kernels over shared memory agree on: where they meet, whether they can, one table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from crossover_cases import table
from distributed import run_ranks
from fake_kernels import FakeFused, kernels

from taco.comm import CommError, Communicator, peers
from taco.recipes import preset


def _placed(rank: int, world_size: int, transport: str) -> tuple[dict, dict]:
    with kernels():
        comm = Communicator(None, preset("int8"), role="r", fused="require", sms=16, memory="host")
        comm.all_reduce(torch.ones(1000))
        asked = dict(FakeFused.options)
        found = table({1: {"uncompressed": 2.0, "fused": 1.0}})
        chosen = replace(found, key=replace(found.key, transport=transport))
        Communicator(None, chosen.key.codec, role="r", crossover=chosen).all_reduce(torch.ones(1000))
        return asked, dict(FakeFused.options)


@pytest.mark.parametrize(("transport", "memory"), [("gloo", "auto"), ("nccl host", "host")])
def test_kernels_meet_where_the_caller_or_the_table_says(transport: str, memory: str) -> None:
    for asked, chosen in run_ranks(2, _placed, transport):
        assert asked == {"memory": "host", "sms": 16}
        assert chosen == {"memory": memory, "sms": 0}


def _no_memory(rank: int, world_size: int) -> tuple[dict, str]:
    class Refused(FakeFused):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            if rank == 1:
                raise CommError("no shared memory")

    with kernels(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(peers, "Fused", Refused)
        comm = Communicator(None, preset("int8"), role="r", fused="auto")
        comm.all_reduce(torch.ones(1000))
        try:
            Communicator(None, preset("int8"), role="r", fused="require").all_reduce(torch.ones(1000))
        except CommError as error:
            return dict(comm.paths), str(error)
    return dict(comm.paths), ""


def test_where_one_rank_gets_no_shared_memory_none_uses_it() -> None:
    for paths, text in run_ranks(2, _no_memory):
        assert paths == {"one_shot": 1}
        assert text.endswith("which cannot run: no shared memory (rank 1)")


def _other_tables(rank: int, world_size: int) -> str:
    found = table({1: {"uncompressed": 2.0, "unfused": 1.0 + rank}})
    try:
        Communicator(None, found.key.codec, role="r", crossover=found)
    except ValueError as error:
        return str(error)
    return ""


def test_ranks_with_other_tables_are_refused() -> None:
    for text in run_ranks(2, _other_tables):
        assert text.startswith("got another crossover table on ranks [1] than on rank 0; need one on all")

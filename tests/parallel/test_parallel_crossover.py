"""A folder of measured tables chooses the paths of a whole process grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, make, policy, train

from taco.comm import Crossover
from taco.comm.crossover import key_here
from taco.config import ConfigError, Override, Parallel, Policy
from taco.recipes import preset

CPU = torch.device("cpu")


def _save(folder: Path, codec: str, ways: int, us: float, node_size: int = 0) -> None:
    """A table in which compression takes `us` where the backend takes 100 us."""
    key = key_here(CPU, "auto", ways, preset(codec), torch.float32, node_size)
    times = {1: {"uncompressed": 100.0, "unfused": us}}
    Crossover(key=key, times=dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), times)).save(folder)


def _paths(rank: int, world_size: int, grid: Parallel, codecs: Policy) -> dict[str, dict[str, int]]:
    par = make(GPT, grid, codecs)
    train(par, 1)
    return {role: dict(comm.paths) for role, comm in par.communicators.items()}


def test_every_role_takes_the_path_of_its_table(tmp_path: Path) -> None:
    grid = Parallel(tp=2, dp=2, crossover=str(tmp_path))
    _save(tmp_path, "int8", 2, 50.0)
    _save(tmp_path, "sdp4bit-gradient", 2, 150.0)
    found = run_ranks(4, _paths, grid, policy(tp="int8", dp_gradient="sdp4bit-gradient"))[0]
    assert set(found["tp_forward"]) == set(found["tp_backward"]) == {"one_shot"}
    assert set(found["dp_gradient"]) == {"uncompressed"}
    assert set(found["dp_weight"]) == {"uncompressed"}  # without a codec: no table is asked for


def test_messages_below_min_bytes_stay_uncompressed(tmp_path: Path) -> None:
    _save(tmp_path, "int8", 2, 50.0)
    codecs = replace(policy(tp="int8"), min_bytes=1 << 30)
    found = run_ranks(2, _paths, Parallel(tp=2, crossover=str(tmp_path)), codecs)[0]
    assert set(found["tp_forward"]) == {"uncompressed"}


def test_levels_of_nodes_have_tables_of_their_own(tmp_path: Path) -> None:
    grid = Parallel(dp=4, node_size=2, crossover=str(tmp_path))
    _save(tmp_path, "int8", 4, 50.0, node_size=2)
    found = run_ranks(4, _paths, grid, policy(dp_gradient="int8"))[0]
    assert set(found["dp_gradient"]) == {"hierarchical"}


def test_virtual_ranks_ask_the_table_of_as_many_real_ones(tmp_path: Path) -> None:
    _save(tmp_path, "int8", 4, 150.0)
    slow = make(GPT, Parallel(virtual_tp=4, crossover=str(tmp_path)), policy(tp="int8"))
    plain = make(GPT, Parallel(virtual_tp=4), policy())
    assert train(slow, 2)["losses"] == train(plain, 2)["losses"]
    assert set(slow.communicators["tp_forward"].paths) == {"uncompressed"}


def test_layers_with_another_codec_ask_its_own_table(tmp_path: Path) -> None:
    grid = Parallel(virtual_tp=4, crossover=str(tmp_path))
    second = Override(role="tp_forward", layers=(1,), codec=preset("int8"))
    codecs = replace(policy(tp_forward="int4"), overrides=(second,))
    _save(tmp_path, "int4", 4, 150.0)
    with pytest.raises(ConfigError, match="taco crossover --codec int8"):
        make(GPT, grid, codecs)
    _save(tmp_path, "int8", 4, 50.0)
    par = make(GPT, grid, codecs)
    train(par, 1)
    paths = {key: dict(comm.paths) for key, comm in par.communicators.items()}
    assert paths["tp_forward"] == {"uncompressed": 3}
    assert paths["tp_forward.int8"] == {"two_shot": 2}
    assert par.communicators["tp_backward"].crossover is None


def test_a_missing_table_is_an_error_that_says_how_to_measure_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 4 -m taco crossover --codec int8 --dtype float32"):
        make(GPT, Parallel(virtual_tp=4, crossover=str(tmp_path)), policy(tp="int8"))

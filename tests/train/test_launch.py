"""Which ranks a run gets, and which worlds are refused before any rank waits for another."""

from __future__ import annotations

import pytest
import torch

from taco.config import ConfigError, Data, Model, Parallel, Run
from taco.models import build
from taco.models.flops import parameters
from taco.recipes import RUNS
from taco.train.launch import BASE_BYTES, World, check_world, command, pick_device, ranks_from, state_bytes, world

MODEL = Model(name="tiny", arch="gpt", layers=4, hidden=64, heads=8, kv_heads=8, ffn=256, vocab=512, max_seq=32)
MACHINE = {"device": "cpu", "gpus": 0, "cores": 2, "memory": 16 << 30}


def _run(model=MODEL, **parallel) -> Run:
    grid = Parallel(microbatches=parallel.get("pp", 1), **parallel)
    return Run(name="r", model=model, parallel=grid, data=Data(seq=16))


def test_one_rank_without_torchrun():
    assert ranks_from({"PATH": "/bin"}) == {}
    assert World().backend == "gloo"


def test_ranks_come_from_torchruns_variables():
    env = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert ranks_from(env) == {"rank": 3, "size": 4, "local_rank": 1, "local_size": 2}


@pytest.mark.parametrize("env", [{"RANK": "0"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}])
def test_half_an_environment_is_refused(env):
    with pytest.raises(ConfigError, match="LOCAL_WORLD_SIZE"):
        ranks_from(env)


def test_garbage_in_the_environment_is_refused():
    with pytest.raises(ConfigError, match="whole numbers"):
        ranks_from({"RANK": "-1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})


def test_world_that_is_not_the_grid_names_the_command():
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 4 -m taco train RUN`") as error:
        check_world(_run(tp=2, pp=2), size=1, local_size=1, **MACHINE)
    assert "pp=2 x dp=1 x tp=2" in str(error.value)
    name = next(iter(RUNS))
    assert command(name, 1) == f"python -m taco train {name}"


def test_torchrun_for_a_run_of_one_rank_is_refused():
    with pytest.raises(ConfigError, match="need 1: `python -m taco train RUN`"):
        check_world(_run(), size=2, local_size=2, **MACHINE)


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(ConfigError, match="2 ranks on 1 GPUs"):
        check_world(_run(tp=2), size=2, local_size=2, **MACHINE | {"device": "cuda", "gpus": 1})


def test_more_ranks_than_cores_hold_are_refused():
    with pytest.raises(ConfigError, match="16 ranks on 1 CPU cores"):
        check_world(_run(tp=8, pp=2), size=16, local_size=16, **MACHINE | {"cores": 1})


def test_more_ranks_than_memory_holds_are_refused():
    with pytest.raises(ConfigError, match="GiB"):
        check_world(_run(tp=4), size=4, local_size=4, **MACHINE | {"memory": 3 * BASE_BYTES})


def test_a_world_that_fits_passes():
    check_world(_run(tp=4), size=4, local_size=4, **MACHINE)
    check_world(_run(tp=8, pp=2), size=16, local_size=2, **MACHINE)


@pytest.mark.parametrize("arch", ["gpt", "qwen"])
def test_memory_estimate_counts_the_weights(arch):
    """Within 10% below the exact count: it leaves out norms, biases and positions only."""
    model = Model(**{**vars(MODEL), "arch": arch, "hidden": 128, "ffn": 512})
    exact = 16 * parameters(model)
    assert exact == 16 * sum(p.numel() for p in build(model).parameters())
    assert 0.9 * exact < state_bytes(_run(model)) <= exact


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_where_there_is_none_is_refused():
    assert pick_device("auto", 0).type == "cpu"
    with pytest.raises(ConfigError, match="--device cuda"):
        pick_device("cuda", 0)


def test_one_rank_needs_no_process_group():
    before = torch.get_num_threads()
    try:
        with world(_run(), {}, device="cpu", threads=1) as here:
            assert (here.rank, here.size, here.store) == (0, 1, None)
            assert torch.get_num_threads() == 1
            assert not torch.distributed.is_initialized()
            assert here.agree(lambda: 3) == 3
    finally:
        torch.set_num_threads(before)

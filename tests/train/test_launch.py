"""Which ranks a run gets, and which worlds are refused before any rank waits for another."""

from __future__ import annotations

import pytest
import torch
from distributed import run_ranks

from taco.config import ConfigError, Data, Model, Parallel, Run
from taco.models import build
from taco.models.flops import parameters
from taco.recipes import RUNS
from taco.train.launch import (
    BASE_BYTES,
    World,
    check_transport,
    check_world,
    command,
    measuring,
    pick_device,
    ranks_from,
    state_bytes,
    world,
)

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


class OddError(Exception):
    """Its constructor does not take what it keeps."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def agree_body(rank: int, size: int) -> list[str]:
    here, told = World(rank=rank, size=size), []
    for error in (KeyError("step_ms"), OddError(1, 2)):

        def decide(error: Exception = error) -> None:
            raise error

        try:
            here.agree(decide)
        except Exception as found:
            told.append(f"{type(found).__name__}: {found}")
    return told


def test_no_exception_of_the_first_rank_leaves_the_others_waiting():
    first, second = run_ranks(2, agree_body)
    assert first == ["KeyError: 'step_ms'", "OddError: 1 and 2"]
    assert second == ["KeyError: 'step_ms'", "RuntimeError: OddError on rank 0: 1 and 2"]


SLOW = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo"}


@pytest.mark.parametrize(
    ("transport", "env"),
    [
        ("nvlink", {}), ("nvlink", {"NCCL_P2P_DISABLE": "0", "NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}),
        ("host", {"NCCL_P2P_DISABLE": "1"}), ("tcp", SLOW), ("gloo", SLOW), ("gloo", {}),
    ],
)  # fmt: skip
def test_an_environment_that_fits_its_transport_passes(transport: str, env: dict):
    check_transport(transport, env)


@pytest.mark.parametrize(
    ("transport", "env", "told"),
    [
        ("nvlink", {"NCCL_P2P_DISABLE": "1"}, "got NCCL_P2P_DISABLE=1; need no NCCL_P2P_DISABLE, no NCCL_SHM_DISABLE;"),
        ("host", {}, "got no NCCL_P2P_DISABLE; need NCCL_P2P_DISABLE=1, no NCCL_SHM_DISABLE; because"),
        ("host", SLOW, "got NCCL_SHM_DISABLE=1; need"),
        ("tcp", SLOW | {"NCCL_SOCKET_IFNAME": "eth0"}, "got NCCL_SOCKET_IFNAME=eth0; need"),
    ],
)
def test_an_environment_of_another_transport_is_refused(transport: str, env: dict, told: str):
    with pytest.raises(ConfigError) as error:
        check_transport(transport, env)
    assert told in str(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_a_measurement_of_gpus_needs_one_for_each_rank():
    env = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    with pytest.raises(ConfigError, match="got 2 ranks on 0 GPUs"), measuring(env, "nvlink"):
        pass

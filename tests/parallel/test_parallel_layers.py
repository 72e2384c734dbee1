"""Blocks with codecs of their own: their messages and no others, alike on real and on virtual ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, QWEN, batch, gradients, make, policy, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module

from taco.comm import wire_bytes
from taco.config import ConfigError, GroupCodec, Override, Parallel, Policy
from taco.models import build
from taco.parallel import ColwiseParallel, RowwiseParallel, TensorComm, parallelize, virtual_tp
from taco.recipes import preset

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 3
STOCHASTIC = GroupCodec(name="int8-stochastic", payload="int8", rounding="stochastic")
DEEP_GPT, DEEP_QWEN = replace(GPT, layers=4), replace(QWEN, layers=4)


def layered(*changes: tuple[str, tuple[int, ...], object], tp: str = "int4") -> Policy:
    """`tp` in both directions but for (role, layers, codec)."""
    overrides = tuple(Override(role=role, layers=layers, codec=codec) for role, layers, codec in changes)
    return replace(policy(tp=tp), overrides=overrides)


def mixed(second: str) -> Policy:
    """Three codecs forward, two backward, one of them stochastic. second: of block 1."""
    return layered(
        ("tp_forward", (0, 3), preset("int8")),
        ("tp_forward", (1,), preset(second)),
        ("tp_backward", (3, 2), STOCHASTIC),
    )


# the order of uncompressed sums is the backend's for more than two ranks
CASES = {
    4: [(DEEP_GPT, mixed("int6")), (DEEP_QWEN, mixed("int6"))],
    2: [(DEEP_GPT, mixed("none")), (DEEP_QWEN, layered(("tp_backward", (1,), preset("int8")), tp="none"))],
}


def counted(par) -> tuple[dict, dict]:
    """(bytes and messages, paths by communicator) so far."""
    totals = {role: total for role, total in par.meter.totals().items() if role.startswith("tp")}
    paths = {key: dict(comm.paths) for key, comm in par.communicators.items() if key.startswith("tp")}
    return totals, paths


def real_body(rank: int, world_size: int) -> list[dict]:
    results = []
    for model, codecs in CASES[world_size]:
        par = make(model, Parallel(tp=world_size, microbatches=2), codecs)
        results.append(train(par, STEPS) | {"counted": counted(par)})
    return results


@pytest.mark.parametrize("world_size", CASES)
def test_virtual_ranks_equal_real_ones_bit_for_bit(world_size: int) -> None:
    real = run_ranks(world_size, real_body)
    for i, (model, codecs) in enumerate(CASES[world_size]):
        par = make(model, Parallel(virtual_tp=world_size, microbatches=2), codecs)
        virtual = train(par, STEPS)
        for rank in range(world_size):
            got = real[rank][i]
            assert (got["losses"], got["norms"]) == (virtual["losses"], virtual["norms"]), (model.name, i, rank)
            for name, grad in got["gradients"].items():
                assert torch.equal(grad, virtual["gradients"][name]), (model.name, i, rank, name)
            assert got["counted"] == counted(par)


def test_each_message_has_the_bytes_and_the_communicator_of_its_blocks_codec() -> None:
    par = make(DEEP_GPT, Parallel(virtual_tp=4), mixed("none"))
    tokens, targets = batch(0)
    par.step(tokens, targets, 1)
    numel = tokens.numel() * GPT.hidden
    none, int8, int4 = (
        wire_bytes("all_reduce", "auto", numel, torch.float32, 4, preset(name)) for name in ("none", "int8", "int4")
    )
    totals, paths = counted(par)
    # two messages a block, one of the embedding (forward) or the head (backward)
    assert totals["tp_forward"]["wire"] == 3 * int4 + 4 * int8 + 2 * none
    assert totals["tp_backward"]["wire"] == 5 * int4 + 4 * int8
    assert paths == {
        "tp_forward": {"two_shot": 3}, "tp_forward.int8": {"two_shot": 4}, "tp_forward.none": {"uncompressed": 2},
        "tp_backward": {"two_shot": 5}, "tp_backward.int8-stochastic": {"two_shot": 4},
    }  # fmt: skip


def test_every_block_overridden_alike_is_another_codec_for_the_ends_alone() -> None:
    """And where only a name differs a policy of layers computes what the plain one does."""
    grid, twin = Parallel(virtual_tp=2), replace(preset("int4"), name="twin")
    plain, same = (
        train(make(GPT, grid, codecs), 2)["losses"]
        for codecs in (policy(tp="int4"), layered(("tp_forward", (0, 1), twin)))
    )
    assert same == plain
    one, both = (
        train(make(GPT, grid, layered(("tp_forward", layers, preset("int8")))), 2)["losses"]
        for layers in ((1,), (0, 1))
    )
    assert (
        len({tuple(plain), tuple(one), tuple(both), tuple(train(make(GPT, grid, policy(tp="int8")), 2)["losses"])}) == 4
    )


def messages_body(rank: int, world_size: int, sequence: bool) -> dict:
    """Messages by communicator."""
    codecs = layered(("tp_forward", (3,), preset("int8")), ("tp_backward", (0,), preset("none")))
    par = make(DEEP_QWEN, Parallel(tp=2, sequence_parallel=sequence), codecs)
    par.step(*batch(0), 1)
    return {key: sum(comm.paths.values()) for key, comm in par.communicators.items()}


def test_sequence_parallel_messages_follow_their_blocks() -> None:
    for sequence, each in ((False, 1), (True, 2)):
        for found in run_ranks(2, messages_body, sequence):
            # with sequence parallelism a block's gradient is reduced and gathered in the role of each pass
            assert found["tp_forward.int8"] == found["tp_backward.none"] == 2 * each
            assert found["tp_forward"] == found["tp_backward"] == (2 * 3 + 1) * each


GRIDS = [{"dp": 2}, {"pp": 2, "microbatches": 2}]


def grids_body(rank: int, world_size: int, axis: str) -> list[dict]:
    """First step of each grid with two real or virtual TP ranks in every cell."""
    codecs = layered(("tp_forward", (0, 3), preset("int8")), ("tp_backward", (3,), preset("int8")))
    found = []
    for grid in GRIDS:
        par = make(DEEP_GPT, Parallel(**grid, **{axis: 2}), codecs)
        loss = par.step(*batch(0, par.parallel, par.dp_rank), par.parallel.microbatches)
        found.append({"loss": loss, "gradients": gradients(par), "counted": counted(par)})
    return found


def test_layers_keep_their_codecs_inside_data_and_pipeline_parallelism() -> None:
    real, virtual = run_ranks(4, grids_body, "tp"), run_ranks(2, grids_body, "virtual_tp")
    for i, grid in enumerate(GRIDS):
        for rank, result in enumerate(real):
            expected = virtual[rank // 2][i]
            assert (result[i]["loss"], result[i]["counted"]) == (expected["loss"], expected["counted"]), grid
            for name, grad in result[i]["gradients"].items():
                assert torch.equal(grad, expected["gradients"][name]), f"{grid} {name}"
    first, last = (virtual[stage][1]["counted"][1] for stage in (0, 1))
    assert (first["tp_backward.int8"], last["tp_backward.int8"]) == ({}, {"one_shot": 4})
    assert first["tp_forward.int8"] == last["tp_forward.int8"] == {"one_shot": 4}  # blocks 0 and 3


def state_body(rank: int, world_size: int) -> list[list[float]]:
    codecs = layered(("tp_forward", (1,), STOCHASTIC), ("tp_backward", (0,), replace(STOCHASTIC, name="own")))
    whole = make(GPT, Parallel(tp=2), codecs)
    train(whole, 1)
    again = make(GPT, Parallel(tp=2), codecs)
    again.load_state_dict(whole.state_dict())
    keys = sorted(key for key in whole.state_dict() if key.startswith("calls."))
    assert keys == ["calls.pp0.tp_backward.own", "calls.pp0.tp_forward.int8-stochastic"]
    return [train(par, 2, first=1)["losses"] for par in (whole, again)]


def test_state_of_every_stochastic_codec_is_restored() -> None:
    for went_on, restored in run_ranks(2, state_body):
        assert went_on == restored


def errors_body(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    codecs = layered(("tp_forward", (2,), preset("int8")))
    with pytest.raises(ConfigError, match="tp_forward overridden in layer 2; need layers of the model, 0 to 1"):
        parallelize(build(GPT), mesh, codecs)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    comm = TensorComm.build(mesh, codecs)
    parallelize_module(module, mesh, {"0": ColwiseParallel(comm=comm), "1": RowwiseParallel(comm=comm)})
    with pytest.raises(ConfigError, match="a tp_forward message of a module without a name"):
        module(torch.ones(2, 8))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    named = parallelize(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)),
        mesh,
        layered(("tp_forward", (1,), preset("int8")), tp="none"),
        plan=plan,
    )
    named(torch.ones(2, 8))
    assert named.tensor_comm.communicators["tp_forward.int8"].calls == 1


def test_layers_that_do_not_exist_and_modules_without_a_name_are_named() -> None:
    run_ranks(2, errors_body)
    codecs = layered(("tp_backward", (0, 7), preset("int8")))
    with pytest.raises(ConfigError, match="tp_backward overridden in layer 7; need layers of the model, 0 to 1"):
        virtual_tp(build(GPT), 2, codecs)
    with pytest.raises(ConfigError, match="tp_backward overridden in layer 7"):
        make(GPT, Parallel(virtual_tp=2), codecs)

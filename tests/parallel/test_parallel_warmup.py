"""The warm-up codec of the first steps: alike on real and virtual ranks, counted as it is, and gone afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from distributed import run_ranks
from parallel_cases import GPT, Policy, batch, make, policy
from torch.distributed.device_mesh import init_device_mesh

from taco.comm import wire_bytes
from taco.config import ConfigError, GroupCodec, Override, Parallel
from taco.models import build
from taco.parallel import parallelize
from taco.recipes import preset

pytestmark = pytest.mark.usefixtures("one_thread")

WAYS = 2
INT4 = GroupCodec(name="int4-stochastic", payload="int4", group=32, rounding="stochastic")
CHOSEN = replace(
    policy(tp=INT4),
    overrides=(Override(role="tp_forward", layers=(1,), codec=preset("int6")),),
    warmup_steps=2,
    warmup=preset("int8"),
)


def losses(par, steps: range, *, told: bool = True) -> list[float]:
    """Of AdamW steps with those numbers, each with a look at held-out data after it."""
    optimizer = torch.optim.AdamW([p for _, p in par.named_parameters()], lr=1e-3, foreach=True)
    found = []
    for step in steps:
        if told:
            par.begin_step(step)
        par.zero_grad()
        found.append(par.step(*batch(step), 1))
        optimizer.step()
        found.append(par.eval_loss(*batch(1000)))
    return found


def body(rank: int, world_size: int, grid: Parallel, codecs: Policy) -> dict:
    par = make(GPT, grid, codecs)
    found = {"losses": losses(par, range(1, 5)), "wire": par.meter.totals()}
    return found | {"paths": {key: dict(comm.paths) for key, comm in par.communicators.items()}}


@pytest.mark.parametrize("codecs", [CHOSEN, replace(policy(tp_backward="int4"), warmup_steps=2)], ids=["int8", "none"])
def test_virtual_ranks_equal_real_ones_in_both_phases(codecs: Policy) -> None:
    virtual = body(0, 1, Parallel(virtual_tp=WAYS), codecs)
    for real in run_ranks(WAYS, body, Parallel(tp=WAYS), codecs):
        assert real["losses"] == virtual["losses"]
        assert real["paths"] == virtual["paths"]
        assert all(real["wire"][role] == virtual["wire"][role] for role in ("tp_forward", "tp_backward"))


def test_steps_evaluations_and_bytes_are_those_of_the_phase() -> None:
    """Steps 1 and 2 are those of a run of the warm-up codec; step 3 is not."""
    chosen = replace(policy(tp="int4"), warmup_steps=2, warmup=preset("int8"))
    warm, int8 = (make(GPT, Parallel(virtual_tp=WAYS), codecs) for codecs in (chosen, policy(tp="int8")))
    assert losses(warm, range(1, 3)) == losses(int8, range(1, 3), told=False)
    assert warm.meter.totals() == int8.meter.totals()
    assert losses(warm, range(3, 4))[1] != losses(int8, range(3, 4), told=False)[1]
    warm.meter.reset()
    warm.begin_step(2)
    warm.step(*batch(0), 1)
    before = warm.meter.totals()["tp_forward"]["wire"]
    warm.begin_step(3)
    warm.step(*batch(0), 1)
    after = warm.meter.totals()["tp_forward"]["wire"] - before
    numel = batch(0)[0].numel() * GPT.hidden
    for wire, name in ((before, "int8"), (after, "int4")):
        messages = 2 * GPT.layers + 1
        assert wire == messages * wire_bytes("all_reduce", "auto", numel, torch.float32, WAYS, preset(name))


def state_body(rank: int, world_size: int, last: int) -> tuple[list[float], list[float]]:
    whole, again = (make(GPT, Parallel(tp=world_size), CHOSEN) for _ in range(2))
    losses(whole, range(1, last + 1))
    again.load_state_dict(whole.state_dict())
    return losses(whole, range(last + 1, 5)), losses(again, range(last + 1, 5))


@pytest.mark.parametrize("last", [1, 2, 3])
def test_what_is_restored_goes_on_alike_in_either_phase(last: int) -> None:
    for went_on, restored in run_ranks(WAYS, state_body, last):
        assert went_on == restored


def untold_body(rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cpu", (world_size,))
    model = parallelize(build(GPT), mesh, CHOSEN)
    with pytest.raises(ConfigError, match="a tp_forward message before begin_step"):
        model(batch(0)[0])
    model.tensor_comm.begin_step(1)
    model(batch(0)[0])
    assert model.tensor_comm.communicators["tp_forward.int8"].calls == 2 * GPT.layers + 1


def test_a_loop_that_does_not_say_its_step_is_told_to() -> None:
    run_ranks(WAYS, untold_body)
    par = make(GPT, Parallel(virtual_tp=WAYS), CHOSEN)
    with pytest.raises(ConfigError, match=r"before begin_step\(step\), with warmup_steps=2"):
        par.step(*batch(0), 1)
    with pytest.raises(ConfigError, match="step=0; need an integer >= 1"):
        par.begin_step(0)
    alone = make(GPT)
    alone.begin_step(1)

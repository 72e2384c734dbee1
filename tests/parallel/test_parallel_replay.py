"""A step that is replayed as a CUDA graph is the step: same bits, same counts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from parallel_cases import GPT, batch, gradients, make, policy

from taco.codec import coder, factory, register
from taco.codec.baselines import NoCoder
from taco.comm import Meter, VirtualCommunicator
from taco.config import CODEC_CLASSES, ENDS, Codec, Parallel
from taco.parallel import Parallelism, grid
from taco.parallel.replay import Replay, _Counts
from taco.parallel.virtual import VirtualComm
from taco.recipes import ARMS, PRESETS, preset, with_layers
from taco.recipes.arms import VARIANTS

VIRTUAL = Parallel(virtual_tp=4, microbatches=2)


def counts(par: Parallelism) -> list:
    each = par.communicators.values()
    return [par.meter.totals(), [(dict(c.paths), c.calls, c.messages) for c in each]]


def steps(par: Parallelism, count: int, *, replay: bool) -> list:
    """(loss, gradients, counts) of each; the weights move."""
    found = []
    for step in range(count):
        par.zero_grad()
        loss = par.step(*batch(step), 2, replay=replay)
        found.append((loss, gradients(par), counts(par)))
        par.clip_(1.0)
        with torch.no_grad():
            for _, parameter in par.named_parameters():
                parameter -= 0.1 * parameter.grad
    return found


def check_equal(left: list, right: list) -> None:
    for step, (a, b) in enumerate(zip(left, right, strict=True)):
        assert a[0] == b[0], step
        assert a[2] == b[2], step
        for name, grad in a[1].items():
            assert torch.equal(grad, b[1][name]), (step, name)


def test_without_a_gpu_replay_has_no_effect() -> None:
    plain, asked = (make(GPT, VIRTUAL, policy(tp="int8")) for _ in range(2))
    check_equal(steps(plain, 4, replay=False), steps(asked, 4, replay=True))
    assert not asked.replayed


def test_counts_of_a_pass_are_added() -> None:
    meter = Meter()
    comm = VirtualCommunicator(2, preset("int8"), role="tp_forward", meter=meter)
    parts = [torch.randn(512) for _ in range(2)]
    passed = _Counts(meter, [comm])
    comm.all_reduce(parts)
    comm.all_reduce(parts)
    passed.end()
    once = meter.totals()["tp_forward"]
    passed.add()
    assert meter.totals()["tp_forward"] == {key: 2 * value for key, value in once.items()}
    assert comm.calls == 4
    assert sum(comm.paths.values()) == 4


@pytest.mark.gpu
@pytest.mark.parametrize(
    "arm", ["none", "taco", "int8", "fp8", "fp8-tensor", "mxfp8", "tahquant", "int4-clip", "int4-layers"]
)
def test_replayed_steps_are_the_steps(arm: str) -> None:
    layers = with_layers(policy(tp="int4"), {"tp_forward": (ENDS, 1)}, "int8")
    chosen = layers if arm == "int4-layers" else ARMS[arm]
    plain, asked = (make(GPT, VIRTUAL, chosen, device="cuda") for _ in range(2))
    check_equal(steps(plain, 6, replay=False), steps(asked, 6, replay=True))
    assert asked.replayed
    assert not plain.replayed


@pytest.mark.gpu
def test_another_shape_or_option_is_another_recording() -> None:
    par = make(GPT, VIRTUAL, policy(tp="int8"), device="cuda")
    seen = []
    for step, (rows, min_bytes) in enumerate([(8, 0)] * 4 + [(4, 0)] * 3 + [(4, 1 << 30)] * 3):
        par.communicators["tp_forward"].min_bytes = min_bytes
        results = []
        for replay in (True, False):
            par.zero_grad()
            tokens, targets = (x[:rows] for x in batch(step))
            results.append((par.step(tokens, targets, 2, replay=replay), gradients(par)))
            seen.append(par.replayed)
        assert results[0][0] == results[1][0]
        assert all(torch.equal(grad, results[1][1][name]) for name, grad in results[0][1].items())
    recorded = [False, False, True, True] + [False, False, True] * 2
    assert seen[::2] == recorded
    assert not any(seen[1::2])


@pytest.mark.gpu
def test_what_comes_between_steps_changes_no_replay() -> None:
    """Evaluation, a step that is not replayed, and a recording that is forgotten."""
    plain, asked = (make(GPT, VIRTUAL, policy(tp="int8"), device="cuda") for _ in range(2))
    for step in range(9):
        losses = []
        for par in (plain, asked):
            par.zero_grad()
            losses.append((par.step(*batch(step), 2, replay=par is asked and step != 4), gradients(par)))
            par.clip_(1.0)
            with torch.no_grad():
                for _, parameter in par.named_parameters():
                    parameter -= 0.1 * parameter.grad
            losses[-1] += (par.evaluate(*batch(100 + step)),)
        assert losses[0][::2] == losses[1][::2]
        assert all(torch.equal(grad, losses[1][1][name]) for name, grad in losses[0][1].items())
        assert asked.replayed == (step in (2, 3, 5, 8))
        if step == 5:
            asked.forget_recording()
            assert all(parameter.grad is None for _, parameter in asked.named_parameters())


WARM = replace(policy(tp="int4"), warmup_steps=4, warmup=preset("int8"))


@pytest.mark.gpu
def test_the_warm_up_and_what_follows_have_recordings_of_their_own() -> None:
    plain, asked = (make(GPT, VIRTUAL, WARM, device="cuda") for _ in range(2))
    for step in range(1, 9):
        results = []
        for par, replay in ((plain, False), (asked, True)):
            par.begin_step(step)
            par.zero_grad()
            results.append((par.step(*batch(step), 2, replay=replay), gradients(par), counts(par)))
        check_equal(*([result] for result in results))
        assert asked.replayed == (step in (3, 4, 7, 8))


@dataclass(frozen=True, kw_only=True)
class DrawnCodec(Codec):
    """A codec of somebody's own, which may draw random numbers."""


class DrawnCoder(NoCoder):
    seeded = True


def test_codecs_that_may_draw_random_numbers_are_told_from_those_that_do_not() -> None:
    register(DrawnCodec, DrawnCoder)
    try:
        par = make(GPT, VIRTUAL, policy(tp_forward=DrawnCodec(name="drawn"), tp_backward="int8"))
        assert [key for key, _ in par._stochastic()] == ["calls.pp0.tp_forward"]
    finally:
        del factory._CODERS[DrawnCodec], CODEC_CLASSES["DrawnCodec"]
        coder.cache_clear()
    for codec in PRESETS:
        if codec != "none" and not getattr(PRESETS[codec], "difference", False):
            assert not list(make(GPT, VIRTUAL, policy(tp=codec))._stochastic()), codec


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> list:
    """The forms of the passes that a GPU would record, in the order of the calls."""
    found = []

    class Recorder(Replay):
        def __call__(self, run, tokens, targets, form, meter, communicators):
            found.append(form)
            return run(tokens, targets), False

    monkeypatch.setattr(grid, "Replay", Recorder)
    monkeypatch.setattr(Parallelism, "_can_replay", lambda self: True)
    return found


def test_a_new_option_is_a_new_recording(forms: list) -> None:
    par = make(GPT, VIRTUAL, policy(tp="int8"))
    comm = par.communicators["tp_forward"]
    changes = {"min_bytes": 64, "algorithm": "two_shot", "node_size": 2, "slice_bytes": 0, "seed": 5}
    for name, value in changes.items():
        par.step(*batch(0), 2, replay=True)
        setattr(comm, name, value)
    par.step(*batch(0), 2, replay=True)
    assert len(set(forms)) == len(forms) == len(changes) + 1


def test_a_recording_holds_for_one_phase(forms: list) -> None:
    par = make(GPT, VIRTUAL, WARM)
    virtual_comm = par.modules[0].virtual_comm
    other = VirtualComm.build(4, policy())
    for step in (1, 4, 5, 6):
        par.begin_step(step)
        par.step(*batch(step), 2, replay=True)
    with virtual_comm.instead(other):
        par.step(*batch(0), 2, replay=True)
    par.step(*batch(0), 2, replay=True)
    assert [forms.index(form) for form in forms] == [0, 0, 2, 2, 4, 2]


@pytest.mark.gpu
def test_random_codecs_and_gradients_to_add_to_are_not_replayed() -> None:
    par = make(GPT, VIRTUAL, policy(tp=VARIANTS["int8-stochastic"]), device="cuda")
    steps(par, 4, replay=True)
    assert not par.replayed
    par = make(GPT, VIRTUAL, policy(tp="int8"), device="cuda")
    for step in range(4):
        par.step(*batch(step), 2, replay=True)
        assert not par.replayed


WAITING = """
import torch
from taco.comm import Meter
from taco.parallel.replay import Replay

weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
tokens = torch.ones(2, 2, device="cuda")

def run(tokens, targets):
    loss = (weight * tokens.sum()).sum()
    loss.item()
    loss.backward()
    return loss.detach()

replay = Replay([weight])
for step in range(3):
    weight.grad = None
    replay(run, tokens, tokens, "form", Meter(), [])
"""


@pytest.mark.gpu
def test_a_pass_that_waits_for_the_gpu_is_refused() -> None:
    """In a process of its own: torch's random numbers do not outlive a failed capture."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "got a pass that cannot be recorded as a CUDA graph" in done.stderr
    assert "--no-replay" in done.stderr

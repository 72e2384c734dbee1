"""How far low bits in one block and direction move the gradient, and that looking changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from train_cases import MODEL, fit, log_of, numbers, stochastic, tiny_run

from taco.config import ENDS, TENSOR_ROLES, ConfigError, Override, Parallel, Policy
from taco.models import build
from taco.parallel import Parallelism, setup
from taco.recipes import policy, preset, protected
from taco.train.sensitivity import PROBE, sensitivity_records

VIRTUAL = Parallel(virtual_tp=2)
PLACES = [(role, layer) for role in TENSOR_ROLES for layer in (ENDS, *range(MODEL.layers))]


def parallelism(chosen: Policy, parallel: Parallel = VIRTUAL) -> Parallelism:
    def make(**stage):
        return build(MODEL, 1, **stage)

    return setup(MODEL, make, parallel, chosen)


def sequences() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(MODEL.vocab, (6, 17), generator=torch.Generator().manual_seed(1))
    return tokens[:, :-1], tokens[:, 1:]


def gradient(chosen: Policy) -> torch.Tensor:
    """Of all parameters, flat, over the first four sequences."""
    par = parallelism(chosen)
    par.step(*(x[:4] for x in sequences()), 1)
    return torch.cat([p.grad.flatten() for _, p in par.named_parameters()]).double()


def test_each_error_is_that_of_a_run_with_the_probe_in_one_block_and_direction_alone():
    """Whatever the run's own codecs are."""
    exact = gradient(Policy())
    expected = []
    for role, layer in PLACES:
        moved = gradient(Policy(overrides=(Override(role=role, layers=(layer,), codec=preset("int4")),)))
        expected.append(((moved - exact).norm() / exact.norm()).item())
    for chosen in (policy(), replace(policy(tp="int8"), min_bytes=1 << 30), replace(policy(tp="int4"), warmup_steps=1)):
        records = sensitivity_records(parallelism(chosen), *sequences())
        assert [(r["role"], r["layer"], r["codec"]) for r in records] == [(*place, PROBE.name) for place in PLACES]
        assert [r["error"] for r in records] == pytest.approx(expected, rel=1e-6)
    assert all(1e-3 < error < 0.5 for error in expected)
    assert len(set(expected)) == len(expected)


def test_errors_of_all_messages_add_up_in_squares_about():
    """Which is why the largest ones are worth protecting first."""
    exact, coded = gradient(Policy()), gradient(Policy(overrides=tuple(
        Override(role=role, layers=(ENDS, 0, 1), codec=PROBE) for role in TENSOR_ROLES
    )))  # fmt: skip
    alone = [r["error"] for r in sensitivity_records(parallelism(policy()), *sequences())]
    together = ((coded - exact).norm() / exact.norm()).item()
    assert together == pytest.approx(math.hypot(*alone), rel=0.3)


def test_looking_leaves_no_trace(tmp_path, data):
    """As depth records: no weight, seed of a stochastic codec, path or byte is another."""
    grid = {"parallel": VIRTUAL, "chosen": policy(tp=stochastic()), "steps": 4, "generate": 4}
    fit(tiny_run(data, **grid), tmp_path / "blind")
    fit(tiny_run(data, sensitivity=True, **grid), tmp_path / "seeing")
    blind, seeing = log_of(tmp_path / "blind"), log_of(tmp_path / "seeing")
    assert numbers(seeing) == numbers(blind)
    assert seeing.end["paths"] == blind.end["paths"]
    assert [r["tokens"] for r in seeing.of("generate")] == [r["tokens"] for r in blind.of("generate")]
    assert not blind.of("sensitivity")
    records = seeing.of("sensitivity")
    assert [(r["step"], r["role"], r["layer"]) for r in records] == [(4, *place) for place in PLACES]
    assert protected(records, 1.0) == {}
    assert protected(records, 0.0) == dict.fromkeys(TENSOR_ROLES, (ENDS, 0, 1))
    par = parallelism(policy(tp=stochastic()))
    par.step(*sequences(), 1)
    before = [(c.calls, c.messages, dict(c.paths)) for c in par.communicators.values()], par.meter.totals()
    sensitivity_records(par, *sequences())
    assert before == ([(c.calls, c.messages, dict(c.paths)) for c in par.communicators.values()], par.meter.totals())
    assert all(p.grad is None for _, p in par.named_parameters())


def test_real_ranks_are_refused(data):
    with pytest.raises(ConfigError, match="sensitivity with virtual_tp=1, 2 processes; need virtual_tp above 1"):
        tiny_run(data, parallel=Parallel(tp=2), sensitivity=True)
    with pytest.raises(ConfigError, match="virtual_tp=1, 1 processes; need virtual_tp above 1"):
        sensitivity_records(parallelism(policy(), Parallel()), *sequences())


def test_other_communicators_are_of_as_many_ranks():
    two, four = (parallelism(policy(), Parallel(virtual_tp=n)).modules[0].virtual_comm for n in (2, 4))
    with pytest.raises(ConfigError, match="communicators of 4 ranks in place of 2"), two.instead(four):
        pass

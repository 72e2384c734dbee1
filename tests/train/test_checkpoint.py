"""A checkpoint is whole, this run's, or an error; and what it restores is what was saved."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from taco.config import Data, Model, Run, Train, run_from_dict
from taco.train import checkpoint
from taco.train.checkpoint import CheckpointError
from taco.train.launch import World
from taco.train.optimizer import adamw

MODEL = Model(name="tiny", arch="gpt", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=64, max_seq=32)
RUN = Run(name="tiny-run", model=MODEL, data=Data(corpus="data/tiny", seq=16))
HERE = World()


def _trained(steps):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    optimizer = adamw(model.named_parameters(), Train())
    for _ in range(steps):
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _state(model, optimizer):
    weights = {f"model.{n}": p.detach() for n, p in model.named_parameters()}
    moments = checkpoint.optimizer_state(model.named_parameters(), optimizer)
    return weights | moments | checkpoint.rng_state(HERE)


def _saved(root, steps=(2,), **train):
    for step in steps:
        checkpoint.save(root, step, _state(*_trained(step)), replace(RUN, train=Train(**train)), HERE)
    return root / f"step-{steps[-1]:06d}"


def test_loading_restores_every_bit_and_the_next_step(tmp_path):
    model, optimizer = _trained(3)
    checkpoint.save(tmp_path, 3, _state(model, optimizer), RUN, HERE)
    noise = torch.randn(5)

    fresh, fresh_optimizer = _trained(0)
    state = _state(fresh, fresh_optimizer)
    checkpoint.load_(tmp_path, 3, state, HERE)
    checkpoint.set_rng_state(HERE, state)
    assert torch.equal(torch.randn(5), noise)
    for one, optim in ((model, optimizer), (fresh, fresh_optimizer)):
        one(torch.ones(2, 6)).square().sum().backward()
        optim.step()
    for (name, p), (_, q) in zip(model.named_parameters(), fresh.named_parameters(), strict=True):
        assert torch.equal(p, q), name


def test_newest_is_found_and_old_ones_go(tmp_path):
    assert checkpoint.newest(tmp_path / "none", RUN) is None
    _saved(tmp_path, (1, 2, 3))
    assert checkpoint.steps(tmp_path) == [2, 3]
    assert checkpoint.newest(tmp_path, RUN) == 3
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize(("keep", "kept"), [(1, [4]), (3, [2, 3, 4]), (9, [1, 2, 3, 4]), (0, [1, 2, 3, 4])])
def test_a_run_says_how_many_stay(tmp_path, keep, kept):
    _saved(tmp_path, (1, 2, 3, 4), keep_checkpoints=keep)
    assert checkpoint.steps(tmp_path) == kept


def test_a_step_that_is_not_there_is_refused_naming_those_around_it(tmp_path):
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*, which has none; need"):
        checkpoint.about(tmp_path, 7)
    _saved(tmp_path, range(10, 24), keep_checkpoints=0)
    with pytest.raises(CheckpointError, match=r"which has 10, 11, .*, 18, 19 and 4 more; need"):
        checkpoint.about(tmp_path, 7)
    assert run_from_dict(checkpoint.about(tmp_path, 12).config).model == MODEL


def test_unfinished_checkpoint_does_not_count(tmp_path):
    folder = _saved(tmp_path, (1, 2))
    folder.rename(folder.with_name("step-000002.tmp"))
    assert checkpoint.newest(tmp_path, RUN) == 1


def test_another_runs_checkpoint_is_refused_naming_the_difference(tmp_path):
    _saved(tmp_path)
    other = replace(RUN, train=Train(lr=0.5))
    with pytest.raises(CheckpointError, match=r"train\.lr: 0\.001 there, 0\.5 here"):
        checkpoint.newest(tmp_path, other)
    assert checkpoint.newest(tmp_path, RUN) == 2


@pytest.mark.parametrize("pattern", ["*.distcp", ".metadata"])
def test_truncated_checkpoint_is_refused(tmp_path, pattern):
    folder = _saved(tmp_path)
    file = next(iter(folder.glob(pattern)))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        checkpoint.newest(tmp_path, RUN)


def test_checkpoint_that_lost_a_file_is_refused(tmp_path):
    next(iter(_saved(tmp_path).glob("*.distcp"))).unlink()
    with pytest.raises(CheckpointError, match="None of"):
        checkpoint.newest(tmp_path, RUN)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"version": 1, "config": {}})])
def test_checkpoint_with_a_damaged_description_is_refused(tmp_path, text):
    (_saved(tmp_path) / "run.json").write_text(text)
    with pytest.raises(CheckpointError, match="need a complete checkpoint"):
        checkpoint.newest(tmp_path, RUN)


def test_checkpoint_of_another_layout_is_refused(tmp_path):
    file = _saved(tmp_path) / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"version": 0}))
    with pytest.raises(CheckpointError, match="version 0"):
        checkpoint.newest(tmp_path, RUN)


def test_checkpoint_without_a_tensor_is_refused(tmp_path):
    _saved(tmp_path)
    with pytest.raises(CheckpointError, match="does not load"):
        checkpoint.load_(tmp_path, 2, {"model.extra": torch.zeros(2)}, HERE)


def test_checkpoint_with_another_shape_is_refused(tmp_path):
    _saved(tmp_path)
    with pytest.raises(CheckpointError, match="does not load"):
        checkpoint.load_(tmp_path, 2, {"model.weight": torch.zeros(3, 7)}, HERE)

"""A run that starts from another's checkpoint has the numbers of one that went there by itself."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from distributed import RankError, run_ranks
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from train_cases import MODEL, fit, fit_ranks, log_of, numbers, stochastic, tiny_run, written

from taco.cli import BAD_INPUT, main
from taco.config import ConfigError, Override, Parallel, Policy, Run, run_from_dict, to_dict
from taco.recipes import policy, preset
from taco.train import checkpoint, fork
from taco.train.checkpoint import CheckpointError
from taco.train.data import prepare

PARENT, FORK = "tiny-run", "fork"
VIRTUAL = Parallel(virtual_tp=2)
EVERY_MESSAGE = Policy(tp_forward=stochastic(), tp_backward=stochastic())
# a warm-up of EVERY_MESSAGE that outlasts the step of the fork, then layers have codecs of their own
WARM = Policy(
    tp_forward=stochastic("int4"),
    tp_backward=stochastic("int6"),
    overrides=(Override(role="tp_forward", layers=(1,), codec=preset("int6")),),
    warmup_steps=7,
    warmup=stochastic(),
)


def fork_of(run: Run, step: int, *, chosen: Policy | None = None, name: str = FORK, **train) -> Run:
    """The run `name` from the checkpoint of `run` at `step`."""
    changed = replace(run.train, **{"keep_checkpoints": 2, **train}, from_run=run.name, from_step=step)
    return replace(run, name=name, policy=chosen or run.policy, train=changed)


def after(out: Path, step: int, name: str) -> list:
    """The numbers of a run's steps after `step`."""
    return [each for each in numbers(log_of(out, name)) if each[0] > step]


def state_of(out: Path, name: str) -> dict[str, torch.Tensor]:
    """Everything in the checkpoint of step 10."""
    dcp_to_torch_save(out / "checkpoints" / "test" / name / "step-000010", out / "state.pt")
    return torch.load(out / "state.pt")


def same_state(out: Path, *names: str) -> bool:
    """Whether the runs ended with equal bits."""
    first, second = (state_of(out, name) for name in names)
    assert first.keys() == second.keys()
    return all(torch.equal(first[key], second[key]) for key in first)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


CASES = {
    "plain": {},
    "accumulation": {"micro_batch": 2, "dtype": "bfloat16"},
    "virtual": {"parallel": VIRTUAL, "chosen": EVERY_MESSAGE},
    "warm-up": {"parallel": VIRTUAL, "chosen": WARM},
}


@pytest.mark.parametrize("case", CASES)
def test_with_its_parents_policy_a_fork_has_its_parents_bits(tmp_path, data, case):
    run = tiny_run(data, keep_checkpoints=0, **CASES[case])
    fit(run, tmp_path)
    assert fit(fork_of(run, 6), tmp_path) == 6
    assert after(tmp_path, 6, FORK) == after(tmp_path, 6, PARENT)
    assert same_state(tmp_path, FORK, PARENT)
    log = log_of(tmp_path, FORK)
    assert [(r["kind"], r["step"]) for r in log.records if r["kind"] != "eval"][:2] == [("fork", 6), ("step", 7)]
    assert [r["step"] for r in log.of("step")] == [7, 8, 9, 10]
    assert [r["step"] for r in log.of("eval")] == [10]
    (origin,) = log.of("fork")
    assert (origin["run"], run_from_dict(origin["config"])) == (PARENT, run)
    assert origin["written"] == checkpoint.about(tmp_path / "checkpoints" / "test" / PARENT, 6).written != ""
    assert log.end["val_loss"] == log_of(tmp_path).end["val_loss"]


@pytest.mark.parametrize("part", ["model.calls.", "optimizer."])
def test_comparison_sees_what_does_not_go_on(tmp_path, data, monkeypatch, part):
    """The comparison above can fail."""
    run = tiny_run(data, keep_checkpoints=0, parallel=VIRTUAL, chosen=EVERY_MESSAGE)
    fit(run, tmp_path)
    monkeypatch.setattr(
        fork, "held", lambda state, *_: {name: x for name, x in state.items() if not name.startswith(part)}
    )
    fit(fork_of(run, 6), tmp_path)
    assert after(tmp_path, 6, FORK) != after(tmp_path, 6, PARENT)
    assert not same_state(tmp_path, FORK, PARENT)


SWITCHED = {
    "none-int8": (policy(), replace(policy(tp="int8"), warmup_steps=6)),
    "none-stochastic": (policy(), replace(EVERY_MESSAGE, warmup_steps=6)),
    "stochastic-warm-up": (EVERY_MESSAGE, WARM),
}


@pytest.mark.parametrize("case", SWITCHED)
def test_a_switched_policy_is_a_warm_up_of_the_parents(tmp_path, data, case):
    before, warm = SWITCHED[case]
    run = tiny_run(data, keep_checkpoints=0, parallel=VIRTUAL, chosen=before)
    fit(run, tmp_path)
    chosen = warm if warm.warmup_steps > 6 else replace(warm, warmup_steps=0)
    fit(fork_of(run, 6, chosen=chosen), tmp_path)
    fit(replace(run, name="warm", policy=warm), tmp_path)
    assert after(tmp_path, 6, FORK) == after(tmp_path, 6, "warm") != after(tmp_path, 6, PARENT)
    assert same_state(tmp_path, FORK, "warm")


def test_a_codecs_state_goes_on_where_the_parent_had_the_codec():
    """Whatever either calls it; in another role it is another."""
    own, other = "model.calls.pp0.tp_forward", "model.calls.pp0.tp_forward.int8-stochastic"
    assert fork.held({own: 1}, WARM, EVERY_MESSAGE) == {other: 1}
    assert fork.held({other: 1}, EVERY_MESSAGE, WARM) == {own: 1}
    assert fork.held({own: 1}, EVERY_MESSAGE, WARM) == {}
    assert fork.held({own: 1}, Policy(tp_backward=stochastic()), EVERY_MESSAGE) == {}
    last = {"model.dp_weight.block0": 1, "model.dp_weight.block0.condition": 2, "optimizer.x.step": 3}
    assert fork.held(last, policy(dp="sdp4bit"), policy(dp="sdp4bit", tp="int8")) == last
    assert fork.held(last, policy(dp="int8"), policy(dp="sdp4bit")) == {"optimizer.x.step": 3}


RANKS = {
    "tp2": (Parallel(tp=2), EVERY_MESSAGE, EVERY_MESSAGE),
    "dp2-differences": (Parallel(dp=2), policy(dp="sdp4bit"), policy(dp="sdp4bit")),
    "dp2-switched": (Parallel(dp=2), policy(), policy(dp="sdp4bit")),
    "pp2-switched": (
        Parallel(pp=2, microbatches=2),
        policy(),
        Policy(pp_forward=stochastic(), pp_backward=preset("int8")),
    ),
}


@pytest.mark.parametrize("case", RANKS)
def test_ranks_fork(tmp_path, data, case):
    parallel, before, chosen = RANKS[case]
    run = tiny_run(data, keep_checkpoints=0, parallel=parallel, chosen=before, eval_every=0)
    run_ranks(2, fit_ranks, run, tmp_path, 0)
    assert run_ranks(2, fit_ranks, fork_of(run, 6, chosen=chosen), tmp_path, 0) == [6, 6]
    assert (after(tmp_path, 6, FORK) == after(tmp_path, 6, PARENT)) == (before == chosen)


def test_every_rank_says_what_is_missing(tmp_path, data):
    run = tiny_run(data, parallel=Parallel(tp=2))
    with pytest.raises(RankError) as error:
        run_ranks(2, fit_ranks, fork_of(run, 6), tmp_path, 0)
    assert all("CheckpointError: got no checkpoint of step 6" in error.value.errors[rank] for rank in (0, 1))


def test_a_fork_goes_on_from_its_own_checkpoint_and_until_it_has_one_from_its_parents(tmp_path, data):
    run = tiny_run(data, keep_checkpoints=0, parallel=VIRTUAL, chosen=EVERY_MESSAGE)
    fit(run, tmp_path)
    other = fork_of(run, 3)
    assert fit(other, tmp_path, stop=5) == 3
    assert fit(other, tmp_path, stop=8) == 3
    shutil.rmtree(tmp_path / "checkpoints" / "test" / PARENT)
    assert fit(other, tmp_path) == 6
    log = log_of(tmp_path, FORK)
    assert after(tmp_path, 3, FORK) == after(tmp_path, 3, PARENT)
    assert [r["step"] for r in log.of("step")] == list(range(4, 11))
    assert [(r["kind"], r["step"]) for r in log.records if r["kind"] in ("fork", "resume")] == [
        ("fork", 3),
        ("resume", 6),
    ]
    assert fit(other, tmp_path) is None


def test_a_forced_fork_starts_from_its_parents_checkpoint_again(tmp_path, data):
    run = tiny_run(data, keep_checkpoints=0)
    fit(run, tmp_path)
    fit(fork_of(run, 3), tmp_path, stop=8)
    assert fit(fork_of(run, 3), tmp_path, force=True) == 3
    assert after(tmp_path, 3, FORK) == after(tmp_path, 3, PARENT)
    changed = fork_of(run, 6, lr=0.5)
    log_of(tmp_path, FORK).path.unlink()
    with pytest.raises(CheckpointError, match=r"train\.lr: 0\.001 there, 0\.5 here"):
        fit(changed, tmp_path)
    assert fit(changed, tmp_path, restart=True) == 6
    assert checkpoint.steps(tmp_path / "checkpoints" / "test" / FORK) == [9, 10]


def test_a_schedule_may_change(tmp_path, data):
    run = tiny_run(data, keep_checkpoints=0, parallel=VIRTUAL)
    fit(run, tmp_path)
    changes = {"steps": 12, "lr": 5e-4, "micro_batch": 2, "beta2": 0.99, "eval_every": 4, "checkpoint_every": 0}
    other = replace(fork_of(run, 9, **changes), parallel=replace(VIRTUAL, virtual_sum="reversed", node_size=1))
    assert fit(other, tmp_path) == 9
    assert [r["step"] for r in log_of(tmp_path, FORK).of("step")] == [10, 11, 12]


DIFFERENT = {
    "model.ffn: 64 there, 128 here": lambda run: {"model": replace(MODEL, ffn=128)},
    "data.seq: 16 there, 8 here": lambda run: {"data": replace(run.data, seq=8)},
    "train.batch: 4 there, 2 here; train.seed: 1 there, 2 here": lambda run: {
        "train": replace(run.train, batch=2, seed=2)
    },
    "parallel.virtual_tp: 1 there, 2 here": lambda run: {"parallel": VIRTUAL},
}


@pytest.mark.parametrize("text", DIFFERENT)
def test_what_has_to_be_the_same_is_named_before_anything_is_removed(tmp_path, data, text):
    run = tiny_run(data, steps=4)
    fit(run, tmp_path)
    fit(fork_of(run, 3), tmp_path)
    before = contents(tmp_path)
    other = fork_of(replace(run, **DIFFERENT[text](run)), 3)
    with pytest.raises(CheckpointError) as error:
        fit(other, tmp_path, force=True)
    assert f"differs ({text})" in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("file", "damage", "text"),
    [
        ("", None, "no checkpoint of step 3 in .*tiny-run, which has 4; need one that is there; because"),
        ("*.distcp", lambda found: found[:-1], r"step-000003 truncated .* need every file whole; because .* a part$"),
        ("run.json", lambda found: b"{", "step-000003 without a readable run.json"),
        ("run.json", lambda found: found.replace(b'"seq"', b'"length"'), "whose configuration is none"),
        (".metadata", lambda found: bytes(len(found)), "step-000003 that does not load"),
    ],
)
def test_a_parent_that_is_not_whole_is_an_error_that_removes_nothing(tmp_path, data, file, damage, text):
    run = tiny_run(data, steps=4)
    fit(run, tmp_path)
    fit(fork_of(run, 3), tmp_path)
    folder = tmp_path / "checkpoints" / "test" / PARENT / "step-000003"
    if not file:
        shutil.rmtree(folder)
    for path in folder.glob(file) if file else ():
        path.write_bytes(damage(path.read_bytes()))
    before = contents(tmp_path)
    for again in ({"force": True}, {"restart": True}):
        with pytest.raises(CheckpointError, match=text):
            fit(fork_of(run, 3, lr=0.5), tmp_path, **again)
        assert contents(tmp_path) == before


def test_tokens_that_the_parent_did_not_read_are_refused(tmp_path, data):
    shutil.copytree(data, tmp_path / "data")
    run = tiny_run(tmp_path / "data", steps=4)
    fit(run, tmp_path)
    shutil.rmtree(tmp_path / "data")
    text = tmp_path / "text.txt"
    text.write_text("Another text that is long enough to train on.\n" * 200)
    prepare([text], tmp_path / "data", held_out=[shutil.copy(text, tmp_path / "held.txt")])
    with pytest.raises(CheckpointError, match=r"has changed since .*tiny-run\.jsonl \(corpus\.splits\.train"):
        fit(fork_of(run, 3), tmp_path)
    assert not list(tmp_path.rglob("fork*"))
    log_of(tmp_path).path.unlink()  # then nothing says what it read
    assert fit(fork_of(run, 3), tmp_path) == 3


def test_a_parent_may_be_of_before_these_fields_existed(tmp_path, data):
    run = tiny_run(data, steps=4)
    fit(run, tmp_path)
    for path in (tmp_path / "checkpoints").rglob("run.json"):
        about = json.loads(path.read_text())
        for field in ("keep_checkpoints", "from_run", "from_step"):
            del about["config"]["train"][field]
        path.write_text(json.dumps(about))
    assert fit(fork_of(run, 3), tmp_path) == 3
    assert log_of(tmp_path, FORK).of("fork")[0]["config"] == to_dict(run)


def test_a_step_before_the_fork_is_not_captured(tmp_path, data):
    run = fork_of(tiny_run(data, parallel=VIRTUAL), 6)
    with pytest.raises(ConfigError, match="--capture-step 6; need a step from 7 to 10"):
        fit(run, tmp_path, capture=tmp_path / "c", capture_steps=(6,))


def test_the_command_line_names_the_fork(tmp_path, data, capsys):
    """As the README has it; with the parent's own name it says what is missing."""
    run = tiny_run(data, parallel=VIRTUAL, steps=4)
    fit(run, tmp_path)
    place = ["--source", "test", "--out", str(tmp_path), "--device", "cpu"]
    chosen = ["policy.tp_forward=int8", f"train.from_run={PARENT}", "train.from_step=3"]
    command = ["train", written(run, tmp_path), *place, *(part for text in chosen for part in ("--set", text))]
    assert main(command) == BAD_INPUT
    assert "need another name for this run (--set name=NEW)" in capsys.readouterr().err
    assert main([*command, "--set", "name=new"]) == 0
    assert "new: goes on after step 3 of tiny-run" in capsys.readouterr().err
    assert [r["step"] for r in log_of(tmp_path, "new").of("step")] == [4]

"""The accuracy runs: arms are what their names say, controls compress nothing, old logs keep their recipes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from taco.config import NONE, ConfigError, run_from_dict
from taco.log import read
from taco.recipes import ARMS, DEFAULT, EXPERIMENTS, PRESETS, QUEUE, RUNS, accuracy, guarded, preset
from taco.recipes.arms import SPLITS, STOCHASTIC, in_steps

LOGGED = sorted((Path(__file__).parents[2] / "results" / "logged").glob("*-s[0-9].jsonl"))


def payload_bits(codec) -> int:
    return int(codec.payload[-1])


def test_arms_are_named_after_what_they_send():
    for name, chosen in ARMS.items():
        if name in PRESETS:
            assert chosen.tp_forward == chosen.tp_backward == preset(name)
    for name, (forward, backward) in SPLITS.items():
        assert name == f"{forward}-{backward}"
        assert (ARMS[name].tp_forward, ARMS[name].tp_backward) == (preset(forward), preset(backward))
    for name in STOCHASTIC:
        assert ARMS[name].tp_forward.rounding == "stochastic"
        assert ARMS[name].tp_forward.payload == preset(name.removesuffix("-stochastic")).payload
    assert ARMS["int8-unrotated"].tp_backward.rotation == "none"
    clipped = ARMS["int4-clip"].tp_forward
    assert ARMS["int4-clip"].tp_backward == clipped
    assert replace(clipped, name="int4", clip=1.0) == preset("int4") != replace(clipped, name="int4")
    assert ARMS["int8-int4-stochastic"].tp_backward.rounding == "stochastic"


def test_arms_with_exceptions_are_their_base_but_for_those():
    ends, warm = ARMS["int4-first-last"], ARMS["int6-int4-warm"]
    assert replace(ends, overrides=()) == ARMS["int4"]
    for role in ("tp_forward", "tp_backward"):
        names = [ends.codec(role, f"transformer.h.{layer}.mlp").name for layer in range(12)]
        assert names == ["int8", "int8", *["int4"] * 8, "int8", "int8"]
    assert replace(warm, warmup_steps=0, warmup=NONE) == ARMS["int6-int4"]
    assert warm.warmup == preset("int8")
    stages = {stage.name: stage.runs for stage in QUEUE}
    for stages_of, suffix, steps in (("pairs looks", "", 20), ("screen screen-rest", "-33m", 200)):
        runs = {run.name: run for stage in stages_of.split() for run in stages[stage]}
        assert runs[f"gpt-125m-vtp4-int6-int4-warm{suffix}-s1"].policy == replace(warm, warmup_steps=steps)
        assert runs[f"gpt-125m-vtp4-int4-first-last{suffix}-s1"].policy == ends


def test_a_warm_up_lasts_its_share_of_a_run_and_no_other_policy_gets_one():
    assert in_steps(ARMS["int6-int4-warm"], 6104).warmup_steps == 610
    assert in_steps(ARMS["int6-int4-warm"], 5).warmup_steps == 1
    assert in_steps(ARMS["int4-then-int8"], 2000).warmup_steps == 1200
    assert in_steps(ARMS["int6-then-int8"], 6104).warmup_steps == 5493
    steady = [chosen for chosen in ARMS.values() if chosen.warmup_steps == 0]
    assert len(steady) == len(ARMS) - 3
    assert all(in_steps(chosen, 50) == chosen for chosen in steady)


def test_arms_that_start_with_fewer_bits_end_with_the_codec_they_are_named_after():
    for name in ("int4-then-int8", "int6-then-int8"):
        first, last = name.split("-then-")
        for role in ("tp_forward", "tp_backward"):
            assert ARMS[name].codec(role, warming=True) == preset(first)
            assert ARMS[name].codec(role) == preset(last)


def test_guarded_arms_spend_bits_on_the_same_messages():
    for name, base in (("int4-guarded", "int4"), ("int6-guarded", "int6"), ("int6-int4-guarded", "int6-int4")):
        assert replace(ARMS[name], overrides=()) == ARMS[base]
        assert ARMS[name].overrides == ARMS["int4-guarded"].overrides
    embedding, last = (
        ARMS["int6-guarded"].codec("tp_forward", block) for block in ("transformer.wte", "transformer.h.11.mlp")
    )
    assert (embedding, last) == (preset("int8"), preset("int6"))


def test_each_step_from_int6_to_its_guarded_form_protects_more():
    protected = []
    for name in ("int6", "int6-ends", "int6-first", "int6-guarded"):
        assert replace(ARMS[name], overrides=()) == ARMS["int6"]
        protected.append({(each.role, layer) for each in ARMS[name].overrides for layer in each.layers})
    assert all(fewer < more for fewer, more in pairwise(protected))


def test_what_is_recommended_is_what_was_measured():
    assert ARMS["int8"] == DEFAULT
    assert guarded("int6") == ARMS["int6-guarded"]
    with pytest.raises(ConfigError, match="'int8'; need"):
        guarded("int8")


def test_one_way_arms_leave_the_other_direction_alone():
    assert (ARMS["int6-forward"].tp_forward, ARMS["int6-forward"].tp_backward) == (preset("int6"), NONE)
    assert (ARMS["int6-backward"].tp_forward, ARMS["int6-backward"].tp_backward) == (NONE, preset("int6"))


def test_every_pair_of_directions_that_decides_the_bits_is_there():
    bits = {(8, 8), (8, 6), (8, 4), (6, 6), (6, 4), (4, 8)}
    names = ("int8", "int6", *SPLITS)
    assert {(payload_bits(ARMS[n].tp_forward), payload_bits(ARMS[n].tp_backward)) for n in names} == bits


def test_compressed_runs_and_their_baseline_differ_in_name_and_policy_alone():
    for stage in QUEUE:
        for run in stage.runs:
            if run.policy.tp_forward == NONE or run.name.startswith("gpt-mini"):
                continue
            twins = [r for r in stage.runs if r.policy == ARMS["none"]] or list(RUNS.values())
            same = [r for r in twins + list(RUNS.values()) if r.policy == ARMS["none"]]
            shared = [r for r in same if all(getattr(r, k) == getattr(run, k) for k in ("model", "parallel", "data"))]
            assert any(r.train == run.train for r in shared), run.name


def test_controls_compress_nothing_and_share_data_and_schedule_with_a_baseline():
    names = [run.name for run in QUEUE[0].runs]
    assert names[:3] == [f"gpt-125m-vtp4-none-s{seed}" for seed in accuracy.SEEDS]
    for run in QUEUE[0].runs[3:]:
        base = RUNS[f"gpt-125m-vtp4-none-s{run.train.seed}"]
        assert run.policy == base.policy == ARMS["none"]
        assert (run.model, run.data, run.train) == (base.model, base.data, base.train)
        assert run.parallel != base.parallel
    grids = {(run.parallel.virtual_tp, run.parallel.virtual_sum) for run in QUEUE[0].runs[3:]}
    assert grids == {(1, "once"), (2, "once"), (3, "once"), (4, "reversed"), (4, "stepwise")}


def test_budgets_are_the_tokens_their_names_say():
    for budget, tokens in ((accuracy.SCREEN, 33e6), (accuracy.FINAL, 100e6), (accuracy.CODE_SCREEN, 33e6)):
        assert budget.train.steps * budget.train.batch * budget.data.seq == pytest.approx(tokens, rel=0.01)
    assert {accuracy.FINAL.data.corpus, accuracy.FINAL.data.other} == {accuracy.ENGLISH, accuracy.CODE}
    assert accuracy.CODE_FINAL.data.other == accuracy.ENGLISH


FORKS = [stage for stage in QUEUE if stage.name.startswith("forks")]


@pytest.mark.parametrize("stage", FORKS, ids=lambda stage: stage.name)
def test_forks_leave_an_uncompressed_run_that_keeps_its_last_checkpoint_of_the_first_half(stage):
    forks = [run for run in stage.runs if run.train.from_run]
    assert forks[0].policy == ARMS["none"]
    for run in forks:
        parent, every = RUNS[run.train.from_run], run.train.checkpoint_every
        assert (parent.policy, parent.train.from_run, parent.train.keep_checkpoints) == (ARMS["none"], "", 0)
        assert run.train.from_step % every == 0
        assert 0 <= parent.train.steps // 2 - run.train.from_step < every
        shared = replace(run.train, from_run="", from_step=0, keep_checkpoints=0)
        assert (run.model, run.data, shared) == (parent.model, parent.data, parent.train)
        assert stage.runs.index(parent) < stage.runs.index(run)
    at_first = [name for name, chosen in ARMS.items() if chosen.warmup_steps]
    assert not [run.name for run in forks if any(f"-{name}-" in run.name for name in at_first)]


def test_forks_are_of_three_seeds_both_architectures_and_both_texts():
    runs = {stage.name: [run for run in stage.runs if run.train.from_run] for stage in FORKS}
    assert all({1, 2, 3} <= {run.train.seed for run in runs[name]} for name in ("forks", "forks-final"))
    assert {run.model.arch for run in runs["forks-qwen"]} == {"qwen"}
    assert {run.data.corpus for run in runs["forks-code"]} == {accuracy.CODE}
    assert {run.train.steps - run.train.from_step for run in runs["forks-final"]} == {3104}


def test_probes_start_where_forks_start():
    (stage,) = (stage for stage in QUEUE if stage.name == "sensitivity")
    for run in stage.runs:
        suffix = "33m" if run.model.name == "gpt-125m" else "16m"
        fork = RUNS[f"{run.model.name}-vtp4-none-{suffix}-fork-s{run.train.seed}"]
        assert run.train.sensitivity
        assert run.train.steps == run.train.from_step + 10
        assert (run.train.from_run, run.train.from_step) == (fork.train.from_run, fork.train.from_step)


def test_the_queue_is_made_of_runs_of_the_accuracy_experiment():
    queued = {run.name for stage in QUEUE for run in stage.runs}
    accuracy_runs = EXPERIMENTS["accuracy"]
    assert queued <= {*accuracy_runs.runs("fresh"), *accuracy_runs.optional("fresh")}
    assert accuracy_runs.optional("mini") == ()
    assert not {*accuracy_runs.optional("logged")} & {*accuracy_runs.logs("logged")}
    assert all(RUNS[run.name] == run for stage in QUEUE for run in stage.runs)


@pytest.mark.parametrize("path", LOGGED, ids=lambda path: path.stem)
def test_a_kept_log_still_is_the_log_of_its_recipe(path: Path):
    assert run_from_dict(read(path).header["config"]) == RUNS[path.stem]


def test_two_runs_of_one_name_are_refused():
    run = next(iter(RUNS.values()))
    assert accuracy.unique([run, run]) == (run,)
    other = RUNS["gpt-125m-vtp4-int8-s1"]
    with pytest.raises(ValueError, match="twice"):
        accuracy.unique([run, type(run)(name=run.name, model=other.model)])

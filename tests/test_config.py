"""A configuration that exists is valid; everything else says what was got, what is needed, and why."""

from __future__ import annotations

import dataclasses
import json

import pytest
from config_cases import TINY, tiny_run

from taco.config import (
    AsymmetricCodec,
    CastCodec,
    ConfigError,
    Data,
    GroupCodec,
    Parallel,
    Policy,
    TahQuantCodec,
    TensorCodec,
    Train,
    codec_from_dict,
    completed,
    run_from_dict,
    to_dict,
)
from taco.recipes import EXPERIMENTS, PRESETS, RUNS, policy, preset


def test_every_recipe_survives_json():
    for run in RUNS.values():
        assert run_from_dict(json.loads(json.dumps(to_dict(run)))) == run


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name):
    assert codec_from_dict(json.loads(json.dumps(to_dict(preset(name))))) == preset(name)
    assert preset(name).name == name


def test_what_was_written_before_a_field_existed_has_its_default():
    run = tiny_run(policy=policy(tp="int4"))
    old = json.loads(json.dumps(to_dict(run)))
    for role in ("tp_forward", "tp_backward"):
        assert old["policy"][role].pop("difference") is False
    assert run_from_dict(old) == run
    assert completed(old) == completed(to_dict(run)) == to_dict(run)
    for other in ({"steps": 4}, None, [1], old | {"name": ""}):
        assert completed(other) == other


def test_a_clip_survives_json():
    codec = dataclasses.replace(preset("int4"), name="clipped", clip=0.95)
    assert codec_from_dict(json.loads(json.dumps(to_dict(codec)))) == codec
    assert dataclasses.replace(codec, clip=1) == dataclasses.replace(codec, clip=1.0)
    old = to_dict(preset("int4"))
    assert old.pop("clip") == 1.0
    assert codec_from_dict(old) == preset("int4")


def test_every_experiment_names_known_runs():
    for experiment in EXPERIMENTS.values():
        assert {*experiment.mini, *experiment.full} <= set(RUNS)


def test_configurations_cannot_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny_run().name = "other"


BAD = {
    "payload": lambda: GroupCodec(name="x", payload="int7"),
    "rotation": lambda: GroupCodec(name="x", rotation="random"),
    "group=96": lambda: GroupCodec(name="x", group=96),
    "group=8": lambda: GroupCodec(name="x", group=8),
    "rotation_size=256": lambda: GroupCodec(name="x", group=128, rotation_size=256),
    "intra_payload": lambda: GroupCodec(name="x", intra_payload="int5"),
    "clip=0": lambda: GroupCodec(name="x", clip=0),
    "clip=-0.5": lambda: GroupCodec(name="x", clip=-0.5),
    "clip=1.01": lambda: GroupCodec(name="x", clip=1.01),
    "clip=nan": lambda: GroupCodec(name="x", clip=float("nan")),
    "clip=True": lambda: GroupCodec(name="x", clip=True),
    "clip='0.9'": lambda: GroupCodec(name="x", clip="0.9"),
    "clip=0.9 with payload='e4m3'": lambda: GroupCodec(name="x", payload="e4m3", clip=0.9),
    "clip=0.9 with payload='e5m2'": lambda: GroupCodec(name="x", payload="e5m2", clip=0.9),
    "bits=3": lambda: AsymmetricCodec(name="x", bits=3),
    "tile=16": lambda: TahQuantCodec(name="x", tile=16),
    "low_fraction": lambda: TahQuantCodec(name="x", low_fraction=1.5),
    "payload='int8'": lambda: CastCodec(name="x", payload="int8"),
    "payload='int4'": lambda: TensorCodec(name="x", payload="int4"),
    "tp_forward='int8'": lambda: Policy(tp_forward="int8"),
    "without difference": lambda: Policy(tp_forward=preset("sdp4bit-weight")),
    "min_bytes=-1": lambda: Policy(min_bytes=-1),
    "all_reduce='ring'": lambda: Policy(all_reduce="ring"),
    "tp=0": lambda: Parallel(tp=0),
    "tp=True": lambda: Parallel(tp=True),
    "virtual_tp=2 with tp=2": lambda: Parallel(tp=2, virtual_tp=2),
    "virtual_sum='other'": lambda: Parallel(virtual_tp=2, virtual_sum="other"),
    "virtual_sum='reversed' without virtual ranks": lambda: Parallel(virtual_sum="reversed"),
    "virtual_sum='reversed' with a tensor-parallel codec": lambda: tiny_run(
        parallel=Parallel(virtual_tp=2, virtual_sum="reversed"), policy=policy(tp_backward="int8")
    ),
    "microbatches >= 4": lambda: Parallel(pp=4, microbatches=2),
    "microbatches=3 with pp=2 and the interleaved schedule": lambda: Parallel(
        pp=2, microbatches=3, schedule="interleaved"
    ),
    "schedule": lambda: Parallel(schedule="gpipe"),
    "heads to divide hidden": lambda: dataclasses.replace(TINY, heads=5, kv_heads=5),
    "kv_heads to divide heads": lambda: dataclasses.replace(TINY, arch="qwen", kv_heads=3),
    "grouped-query": lambda: dataclasses.replace(TINY, kv_heads=2),
    "arch='bert'": lambda: dataclasses.replace(TINY, arch="bert"),
    "channels per head": lambda: dataclasses.replace(TINY, arch="qwen", hidden=12),
    "rope_theta=0": lambda: dataclasses.replace(TINY, rope_theta=0.0),
    "norm_eps=-1": lambda: dataclasses.replace(TINY, norm_eps=-1.0),
    "run name '../x'": lambda: tiny_run(name="../x"),
    "run name ''": lambda: tiny_run(name=""),
    "run name '..'": lambda: tiny_run(name=".."),
    "seq=1": lambda: Data(seq=1),
    "steps=0": lambda: Train(steps=0),
    "keep_checkpoints=-1": lambda: Train(keep_checkpoints=-1),
    "from_step=-1": lambda: Train(from_run="other", from_step=-1),
    "from_run='other' with from_step=0": lambda: Train(from_run="other"),
    "from_run='' with from_step=3": lambda: Train(from_step=3),
    "from_step=5 of steps=5": lambda: Train(from_run="other", from_step=5, steps=5),
    "from_run '../x'": lambda: Train(from_run="../x", from_step=3),
    "from_run='r' of the run called so": lambda: tiny_run(train=Train(from_run="r", from_step=3)),
    "lr=nan": lambda: Train(lr=float("nan")),
    "clip=inf": lambda: Train(clip=float("inf")),
    "min_lr=-1": lambda: Train(min_lr=-1.0),
    "weight_decay=nan": lambda: Train(weight_decay=float("nan")),
    "beta1=1.0": lambda: Train(beta1=1.0),
    "beta2=-0.5": lambda: Train(beta2=-0.5),
    "lr=0": lambda: Train(lr=0.0),
    "dtype='float16'": lambda: Train(dtype="float16"),
    "hidden=32 with tensor parallel size 3": lambda: tiny_run(parallel=Parallel(tp=3)),
    "heads=4 with tensor parallel size 8": lambda: tiny_run(parallel=Parallel(virtual_tp=8)),
    "at least 4 layers": lambda: tiny_run(parallel=Parallel(pp=4, microbatches=4)),
    "at least 8 layers": lambda: tiny_run(parallel=Parallel(pp=4, microbatches=4, schedule="interleaved")),
    "seq <= 32": lambda: tiny_run(data=Data(seq=64)),
    "equal slice of the sequence": lambda: tiny_run(data=Data(seq=15), parallel=Parallel(tp=2, sequence_parallel=True)),
    "batch to be a multiple of 3": lambda: tiny_run(parallel=Parallel(dp=3)),
    "equal microbatches": lambda: tiny_run(train=Train(batch=8, micro_batch=3)),
    "generate=4 with pp=2": lambda: tiny_run(parallel=Parallel(pp=2, microbatches=2), train=Train(generate=4)),
    "33 tokens with max_seq=32": lambda: tiny_run(train=Train(generate=17)),
    "generate=-1": lambda: Train(generate=-1),
    "in microbatches=3": lambda: tiny_run(parallel=Parallel(pp=2, microbatches=3)),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_configuration_says_got_need_why(text):
    with pytest.raises(ConfigError) as error:
        BAD[text]()
    message = str(error.value)
    assert text in message
    assert message.startswith("got ")
    assert "; need " in message
    assert "; because " in message


FIELDS = {
    "unknown field grup in GroupCodec": ("policy", "tp_forward", {"type": "GroupCodec", "name": "x", "grup": 64}),
    "codec type=None": ("policy", "tp_forward", {"name": "x"}),
    "unknown field tp_foward in policy": ("policy", "tp_foward", {"type": "NoCodec"}),
    "unknown field stepz in train": ("train", "stepz", 3),
    "train.steps='3'": ("train", "steps", "3"),
    "train.lr='fast'": ("train", "lr", "fast"),
    "parallel.sequence_parallel='false'": ("parallel", "sequence_parallel", "false"),
    "parallel.tp=2.0": ("parallel", "tp", 2.0),
}


@pytest.mark.parametrize("text", FIELDS)
def test_misspelt_or_mistyped_field_of_a_file_is_refused(text):
    part, field, value = FIELDS[text]
    data = to_dict(tiny_run())
    data[part][field] = value
    with pytest.raises(ConfigError, match="need") as error:
        run_from_dict(data)
    assert text in str(error.value)


@pytest.mark.parametrize("data", [[], {"name": "r"}, {"name": "r", "model": {"name": "m"}}, {"name": "r", "model": 3}])
def test_incomplete_run_is_refused(data):
    with pytest.raises(ConfigError, match="need"):
        run_from_dict(data)


def test_unknown_preset_lists_the_known_ones():
    with pytest.raises(ConfigError, match="sdp4bit-gradient"):
        preset("tacco")


def test_a_policy_takes_codecs_of_ones_own():
    mine = GroupCodec(name="mine", payload="int4", group=64)
    chosen = policy(tp=mine, pp_backward="int8")
    assert (chosen.tp_forward, chosen.tp_backward, chosen.pp_backward) == (mine, mine, preset("int8"))


def test_a_misspelt_role_is_named():
    with pytest.raises(ConfigError, match=r"role tp_foward; need one of tp_forward, "):
        policy(tp_foward="int8")

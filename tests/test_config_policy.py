"""Policies of layers and warm-ups: which codec a message has, and what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from config_cases import tiny_run

from taco.config import (
    ENDS,
    NONE,
    ConfigError,
    GroupCodec,
    Override,
    Parallel,
    Policy,
    Train,
    block_of,
    run_from_dict,
    to_dict,
)
from taco.recipes import policy, preset


def _override(**changes) -> Override:
    return Override(**{"role": "tp_forward", "layers": (0,), "codec": preset("int8")} | changes)


BAD = {
    "role='dp_gradient'; need one of tp_forward, tp_backward": lambda: _override(role="dp_gradient"),
    "layers=(); need a tuple of at least one": lambda: _override(layers=()),
    "layers=[1]": lambda: _override(layers=[1]),
    "layers[1]=-2": lambda: _override(layers=(0, -2)),
    "codec='int8'": lambda: _override(codec="int8"),
    "codec='sdp4bit-weight'; need a codec without difference": lambda: _override(codec=preset("sdp4bit-weight")),
    "overrides=[]": lambda: Policy(overrides=[]),
    "tp_forward overridden twice in layer 1, 3": lambda: Policy(
        overrides=(_override(layers=(0, 1, 3)), _override(layers=(3, 1)))
    ),
    "tp_forward of layer 1, 2 overridden with its own 'int8'; need another codec": lambda: Policy(
        tp_forward=preset("int8"), overrides=(_override(layers=(1, 2)),)
    ),
    "different codecs of tp_forward called int8": lambda: Policy(
        tp_forward=preset("int4"),
        overrides=(_override(), _override(layers=(1,), codec=GroupCodec(name="int8", payload="int6"))),
    ),
    "warmup_steps=-1": lambda: Policy(tp_forward=preset("int4"), warmup_steps=-1),
    "warmup='int8'; need a Codec": lambda: Policy(tp_forward=preset("int4"), warmup_steps=1, warmup="int8"),
    "warmup='int8' with warmup_steps=0": lambda: Policy(tp_forward=preset("int4"), warmup=preset("int8")),
    "warmup_steps=3 of 'none', which no other codec follows": lambda: Policy(
        dp_gradient=preset("int8"), warmup_steps=3
    ),
    "warmup_steps=2 of 'int8', which no other codec follows": lambda: Policy(
        tp_forward=preset("int8"), warmup_steps=2, warmup=preset("int8")
    ),
    "tp_forward overridden in layer 2, 5; need layers of the model, 0 to 1": lambda: tiny_run(
        policy=Policy(overrides=(_override(layers=(0, 2, 5)),))
    ),
    "virtual_sum='stepwise' with a tensor-parallel codec": lambda: tiny_run(
        parallel=Parallel(virtual_tp=2, virtual_sum="stepwise"), policy=Policy(overrides=(_override(),))
    ),
}


@pytest.mark.parametrize("text", BAD)
def test_bad_policy_says_got_need_why(text):
    with pytest.raises(ConfigError) as error:
        BAD[text]()
    message = str(error.value)
    assert text in message
    assert message.startswith("got ")
    assert "; need " in message
    assert "; because " in message


def test_layers_survive_json_and_older_runs_have_none():
    run = tiny_run(policy=Policy(tp_forward=preset("int4"), overrides=(_override(layers=(1, 0)),)))
    data = json.loads(json.dumps(to_dict(run)))
    assert data["policy"]["overrides"][0]["layers"] == [1, 0]
    assert run_from_dict(data) == run_from_dict(to_dict(run)) == run
    del data["policy"]["overrides"], data["policy"]["warmup_steps"], data["policy"]["warmup"]
    assert run_from_dict(data).policy == Policy(tp_forward=preset("int4"))


OVERRIDES = {
    "policy.overrides with 3": [3],
    "policy.overrides without layers": [{"role": "tp_forward", "codec": {"type": "NoCodec", "name": "none"}}],
    "unknown field layer in policy.overrides": [{"role": "tp_forward", "layer": 3}],
    "layers=3": [{"role": "tp_forward", "layers": 3, "codec": {"type": "NoCodec", "name": "none"}}],
    "layers[0]='0'": [{"role": "tp_forward", "layers": ["0"], "codec": {"type": "NoCodec", "name": "none"}}],
    "overrides={'role': 'tp_forward'}": {"role": "tp_forward"},
}


@pytest.mark.parametrize("text", OVERRIDES)
def test_bad_layers_are_refused(text):
    data = to_dict(tiny_run())
    data["policy"]["overrides"] = OVERRIDES[text]
    with pytest.raises(ConfigError, match="need") as error:
        run_from_dict(data)
    assert text in str(error.value)


def test_a_module_lies_in_the_block_of_the_first_number_in_its_name():
    names = ("transformer.h.3.attn", "model.layers.12.mlp.experts.4", "0", "transformer.wte", "lm_head", "")
    assert [block_of(name) for name in names] == [3, 12, 0, None, None, None]


def test_a_warm_up_survives_json():
    run = tiny_run(policy=Policy(tp_backward=preset("int4"), warmup_steps=7, warmup=preset("int8")))
    assert run_from_dict(json.loads(json.dumps(to_dict(run)))) == run


def test_a_warm_up_changes_what_is_compressed_and_nothing_else():
    int8, int6, int4 = map(preset, ("int8", "int6", "int4"))
    overrides = (_override(role="tp_backward", layers=(0,), codec=int6), _override(layers=(1,), codec=NONE))
    chosen = Policy(tp_forward=int8, pp_forward=int4, warmup_steps=3, warmup=int8, overrides=overrides)
    assert [chosen.warming(step) for step in (1, 3, 4)] == [True, True, False]
    names = ("transformer.h.0.attn", "transformer.h.1.attn", "lm_head")
    for warming, backward in ((True, int8), (False, int6)):
        assert [chosen.codec("tp_forward", name, warming=warming) for name in names] == [int8, NONE, int8]
        assert [chosen.codec("tp_backward", name, warming=warming) for name in names] == [backward, NONE, NONE]
        assert chosen.codec("pp_forward", warming=warming) == int4
    assert chosen.codecs("tp_forward") == {"tp_forward": int8, "tp_forward.none": NONE}
    assert chosen.codecs("tp_backward") == {
        "tp_backward": NONE, "tp_backward.int6": int6, "tp_backward.int8": int8,
    }  # fmt: skip
    assert chosen.codecs("pp_forward") == {"pp_forward": int4}


def test_embedding_and_head_may_have_a_codec_of_their_own():
    int8, int4 = preset("int8"), preset("int4")
    run = tiny_run(policy=Policy(tp_forward=int4, overrides=(_override(layers=(ENDS, 1)),)))
    assert run_from_dict(json.loads(json.dumps(to_dict(run)))) == run
    names = ("transformer.wte", "lm_head", "transformer.h.1.mlp", "transformer.h.0.mlp", "")
    assert [run.policy.codec("tp_forward", name) for name in names] == [int8, int8, int8, int4, int4]


def test_a_policy_tells_the_codec_of_each_message():
    int8, int4 = preset("int8"), preset("int4")
    chosen = Policy(tp_forward=int4, overrides=(_override(layers=(0, 2)),))
    assert chosen.codec("tp_forward", "transformer.h.2.attn.c_proj") == int8
    assert chosen.codec("tp_forward", "transformer.h.1.attn.c_proj") == int4
    assert chosen.codec("tp_forward", "transformer.wte") == int4
    assert chosen.codec("tp_backward", "transformer.h.2.attn") == NONE
    assert chosen.codecs("tp_forward") == {"tp_forward": int4, "tp_forward.int8": int8}
    assert chosen.codecs("tp_backward") == {"tp_backward": NONE}
    assert chosen.compresses("tp_backward", "tp_forward")
    assert not chosen.compresses("tp_backward", "dp_gradient")


def test_a_warm_up_ends_before_the_run():
    chosen = replace(policy(tp="int4"), warmup_steps=5, warmup=preset("int8"))
    assert tiny_run(policy=chosen, train=Train(steps=6, warmup=1)).policy.warming(5)
    with pytest.raises(ConfigError, match="warmup_steps=5 of the policy in 5 steps; need fewer than 5"):
        tiny_run(policy=chosen, train=Train(steps=5, warmup=1))


def test_codecs_without_ranks_are_told():
    everything = policy(tp="int8", dp="sdp4bit", pp="tahquant")
    assert tiny_run(policy=policy()).unused == {}
    assert tiny_run(policy=policy(tp_forward="int8")).unused == {"tp_forward": "int8"}
    grid = Parallel(virtual_tp=2, dp=2)
    found = tiny_run(policy=everything, parallel=grid).unused
    assert found.keys() == {"pp_forward", "pp_backward"}
    assert set(found.values()) == {everything.pp_forward.name, everything.pp_backward.name}

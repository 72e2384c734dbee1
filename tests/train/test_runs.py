"""Finding a run, and changing one field of it."""

from __future__ import annotations

import json
import re

import pytest

from taco.config import ConfigError, Data, GroupCodec, Model, Override, Run, to_dict
from taco.recipes import preset
from taco.train.runs import find_codec, find_run, override

MODEL = Model(name="tiny", arch="gpt", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=64, max_seq=32)
RUN = Run(name="tiny-run", model=MODEL, data=Data(corpus="data/tiny", seq=16))


def test_run_is_found_by_name_and_by_file(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(to_dict(RUN)))
    assert find_run("tiny-run", {"tiny-run": RUN}) is RUN
    assert find_run(str(path), {}) == RUN


def test_a_run_file_may_name_presets(tmp_path):
    data = to_dict(RUN)
    data["policy"]["tp_forward"] = "int8"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    assert find_run(str(path), {}).policy.tp_forward == preset("int8")
    data["policy"]["tp_forward"] = "int9"
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=r"got policy\.tp_forward='int9'; need a preset, such as .*'int8'"):
        find_run(str(path), {})


LAYERS = [{"role": "tp_forward", "layers": [1], "codec": "int8"}]


def test_layers_may_name_presets_in_files_and_settings(tmp_path):
    data = to_dict(RUN)
    data["policy"]["overrides"] = LAYERS
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    run = find_run(str(path), {})
    assert run.policy.overrides == (Override(role="tp_forward", layers=(1,), codec=preset("int8")),)
    assert override(RUN, [f"policy.overrides={json.dumps(LAYERS)}"]) == run
    assert override(run, ["policy.overrides=[]"]) == RUN
    with pytest.raises(ConfigError, match=r"policy\.overrides=first; need a value like \[\{"):
        override(run, ["policy.overrides=first"])
    path.write_text(json.dumps(data).replace("int8", "int9"))
    with pytest.raises(ConfigError, match=r"got policy\.overrides\.codec='int9'; need a preset, such as .*'int8'"):
        find_run(str(path), {})


def test_a_name_like_no_other_gets_a_short_answer():
    with pytest.raises(ConfigError, match="'run-10', 'run-100', 'run-101', 'run-102' and 96 more") as error:
        find_run("zzz", {f"run-{i}": RUN for i in range(10, 110)})
    assert len(str(error.value)) < 250


def test_unknown_run_lists_near_names():
    with pytest.raises(ConfigError, match="tiny-run") as error:
        find_run("tinyrun", {"tiny-run": RUN, "something-else": RUN})
    assert "something-else" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"name": "x"}', '{"name": "x", "model": {"arch": "gpt"}}'])
def test_damaged_run_file_is_refused(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="need"):
        find_run(str(path), {})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.json", "got no file {}/mine.json; need an existing JSON file of a run; because it names the run"),
        (
            "mine.jsn",
            "got run '{}/mine.jsn'; need an existing JSON file or a known run, such as 'tiny-run'; because neither a "
            "file nor a recipe has this name",
        ),
    ],
)
def test_missing_run_file_is_refused(tmp_path, name, text):
    with pytest.raises(ConfigError, match=f"^{re.escape(text.format(tmp_path))}$"):
        find_run(str(tmp_path / name), {"tiny-run": RUN})


FITTED = GroupCodec(name="int6-signed-g64", payload="int6", group=64)


def test_a_codec_is_found_by_name_and_by_file(tmp_path):
    path = tmp_path / "fitted.json"
    path.write_text(json.dumps(to_dict(FITTED)))
    assert find_codec("int8") is preset("int8")
    assert find_codec(str(path)) == FITTED
    data = to_dict(RUN)
    data["policy"]["tp_forward"] = json.loads(path.read_text())
    (tmp_path / "mine.json").write_text(json.dumps(data))
    assert find_run(str(tmp_path / "mine.json"), {}).policy.tp_forward == FITTED


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"got no file .*fitted\.json; need an existing JSON file of a codec"),
        ("{", "got codec file .*need a JSON codec"),
        ('"int8"', "got codec='int8'; need an object with named fields"),
        ('{"name": "x"}', "got codec type=None; need one of NoCodec"),
        ('{"type": "GroupCodec", "name": "x", "groop": 64}', "got unknown field groop in GroupCodec"),
        ('{"type": "GroupCodec", "name": "x", "group": 63}', "got group=63"),
    ],
)
def test_a_file_that_is_no_codec_is_refused(tmp_path, text, message):
    if text is not None:
        (tmp_path / "fitted.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        find_codec(str(tmp_path / "fitted.json"))


def test_override_changes_only_what_it_names():
    changed = override(RUN, ["train.steps=7", "train.lr=1e-4", "policy.tp_forward=int8", "parallel.virtual_tp=2"])
    assert (changed.train.steps, changed.train.lr, changed.parallel.virtual_tp) == (7, 1e-4, 2)
    assert changed.policy.tp_forward == preset("int8")
    assert (
        override(changed, ["train.steps=100", "train.lr=1e-3", "policy.tp_forward=none", "parallel.virtual_tp=1"])
        == RUN
    )


def test_override_takes_texts_and_truth_values():
    changed = override(RUN, ["name=other", "data.corpus=data/3", "parallel.sequence_parallel=true"])
    assert (changed.name, changed.data.corpus, changed.parallel.sequence_parallel) == ("other", "data/3", True)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("train.stepz=3", "steps"),
        ("trian.steps=3", "train"),
        ("train=3", "one field of train"),
        ("train.steps", "part.field=value"),
        ("train.steps=many", "got --set train.steps=many; need a value like 100; because the field holds an integer"),
        ("train.lr=fast", "need a value like 0.001; because the field holds a number"),
        ("parallel.sequence_parallel=yes", "need a value like false; because the field holds true or false"),
        ("train.steps=1.5", "train.steps=1.5"),
        ("train.steps=0", "an integer >= 1"),
        ("parallel.sequence_parallel=1", "type bool"),
        ("policy.tp_forward=int9", "int8"),
        ("policy.tp_forward.group=64", "'group'"),
        ("parallel.tp=3", "multiple of 3"),
    ],
)
def test_bad_override_is_refused(setting, text):
    with pytest.raises(ConfigError, match="need") as error:
        override(RUN, [setting])
    assert text in str(error.value)

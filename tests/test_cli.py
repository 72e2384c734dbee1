"""The command line: bad input is one line and status 2, and listing recipes does not load torch."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from taco import cli, recipes
from taco.config import run_from_dict


def _fails(capsys, *argv) -> str:
    assert cli.main(argv) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("taco: got ")
    assert err.count("\n") == 1
    return err


def test_recipes_lists_every_name(capsys):
    assert cli.main(["recipes", "list"]) == 0
    listed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for kind, name in listed if kind == "run"] == list(recipes.RUNS)
    assert {kind for kind, _ in listed} == {"run", "experiment", "model", "codec"}


def test_recipes_list_takes_a_kind(capsys):
    assert cli.main(["recipes", "list", "codec"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == list(recipes.PRESETS)


def test_recipes_show_prints_a_run_that_can_be_read_back(capsys):
    name = next(iter(recipes.RUNS))
    assert cli.main(["recipes", "show", name]) == 0
    assert run_from_dict(json.loads(capsys.readouterr().out)) == recipes.RUNS[name]


def test_recipes_do_not_load_torch():
    code = "import sys; from taco.cli import main; main(['recipes']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_unknown_recipe_names_near_ones(capsys):
    assert "gpt-mini" in _fails(capsys, "recipes", "show", "gpt-mimi")


def test_a_near_name_reads_as_a_name(capsys):
    expected = (
        "got recipe 'nope'; need a name from `taco recipes list`, such as 'none'; because no recipe has this name"
    )
    assert _fails(capsys, "recipes", "show", "nope") == f"taco: {expected}\n"


def test_unknown_kind_is_refused(capsys):
    assert "experiment" in _fails(capsys, "recipes", "list", "runz")


def test_unknown_run_names_near_ones(capsys):
    name = next(iter(recipes.RUNS))
    assert name in _fails(capsys, "train", name[:-1] + "x" + name[-1])


def test_misspelt_setting_is_refused(capsys):
    assert "train.stepz" in _fails(capsys, "train", next(iter(recipes.RUNS)), "--set", "train.stepz=3")


@pytest.mark.parametrize("flag", [[], ["--no-replay"]])
def test_no_replay_reaches_the_trainer(monkeypatch, flag):
    seen = []
    trainer = importlib.import_module("taco.train.trainer")
    monkeypatch.setattr(trainer, "train", lambda run, options, env, **how: seen.append(options.replay))
    assert cli.main(["train", next(iter(recipes.RUNS)), *flag]) == 0
    assert seen == [not flag]


def test_world_that_does_not_fit_is_refused(capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    name = next(name for name, run in recipes.RUNS.items() if run.parallel.world_size == 4)
    assert f"torchrun --nproc-per-node 4 -m taco train {name}" in _fails(capsys, "train", name, "--source", "mini")


def test_logged_is_not_a_source_to_write(capsys):
    assert "logged" in _fails(capsys, "train", next(iter(recipes.RUNS)), "--source", "logged")


def test_a_path_that_cannot_be_written_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    argv = ("measure", "ablation", "--out", str(tmp_path / "file" / "ablation.jsonl"))
    assert cli.main(argv) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert out == ""
    assert str(tmp_path / "file") in err
    assert err.count("\n") == 1


def test_a_reader_that_stops_early_is_no_fault():
    command = f"{sys.executable} -m taco recipes list | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_unknown_measure_is_refused(capsys):
    assert "codec_fidelity" in _fails(capsys, "measure", "fidelty")


def test_measure_of_a_missing_capture_is_refused(capsys, tmp_path):
    assert "none.safetensors" in _fails(capsys, "measure", "ablation", "--captures", str(tmp_path / "none.safetensors"))


def test_unknown_command_names_a_near_one(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["trian"])
    assert stop.value.code == cli.BAD_INPUT
    names = ", ".join([*cli.COMMANDS, *cli.PAPER])
    text = f"got command 'trian'; need one of {names} (nearest: train); because no other exists\n"
    assert capsys.readouterr().err.endswith(text)


def test_every_command_explains_itself(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert all(name in text for name in (*cli.COMMANDS, *cli.PAPER))


def test_a_fault_of_the_program_keeps_its_traceback(monkeypatch):
    def broken(args):
        raise RuntimeError("a fault")

    monkeypatch.setitem(cli.COMMANDS, "recipes", (*cli.COMMANDS["recipes"][:2], broken))
    with pytest.raises(RuntimeError, match="a fault"):
        cli.main(["recipes"])


def test_only_one_rank_of_a_machine_reports_bad_input(capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert cli.main(["train", "no-such-run"]) == cli.BAD_INPUT
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["train", "data", "measure", "recipes", "kernels", "tables", "figures", "claims"])
def test_each_command_has_its_own_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"taco {command}" in capsys.readouterr().out

"""`taco runs`: the queue in its order, and which logs exist."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from taco import cli
from taco.recipes import QUEUE


def lines(capsys, *argv: str) -> list[list[str]]:
    assert cli.main(["runs", *argv]) == 0
    return [line.split("\t") for line in capsys.readouterr().out.splitlines()]


def test_every_run_is_printed_once_in_the_order_of_the_queue(capsys, tmp_path: Path):
    printed = lines(capsys, "--results", str(tmp_path))
    names = [line[0] for line in printed if len(line) > 1]
    assert names == list(dict.fromkeys(run.name for stage in QUEUE for run in stage.runs))
    titles = [line[0] for line in printed if len(line) == 1]
    assert titles == [f"# {stage.name}: {stage.why}" for stage in QUEUE]
    assert {line[2] for line in printed if len(line) > 1} == {"missing"}
    assert ["gpt-125m-vtp4-int8-33m-s1", "32.8M", "missing"] in printed


def test_missing_leaves_out_what_is_logged(capsys, tmp_path: Path):
    first, second, third = (run.name for run in QUEUE[0].runs[:3])
    for path in (f"logged/{first}.jsonl", f"fresh/{second}.jsonl", f"fresh/{third}.jsonl.part"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("")
    argv = ("--results", str(tmp_path), "--stage", "controls")
    states = {line[0]: line[2] for line in lines(capsys, *argv) if len(line) > 1}
    assert [states[name] for name in (first, second, third)] == ["logged", "fresh", "unfinished"]
    left = [line[0] for line in lines(capsys, *argv, "--missing") if len(line) > 1]
    assert left == [name for name in states if name not in (first, second)]
    only = {line[0]: line[2] for line in lines(capsys, *argv, "--source", "logged") if len(line) > 1}
    assert only[second] == "missing"


def test_an_unknown_stage_is_named(capsys):
    assert cli.main(["runs", "--stage", "final"]) == cli.BAD_INPUT
    assert "finals-qwen" in capsys.readouterr().err


def test_the_queue_does_not_load_torch():
    code = "import sys; from taco.cli import main; main(['runs']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0

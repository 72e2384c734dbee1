"""`taco tables` and `taco figures`: one experiment, or all of which a source has a log."""

from __future__ import annotations

from pathlib import Path

import paper_logs
import pytest

from taco import cli
from taco.paper import tables
from taco.recipes import EXPERIMENTS, RUNS


def test_command_line_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture):
    paper_logs.write(tmp_path / "mini" / "correctness.jsonl", paper_logs.correctness_rows())
    assert cli.main(["tables", "accuracy", "--source", "mini", "--results", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out.strip() == str(tmp_path / "mini" / "accuracy.csv")
    runs = len(EXPERIMENTS["accuracy"].runs("mini"))
    assert err.startswith(f"taco: {runs} of ")
    assert f"rows of accuracy.csv have no log in {tmp_path / 'mini'}" in err


def test_command_line_writes_every_table_of_which_the_source_has_a_log(tmp_path: Path, capsys: pytest.CaptureFixture):
    paper_logs.write(tmp_path / "fresh" / "correctness.jsonl", paper_logs.correctness_rows())
    queued = RUNS[EXPERIMENTS["pareto"].optional("fresh")[0]]
    paper_logs.run_log(tmp_path / "fresh", queued)
    (tmp_path / "fresh" / "ablation.jsonl.part").touch()
    assert cli.main(["tables", "--source", "fresh", "--results", str(tmp_path)]) == 0
    wanted = [tmp_path / "fresh" / f"{name}.csv" for name in ("accuracy", "pareto", "correctness")]
    assert capsys.readouterr().out.split() == list(map(str, wanted))
    assert sorted((tmp_path / "fresh").glob("*.csv")) == sorted(wanted)


@pytest.mark.parametrize("named", [[], ["accuracy"]])
def test_command_line_makes_nothing_of_a_folder_without_logs(
    named: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
):
    paper_logs.write(tmp_path / "mini" / "mine.jsonl", [])
    for source in ("mini", "logged"):
        assert cli.main(["tables", *named, "--source", source, "--results", str(tmp_path)]) == cli.BAD_INPUT
        out, err = capsys.readouterr()
        assert not out
        assert f"got no finished log of an experiment in {tmp_path / source}; need the folder of" in err
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["mini", "mine.jsonl"]


def test_command_line_draws(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    assert cli.main(["figures", "correctness", "--results", str(results), "--figures", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "mini" / f"correctness.{end}") for end in ("svg", "png")]


def test_command_line_draws_every_experiment_of_which_the_source_has_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture
):
    places = ["--source", "fresh", "--results", str(tmp_path / "results"), "--figures", str(tmp_path / "figures")]
    assert cli.main(["figures", *places]) == cli.BAD_INPUT
    assert "got no finished log of an experiment in" in capsys.readouterr().err
    for name, rows in (("correctness", paper_logs.correctness_rows()), ("codec_speed", paper_logs.speed_rows())):
        paper_logs.write(tmp_path / "results" / "fresh" / f"{name}.jsonl", rows)
    assert cli.main(["figures", *places]) == cli.BAD_INPUT
    assert "correctness.csv; need a table, which `taco tables` makes" in capsys.readouterr().err
    assert not (tmp_path / "figures").exists()
    for name in ("correctness", "codec_speed"):
        tables.make(name, "fresh", tmp_path / "results")
    assert cli.main(["figures", *places]) == 0
    made = [tmp_path / "figures" / "fresh" / f"{n}.{e}" for n in ("correctness", "codec_speed") for e in ("svg", "png")]
    assert capsys.readouterr().out.split() == list(map(str, made))
    assert all(path.exists() for path in made)

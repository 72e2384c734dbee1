"""A log is whole or it is not read; a resumed one continues without holes or doubles."""

from __future__ import annotations

import json
import math

import pytest

from taco.log import LogError, LogWriter, header_of, part_path, read

HEADER = {"name": "run", "config": {"steps": 3, "lr": (1, 2)}, "provenance": {"commit": "abc"}}


def _write(path, steps, **kwargs):
    log = LogWriter(path, HEADER, **kwargs)
    for step in steps:
        log.write("step", step=step, loss=1.0 / step)
    return log


def test_log_reads_back_what_was_written(tmp_path):
    path = tmp_path / "deep" / "run.jsonl"
    log = _write(path, [1, 2])
    log.write("eval", step=2, val_loss=0.1)
    log.close(steps=2)
    back = read(path)
    assert back.header["name"] == "run"
    assert back.of("step") == [{"kind": "step", "step": 1, "loss": 1.0}, {"kind": "step", "step": 2, "loss": 0.5}]
    assert [r["kind"] for r in back.records] == ["step", "step", "eval"]
    assert back.end["steps"] == 2
    assert not part_path(path).exists()


@pytest.mark.parametrize("value", [1e-45, 0.1 + 0.2, 1 / 3, 5e300])
def test_log_keeps_every_bit_of_a_float(tmp_path, value):
    log = LogWriter(tmp_path / "a.jsonl", HEADER)
    log.write("step", step=1, loss=value)
    log.close()
    assert read(tmp_path / "a.jsonl").records[0]["loss"] == value


def test_log_spells_out_values_that_json_lacks(tmp_path):
    log = LogWriter(tmp_path / "a.jsonl", HEADER)
    log.write("step", step=1, loss=math.nan, more=[math.inf, {"x": -math.inf}])
    log.close()
    record = read(tmp_path / "a.jsonl").records[0]
    assert (record["loss"], record["more"]) == ("nan", ["inf", {"x": "-inf"}])


def test_a_header_is_read_before_and_after_the_end(tmp_path):
    path = tmp_path / "run.jsonl"
    assert header_of(path) == {}
    log = _write(path, [1])
    assert header_of(path)["name"] == "run"
    log.close()
    assert header_of(path)["name"] == "run"


def test_half_written_log_is_not_a_result(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2]).abandon()
    assert not path.exists()
    with pytest.raises(LogError) as error:
        read(path)
    text = str(error.value)
    assert f"got no file {path}, but {path}.part, the log of a run that is under way or was stopped; need a" in text
    assert "wait for its end, or give its command (`taco train`) again" in text
    with pytest.raises(LogError, match=r"got no file \S+other\.jsonl; need a finished log; because"):
        read(tmp_path / "other.jsonl")


@pytest.mark.parametrize("cut", [2, 20, 60])
def test_truncated_log_is_refused(tmp_path, cut):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2]).close()
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(LogError, match=r"truncated|not JSON"):
        read(path)


def test_log_without_its_end_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2]).close()
    path.write_text("".join(path.read_text().splitlines(True)[:-1]))
    with pytest.raises(LogError, match="truncated"):
        read(path)


def test_log_that_lost_a_line_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2, 3]).close()
    lines = path.read_text().splitlines(True)
    path.write_text("".join(lines[:2] + lines[3:]))
    with pytest.raises(LogError, match="truncated"):
        read(path)


@pytest.mark.parametrize(
    "text",
    ["", "{}\n", "loss: 1\n", "[1]\n", "1\n", '{"a": 1}\n', json.dumps({"kind": "header", "version": 99}) + "\n"],
)
def test_foreign_file_is_refused(tmp_path, text):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(LogError):
        read(path)


@pytest.mark.parametrize("line", ["1", "[1]", '{"step": 3}'])
def test_a_line_that_is_no_record_is_refused(tmp_path, line):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2]).abandon()
    with part_path(path).open("a") as f:
        f.write(line + "\n")
    with pytest.raises(LogError, match=r"jsonl\.part:4 that is no record"):
        LogWriter(path, HEADER, resume_step=2)


def test_bytes_and_folders_are_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LogError, match="need a log of JSON lines"):
        read(path)
    with pytest.raises(LogError, match="need a log of JSON lines"):
        read(tmp_path)


def test_resume_drops_what_will_be_written_again(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2, 3]).abandon()
    log = _write(path, [3, 4], resume_step=2)
    assert [r["step"] for r in log.kept] == [1, 2]
    log.close()
    assert [r["step"] for r in read(path).of("step")] == [1, 2, 3, 4]


def test_resume_survives_a_line_cut_by_a_kill(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2, 3]).abandon()
    part = part_path(path)
    part.write_bytes(part.read_bytes()[:-9])
    log = _write(path, [3], resume_step=2)
    log.close()
    assert [r["step"] for r in read(path).of("step")] == [1, 2, 3]


def test_resume_refuses_another_run_and_keeps_its_log(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2]).abandon()
    before = part_path(path).read_bytes()
    with pytest.raises(LogError, match="another run"):
        LogWriter(path, HEADER | {"config": {"steps": 4}}, resume_step=2)
    assert part_path(path).read_bytes() == before


def test_resume_without_the_first_part_is_refused(tmp_path):
    with pytest.raises(LogError, match="start in the middle"):
        LogWriter(tmp_path / "run.jsonl", HEADER, resume_step=2)


def test_resume_after_a_hole_is_refused(tmp_path):
    path = tmp_path / "run.jsonl"
    _write(path, [1, 2]).abandon()
    with pytest.raises(LogError, match="a hole"):
        LogWriter(path, HEADER, resume_step=5)

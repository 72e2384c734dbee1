"""Seconds and bytes of a step, the progress lines, the facts of a header, and which errors mean a lost rank."""

from __future__ import annotations

import io
import subprocess
import time

import pytest
import torch
import torch.distributed as dist
from distributed import run_ranks

from taco.comm import CommError, Meter
from taco.train import progress as progress_module
from taco.train.launch import World
from taco.train.lost import RankLostError, is_communication, naming_lost_ranks
from taco.train.measure import StepMeter
from taco.train.progress import Progress
from taco.train.provenance import REPOSITORY, collect

ROLES = ("tp_forward", "dp_gradient")


def _one_step(here: World, wire: int, seconds: float) -> dict:
    meter = Meter()
    steps = StepMeter(here, meter, ROLES)
    meter.add("tp_forward", 10**6, 10**6)  # before the step: evaluation, say
    steps.begin()
    with steps.timed("data"):
        time.sleep(seconds)
    meter.add("tp_forward", wire, 2 * wire)
    with meter.timed("tp_forward", torch.device("cpu")):
        time.sleep(0.05)
    return steps.end()


def test_step_counts_its_own_bytes_and_time():
    measured = _one_step(World(), 100, 0.02)
    assert measured["wire"] == {"tp_forward": {"wire": 100, "raw": 200, "messages": 1}}
    assert 50 <= measured["phases_ms"]["comm"] < 1000
    assert 20 <= measured["phases_ms"]["data"] <= measured["step_ms"]
    assert measured["phases_ms"]["optimizer"] == 0.0


def test_bytes_of_an_unknown_role_are_not_lost_silently():
    meter = Meter()
    steps = StepMeter(World(), meter, ROLES)
    steps.begin()
    meter.add("expert", 1, 1)
    with pytest.raises(ValueError, match="expert"):
        steps.end()


def _rank_step(rank: int, size: int) -> dict:
    return _one_step(World(rank=rank, size=size), 100 * (rank + 1), 0.05 * rank)


def test_ranks_agree_on_the_largest_bytes_and_the_mean_time():
    first, second = run_ranks(2, _rank_step)
    assert first == second
    assert first["wire"]["tp_forward"]["wire"] == 200
    assert first["phases_ms"]["data"] >= 25  # the mean of 0 and 50, at least


def test_progress_says_a_line_now_and_then_on_the_first_rank_only(monkeypatch):
    monkeypatch.setattr(progress_module, "EVERY_S", 0.0)
    stream = io.StringIO()
    for quiet in (False, True):
        progress = Progress("run", 10, 0, quiet=quiet, stream=stream)
        progress.step(3, 1.5, 1234.6)
        progress.say("done")
        progress.close()
    assert stream.getvalue() == "run: step 3/10, loss 1.500, 1,235 tokens/s\nrun: done\n"


def test_progress_waits_between_lines():
    stream = io.StringIO()
    progress = Progress("run", 10, 0, quiet=False, stream=stream)
    progress.step(1, 1.0, 1.0)
    assert stream.getvalue() == ""


def test_progress_on_a_terminal_is_a_bar():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress("run", 10, 4, quiet=False, stream=stream)
    progress.step(10, 1.0, 1.0)
    progress.close()
    assert "10/10" in stream.getvalue()


def test_provenance_names_commit_and_machine():
    facts = collect(World(), seed=3)
    assert (facts["seed"], facts["transport"], facts["device"]) == (3, "none", "cpu")
    assert facts["host_cores"] >= 1
    assert facts["hardware"].endswith(f"{facts['host_cores']} cores")
    if (REPOSITORY / ".git").exists():
        known = subprocess.run(
            ["git", "cat-file", "-t", facts["commit"]], cwd=REPOSITORY, capture_output=True, text=True
        )
        assert known.stdout.strip() == "commit"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CommError("rank 0: tp_forward"), True),
        (dist.DistBackendError("NCCL error"), True),
        (RuntimeError("[third_party/gloo/pair.cc:1] Connection closed by peer"), True),
        (RuntimeError("Timed out waiting 5000ms for recv"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("connection"), False),
    ],
)
def test_only_communication_errors_lead_to_a_search(error, expected):
    assert is_communication(error) is expected


def test_one_rank_keeps_its_own_error():
    with pytest.raises(CommError), naming_lost_ranks(World(), lambda: "step 1"):
        raise CommError("rank 0")


class _Clock:
    """A key-value store in which rank 2 stopped beating."""

    def __init__(self) -> None:
        self.beats = 0

    def clone(self):
        return self

    def set(self, key, value) -> None:
        pass

    def check(self, keys) -> bool:
        return keys != ["beat/3"]

    def get(self, key) -> bytes:
        self.beats += key == "beat/1"
        return str(self.beats).encode() if key == "beat/1" else b"7"


def test_silent_ranks_are_named(monkeypatch, capsys):
    monkeypatch.setattr("taco.train.lost.SILENT_S", 0.01)
    here = World(rank=0, size=4, store=_Clock())
    with pytest.raises(RankLostError, match=r"rank 0 of 4, step 5: a peer.*no sign of life from rank 2, 3$"):  # noqa: SIM117
        with naming_lost_ranks(here, lambda: "step 5"):
            raise CommError("a peer is gone\nmore")
    assert capsys.readouterr().err.startswith("taco: rank 0 of 4, step 5: a peer is gone; looking")


def test_when_every_rank_answers_the_error_stays(monkeypatch):
    monkeypatch.setattr("taco.train.lost.SILENT_S", 0.01)
    here = World(rank=0, size=2, store=_Clock())
    with pytest.raises(CommError), naming_lost_ranks(here, lambda: "step 5"):
        raise CommError("a peer is gone")


def test_silent_rank_is_reported_before_anyone_fails(monkeypatch, capsys):
    monkeypatch.setattr("taco.train.lost.BEAT_S", 0.005)
    monkeypatch.setattr("taco.train.lost.WARN_BEATS", 3)
    with naming_lost_ranks(World(rank=0, size=3, store=_Clock()), lambda: "step 5"):
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["taco: rank 0 of 3: no sign of life from rank 2 for 0 s"]

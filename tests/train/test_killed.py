"""A rank that is killed or hangs: the others stop in time and say so, and the next start goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from distributed import run_ranks
from train_cases import fit_ranks, log_of, numbers, tiny_run, written

from taco.config import Parallel, Policy
from taco.log import part_path
from taco.recipes import preset
from taco.train import checkpoint
from taco.train.lost import SILENT_S

STEPS, EVERY = 24, 4
INT8 = preset("int8")
GRID = (Parallel(tp=2, pp=2, microbatches=2), Policy(tp_forward=INT8, tp_backward=INT8, pp_forward=INT8))


class Launched:
    """`torchrun -m taco train` in a process group of its own, its output in a file."""

    def __init__(self, run, out: Path) -> None:
        self.log = out / "results" / "test" / f"{run.name}.jsonl"
        self._text = out / "output.txt"
        self._file = self._text.open("w")
        world = ["--nproc-per-node", str(run.parallel.world_size)]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", *world, "-m", "taco"]
        train = ["train", written(run, out), "--source", "test", "--out", str(out), "--device", "cpu"]
        self.process = subprocess.Popen(
            [*launcher, *train],
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )

    @property
    def text(self) -> str:
        return self._text.read_text()

    def wait_for(self, ready, seconds: float = 90.0) -> None:
        """Wait until `ready()`; fail if the launcher ends or the time is over first."""
        deadline = time.monotonic() + seconds
        while not ready():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.02)

    def logged(self, step: int) -> bool:
        """Whether the unfinished log has this step."""
        part = part_path(self.log)
        return part.exists() and f'"kind": "step", "step": {step},' in part.read_text()

    def pid_of(self, rank: int) -> int:
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            if f"\0RANK={rank}\0" in "\0" + Path(f"/proc/{pid}/environ").read_text():
                return int(pid)
        raise AssertionError(f"no rank {rank} under {self.process.pid}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._file.close()


@pytest.mark.slow
def test_killed_rank_stops_the_others_and_the_rerun_continues(tmp_path, data):
    run = tiny_run(data, parallel=GRID[0], chosen=GRID[1], steps=STEPS, checkpoint_every=EVERY, eval_every=0)
    launched = Launched(run, tmp_path)
    try:
        launched.wait_for(lambda: launched.logged(2 * EVERY + 2))
        others = [launched.pid_of(rank) for rank in range(3)]
        os.kill(launched.pid_of(3), signal.SIGKILL)
        assert launched.process.wait(timeout=run.train.timeout_s) != 0
    finally:
        launched.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in others)
    assert "rank      : 3 (local_rank: 3)" in launched.text.split("Root Cause")[1]
    assert not launched.log.exists()
    done = checkpoint.steps(tmp_path / "checkpoints" / "test" / run.name)
    assert done[-1] >= 2 * EVERY

    assert run_ranks(4, fit_ranks, run, tmp_path, 0) == [done[-1]] * 4
    run_ranks(4, fit_ranks, run, tmp_path / "whole", 0)
    assert numbers(log_of(tmp_path)) == numbers(log_of(tmp_path / "whole"))
    assert [r["step"] for r in log_of(tmp_path).of("step")] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_hanging_rank_is_named_within_the_timeout(tmp_path, data):
    run = tiny_run(data, parallel=Parallel(tp=2), steps=2000, checkpoint_every=0, eval_every=0, timeout_s=5.0)
    launched = Launched(run, tmp_path)
    try:
        launched.wait_for(lambda: launched.logged(3))
        stopped = launched.pid_of(1)
        os.kill(stopped, signal.SIGSTOP)
        within = run.train.timeout_s + 2 * SILENT_S + 5
        launched.wait_for(lambda: "no sign of life from rank 1" in launched.text, within)
        os.kill(stopped, signal.SIGKILL)  # the launcher waits long for a process that is stopped
        assert launched.process.wait(timeout=10) != 0
    finally:
        launched.close()
    line = next(line for line in launched.text.splitlines() if "no sign of life" in line)
    assert line.startswith("taco: rank 0 of 2, step ")
    assert "Traceback" not in launched.text.split("no sign of life")[0]
    assert not launched.log.exists()

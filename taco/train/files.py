"""What a run leaves on disk, and where it goes on: nothing that belongs to another run is touched."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from taco.config import ConfigError, Run, completed, require, to_dict
from taco.log import LogError, part_path, read, resumable
from taco.train import checkpoint, fork


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a run is done, as opposed to what it computes.

    capture: file of the tensors sent in one of capture_steps (none: the last), with {step} where its number goes.

    force: start again, whatever is there. restart: start again where going on is impossible, instead of an error.
    replay: run steps as CUDA graphs where that is possible, see `Parallelism.step`.
    """

    source: str = "fresh"
    out: Path = Path()
    force: bool = False
    restart: bool = False
    replay: bool = True
    capture: Path | None = None
    capture_steps: tuple[int, ...] = ()

    def captures(self, run: Run) -> dict[int, Path]:
        """Step -> the file of what it sends.

        Raises ConfigError for a step that the run does not have, for several in one file, and for steps without one.
        """
        steps, first, last = self.capture_steps or (run.train.steps,), run.train.from_step + 1, run.train.steps
        for step in steps:
            need = f"a step from {first} to {last}, or nothing for the last"
            require(first <= step <= last, f"--capture-step {step}", need, "the run has these")
        if self.capture is None:
            given = " ".join(map(str, self.capture_steps))
            require(not given, f"--capture-step {given} without --capture", "a file", "what is sent is written there")
            return {}
        files = {step: Path(str(self.capture).replace("{step}", str(step))) for step in steps}
        p = run.parallel
        require(
            p.world_size > 1 or p.virtual_tp > 1,
            f"--capture of {run.name} on one rank",
            "tp, virtual_tp, pp or dp above 1",
            "only what is sent is captured",
        )
        require(
            len(set(files.values())) == len(files),
            f"--capture {self.capture} for steps {', '.join(map(str, files))}",
            "{step} in the name",
            "each step has its own file",
        )
        return files


def check_writable(path: Path) -> None:
    """Raise ConfigError unless a file can be written there; makes its folder."""
    reason = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        reason = str(error)
    require(not reason, f"--capture {path}", "a file that can be written", reason)


class Files:
    """Where a run keeps what it writes, under `options.out`; from_*: where the run does that it starts from."""

    def __init__(self, run: Run, options: Options) -> None:
        require(
            options.source not in ("", "logged") and "/" not in options.source,
            f"--source {options.source!r}",
            "a folder name other than logged",
            "logged results are copied in by the person who measured them, never written by a run",
        )
        logs, checkpoints = (options.out / kind / options.source for kind in ("results", "checkpoints"))
        self.log, self.checkpoints = logs / f"{run.name}.jsonl", checkpoints / run.name
        self.from_log, self.from_checkpoints = logs / f"{run.train.from_run}.jsonl", checkpoints / run.train.from_run

    def clear(self) -> None:
        """Remove all of it."""
        self.log.unlink(missing_ok=True)
        part_path(self.log).unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)


def _is_finished(run: Run, files: Files, options: Options) -> bool:
    """Whether the log of this run is there. Raises `LogError` if another run's is, or one that cannot be read."""
    if not files.log.exists():
        return False
    config = completed(read(files.log).header.get("config"))
    if config != completed(to_dict(run)):
        raise LogError(
            f"got {files.log} of another configuration ({checkpoint.differences(config, to_dict(run))}); "
            "need this run's or none; "
            "because a result is not overwritten (--force does, --out puts the new one elsewhere)"
        )
    for file in options.captures(run).values():
        require(
            file.exists(),
            f"--capture {file} for a finished run",
            "--force",
            "tensors are captured while the run trains",
        )
    return True


def start_step(run: Run, files: Files, options: Options) -> int | None:
    """The step after which to go on: `train.from_step` for a new run, the newest checkpoint's, None for a finished run.

    Raises `LogError`, `CheckpointError` or `ConfigError` for files that do not belong to this run; with `restart` the
    run starts again over them, and with `force` it does so always. Changes no file: what is in the way goes when the
    new log is opened (`Files.clear`), so that a run whose data or model turn out to be bad has removed nothing. A new
    run that starts from another's checkpoint needs it whole, with `restart` and `force`, too.
    """
    options.captures(run)
    if not options.force:
        try:
            step = _resume_step(run, files, options)
            if step != run.train.from_step:
                return step
        except (LogError, checkpoint.CheckpointError, ConfigError) as error:
            if not options.restart:
                raise
            print(f"taco: {run.name} starts again: {error}", file=sys.stderr, flush=True)
    if run.train.from_run:
        fork.parent(run, files.from_checkpoints)
    return run.train.from_step


def _resume_step(run: Run, files: Files, options: Options) -> int | None:
    if _is_finished(run, files, options):
        return None
    own = checkpoint.newest(files.checkpoints, run)
    step = own or run.train.from_step
    for at, file in options.captures(run).items():
        missed = not file.exists() and at <= step
        require(not missed, f"--capture-step {at} after a resume at step {step}", "--force", "that step is done")
    if own:
        resumable(files.log, {"config": to_dict(run)}, step)
    return step

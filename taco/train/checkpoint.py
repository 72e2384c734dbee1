"""Checkpoints: torch.distributed.checkpoint files that appear whole or not at all.

    <root>/step-000100/run.json      {"version", "step", "written": when, "config", "files": {name: bytes}}
    <root>/step-000100/*.distcp, .metadata

A checkpoint is written to `step-000100.tmp` and renamed by rank 0 when every rank has finished, so a folder
without `.tmp` is complete; `files` finds one that was cut afterwards (a full disk, a broken copy).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from taco.config import Run, completed, to_dict
from taco.train.launch import World

VERSION = 1
_NAME = re.compile(r"step-(\d{6,})")
_INSTEAD = " (delete that folder to use the one before it)"
_SHOWN = 10  # steps in an error's text


class CheckpointError(ValueError):
    """A checkpoint that cannot be used. The text says: got, need, why."""


class About(NamedTuple):
    """What a checkpoint says of itself. config: of the run that wrote it, whichever it is, completed; files: bytes by
    name; written: when, to the microsecond, which tells two of one name apart ('' in one of an earlier version)."""

    config: Any
    files: dict[str, int]
    written: str


def _folder(root: Path, step: int) -> Path:
    return root / f"step-{step:06d}"


def steps(root: Path) -> list[int]:
    """Steps of the complete checkpoints under `root`, ascending."""
    found = [_NAME.fullmatch(p.name) for p in root.iterdir()] if root.is_dir() else []
    return sorted(int(m.group(1)) for m in found if m)


def newest(root: Path, run: Run) -> int | None:
    """The step of the newest checkpoint under `root`, None if there is none.

    Raises `CheckpointError` if it is truncated or another run's: to train on from it, or over it, would lose one.
    """
    found = steps(root)
    if not found:
        return None
    folder = _folder(root, found[-1])
    there = _about(folder, _INSTEAD)
    if there.config != completed(to_dict(run)):
        raise CheckpointError(
            f"got {folder} of another run ({differences(there.config, to_dict(run))}); "
            "need a checkpoint of this configuration; "
            "because resuming would continue with another model (--force starts the run again, --out puts it elsewhere)"
        )
    _check_whole(folder, there.files, _INSTEAD)
    return found[-1]


def about(root: Path, step: int) -> About:
    """What the checkpoint of `step` under `root` says of itself.

    Raises `CheckpointError` if there is none, which names the steps nearest to it, or one that is not whole.
    """
    found = steps(root)
    if step not in found:
        near = sorted(sorted(found, key=lambda each: abs(each - step))[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise CheckpointError(
            f"got no checkpoint of step {step} in {root}, which has {', '.join(map(str, near)) or 'none'}{more}; "
            "need one that is there; because a run starts from what another has left (its train.checkpoint_every and "
            "train.keep_checkpoints)"
        )
    there = _about(_folder(root, step))
    _check_whole(_folder(root, step), there.files)
    return there


def _about(folder: Path, advice: str = "") -> About:
    """advice: ends the error's text."""
    try:
        found = json.loads((folder / "run.json").read_text())
        version, read = found["version"], About(completed(found["config"]), found["files"], found.get("written", ""))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"got {folder} without a readable run.json ({error}); need a complete checkpoint; "
            f"because training cannot continue from a part{advice}"
        ) from error
    if version != VERSION:
        raise CheckpointError(f"got {folder} of version {version}; need version {VERSION}; because the layout differs")
    return read


def _check_whole(folder: Path, files: dict[str, int], advice: str = "") -> None:
    sizes = {name: (folder / name).stat().st_size if (folder / name).exists() else None for name in files}
    bad = [f"{name}: {sizes[name]} of {size} bytes" for name, size in files.items() if sizes[name] != size]
    if bad:
        raise CheckpointError(
            f"got {folder} truncated ({'; '.join(bad)}); need every file whole; "
            f"because training cannot continue from a part{advice}"
        )


def differences(old: Any, new: Any, where: str = "") -> str:
    """The first few fields in which two configurations differ, for an error message."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return f"{where}: {old!r} there, {new!r} here" if old != new else ""
    keys = dict.fromkeys([*old, *new])
    found = [differences(old.get(k), new.get(k), f"{where}.{k}" if where else k) for k in keys]
    return "; ".join([text for text in found if text][:3])


def optimizer_state(
    named: Iterable[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """AdamW's moments as `optimizer.<name>.<key>`: the live tensors (DTensors stay DTensors), so loading fills them.

    named: (full-model name, parameter) of this rank. An optimizer that has not stepped gets the zero moments it starts
    from, so that loading has a target.
    """
    state: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        moments = optimizer.state[parameter]
        if not moments:
            step_device = parameter.device if optimizer.defaults.get("fused") else "cpu"
            moments["step"] = torch.zeros((), dtype=torch.float32, device=step_device)
            moments["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
            moments["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        state |= {f"optimizer.{name}.{key}": value for key, value in moments.items()}
    return state


def rng_state(here: World) -> dict[str, torch.Tensor]:
    """The random generators' states of this rank, under its own keys."""
    state = {f"rank{here.rank}.rng.cpu": torch.get_rng_state()}
    if here.device.type == "cuda":
        state[f"rank{here.rank}.rng.cuda"] = torch.cuda.get_rng_state(here.device)
    return state


def set_rng_state(here: World, state: dict[str, torch.Tensor]) -> None:
    """Restore what `rng_state` gave."""
    torch.set_rng_state(state[f"rank{here.rank}.rng.cpu"])
    if here.device.type == "cuda":
        torch.cuda.set_rng_state(state[f"rank{here.rank}.rng.cuda"], here.device)


def save(root: Path, step: int, state: dict[str, Any], run: Run, here: World) -> Path:
    """Write `state` (every rank its part) as the checkpoint of `step`, and remove all but the newest, as `run` says.

    Returns its folder.
    """
    folder = _folder(root, step)
    tmp = folder.with_name(folder.name + ".tmp")
    if here.rank == 0:
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
    here.barrier()
    with _quiet():
        dcp.save(state, checkpoint_id=tmp, no_dist=here.size == 1)
    here.barrier()
    if here.rank == 0:
        files = {p.name: p.stat().st_size for p in sorted(tmp.iterdir())}
        date = datetime.now(UTC).isoformat()
        itself = {"version": VERSION, "step": step, "written": date, "config": to_dict(run), "files": files}
        with (tmp / "run.json").open("w") as f:
            json.dump(itself, f, indent=1)
            f.flush()
            os.fsync(f.fileno())
        os.replace(tmp, folder)
        keep = run.train.keep_checkpoints
        for old in steps(root)[:-keep] if keep else ():
            shutil.rmtree(_folder(root, old))
    here.barrier()
    return folder


def load_(root: Path, step: int, state: dict[str, Any], here: World) -> None:
    """Fill `state` in place from the checkpoint of `step`. Raises `CheckpointError` if it does not hold all of it."""
    folder = _folder(root, step)
    try:
        with _quiet():
            dcp.load(state, checkpoint_id=folder, no_dist=here.size == 1)
    except (dcp.api.CheckpointException, RuntimeError, OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"got {folder} that does not load; need one with the state of this run; because {_first_line(error)}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """One rank without a process group is meant: torch need not warn about it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _first_line(error: BaseException) -> str:
    failures = getattr(error, "failures", None)  # of a CheckpointException: {rank: (error, traceback)}
    if failures:
        error = next(iter(failures.values()))[0]
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return first.split(". ")[0]  # torch goes on with advice on how to load files that one trusts

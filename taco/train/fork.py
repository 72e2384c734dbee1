"""A run that starts from another run's checkpoint, its parent's: which runs can, and what of the parent goes on.

    model, data, batch, seed, process grid     the parent's: weights, moments, random states and place in the data go on
    policy, schedule, everything else          the run's own; steps are counted on, so rate and warm-ups are of the step
    a codec's state                            goes on where the parent had the codec in the same role, else starts anew

A codec's state is how many messages a stochastic one has sent, and what weight differences refer to. So a run with its
parent's policy has the parent's numbers, and one that starts to compress those of a run with a warm-up of codec none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from taco import log
from taco.config import ConfigError, Policy, Run, run_from_dict, to_dict
from taco.train import checkpoint
from taco.train.checkpoint import CheckpointError, differences

# random states are kept by rank, codecs' states by place in the grid and stage
GRID = ("tp", "pp", "dp", "virtual_tp", "schedule")
PLACE = ("batch", "seed")


class Parent(NamedTuple):
    """What a run starts from. run: the parent, as it was when it wrote the checkpoint; written: when that was, which
    tells two checkpoints of one name apart."""

    run: Run
    written: str

    def record(self) -> dict[str, Any]:
        """What the log of a run says of its start."""
        return {"run": self.run.name, "written": self.written, "config": to_dict(self.run)}


def parent(run: Run, root: Path) -> Parent:
    """The run whose checkpoint under `root` `run` starts from. Changes no file.

    Raises `CheckpointError` if the checkpoint is missing or damaged, or its run differs in what has to be the same.
    """
    t = run.train
    try:
        there = checkpoint.about(root, t.from_step)
        found = run_from_dict(there.config)
    except ConfigError as error:
        raise CheckpointError(
            f"got the checkpoint of step {t.from_step} in {root}, whose configuration is none ({error}); "
            "need one of a run that can be read; because the runs are compared"
        ) from error
    if other := differences(_shared(found), _shared(run)):
        raise CheckpointError(
            f"got {run.name} to start from a checkpoint of {t.from_run} that differs ({other}); "
            f"need the same model, data, {', '.join(PLACE)}, {', '.join(GRID)}; "
            "because weights, random states and the place in the data go on"
        )
    return Parent(found, there.written)


def _shared(run: Run) -> dict[str, Any]:
    """The configuration that a run and its parent have in common."""
    whole = to_dict(run)
    some = {"parallel": GRID, "train": PLACE}
    parts = {part: {name: whole[part][name] for name in names} for part, names in some.items()}
    return {"model": whole["model"], "data": whole["data"], **parts}


def check_corpus(run: Run, path: Path, corpus: dict) -> None:
    """Raise `CheckpointError` if a run has a parent that read other tokens, as its log, the one of `path`, says.

    corpus: what this run's log will say. A parent without a log is trusted.
    """
    there = log.header_of(path).get("corpus", corpus) if run.train.from_run else corpus
    if other := differences(there, json.loads(json.dumps(corpus)), "corpus"):
        raise CheckpointError(
            f"got {run.data.corpus} that has changed since {path} ({other}); need the tokens that run read; "
            "because the place in the data goes on"
        )


def held(state: dict[str, Any], before: Policy, now: Policy) -> dict[str, Any]:
    """The part of a run's state that the checkpoint of a run with the policy `before` holds, under its names there.

    state: as a run with the policy `now` saves it. The tensors are the same, so loading fills those of `state`.
    """
    names = {name: _name_there(name, before, now) for name in state}
    return {there: state[name] for name, there in names.items() if there}


def _name_there(name: str, before: Policy, now: Policy) -> str:
    """What the parent calls the entry `name` of a state; '' if it has none, because it had no such codec."""
    kind, _, rest = name.removeprefix("model.").partition(".")
    if kind == "dp_weight":
        return name if before.dp_weight == now.dp_weight else ""
    if kind != "calls":
        return name
    stage, _, key = rest.partition(".")
    role = key.partition(".")[0]
    codec = now.codecs(role)[key]
    return f"model.calls.{stage}.{before.key(role, codec)}" if codec in before.codecs(role).values() else ""

"""Small runs and their corpus, for every test of the trainer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from taco.config import Data, Model, Parallel, Policy, Run, Train, to_dict
from taco.log import Log, read
from taco.recipes import policy, preset
from taco.train.data import prepare
from taco.train.files import Files, Options, start_step
from taco.train.launch import World
from taco.train.trainer import Trainer

MODEL = Model(name="tiny", arch="gpt", layers=2, hidden=32, heads=4, kv_heads=4, ffn=64, vocab=512, max_seq=32)
TRAIN = Train(steps=10, batch=4, warmup=2, checkpoint_every=3, eval_every=5, eval_batches=2, timeout_s=30.0)
# what a step decides; the rest of its record is time
NUMBERS = ("step", "loss", "lr", "grad_norm", "wire")


def stochastic(name: str = "int8"):
    """The preset `name` with stochastic rounding: its numbers depend on how many messages came before."""
    return replace(preset(name), name=f"{name}-stochastic", rounding="stochastic")


def corpus(folder: Path) -> Path:
    """A prepared corpus of a few thousand bytes."""
    for name, numbers in (("train", range(300)), ("val", range(300, 360))):
        text = "\n".join(f"Paragraph {i} says that {i} squared is {i * i}, no more." for i in numbers)
        (folder / f"{name}.txt").write_text(text)
    prepare([folder / "train.txt"], folder / "data", held_out=[folder / "val.txt"])
    return folder / "data"


def tiny_run(data: Path, *, parallel: Parallel | None = None, chosen: Policy | None = None, **train) -> Run:
    return Run(
        name="tiny-run",
        model=MODEL,
        parallel=parallel or Parallel(),
        policy=chosen or policy(),
        data=Data(corpus=str(data), seq=16),
        train=replace(TRAIN, **train),
    )


def written(run: Run, folder: Path) -> str:
    """The run as a JSON file."""
    path = folder / f"{run.name}.json"
    path.write_text(json.dumps(to_dict(run)))
    return str(path)


class StopHereError(Exception):
    """Stands for whatever ends a process."""


def _stop_at(step: int) -> Callable[..., None]:
    def stop(done: int, *_) -> None:
        if done == step:
            raise StopHereError

    return stop


def fit(run: Run, out: Path, *, rank: int = 0, size: int = 1, stop: int = 0, **options) -> int | None:
    """Train in this process; stop > 0 ends it with that step. Returns the step it started after."""
    here = World(rank=rank, size=size, local_rank=rank, local_size=size)
    chosen = Options(source="test", out=out, **options)
    start = here.agree(lambda: start_step(run, Files(run, chosen), chosen))
    if start is None:
        return None
    trainer = Trainer(run, here, chosen, start)
    if stop:
        trainer.progress.step = _stop_at(stop)
    try:
        trainer.fit()
    except StopHereError:
        here.barrier()
    return start


def fit_ranks(rank: int, size: int, run: Run, out: Path, stop: int) -> int | None:
    """`fit` as the body of `run_ranks`."""
    return fit(run, out, rank=rank, size=size, stop=stop)


def log_of(out: Path, name: str = "tiny-run") -> Log:
    return read(out / "results" / "test" / f"{name}.jsonl")


def numbers(log: Log) -> list:
    """Every number of the run that must not depend on when it was interrupted."""
    steps = [tuple(record[key] for key in NUMBERS) for record in log.of("step")]
    return steps + [(r["step"], r["val_loss"]) for r in log.of("eval")]

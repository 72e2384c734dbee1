"""One run from its configuration to its log.

    step s = 1..steps:   batch(s) -> par.step -> par.clip_ -> AdamW -> record
    after it, if due:    validation loss, checkpoint

The batch is a pure function of the step, and a checkpoint holds everything else that the next step reads,
so a resumed run goes through the same numbers, bit for bit where the kernels are deterministic: on a GPU attention's
backward adds in no fixed order.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from taco.comm import Meter
from taco.config import NONE, ROLES, Run, to_dict
from taco.log import LogWriter
from taco.models import build
from taco.models.flops import flops_per_token, parameters
from taco.parallel import build_mesh, setup, uncompressed
from taco.parallel.evaluation import ACTIVATIONS, untraced
from taco.train import checkpoint, fork
from taco.train.evaluate import datasets, final_records, held_out
from taco.train.files import Files, Options, check_writable, start_step
from taco.train.launch import World, world
from taco.train.lost import naming_lost_ranks
from taco.train.measure import StepMeter
from taco.train.monitor import Capture, Sqnr, Watch
from taco.train.optimizer import adamw, learning_rate, set_learning_rate_
from taco.train.progress import Progress
from taco.train.provenance import collect

# "exact" are the small sums that no codec touches (norms, logit maxima)
LOGGED_ROLES = (*ROLES, "exact")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# the first steps allocate, start threads and fill caches: they are logged, but not part of a run's speed
WARM_UP_STEPS = 2


class Trainer:
    """One rank of a run. All ranks construct and call the same things in the same order.

    start: the step after which to go on. fresh: there is nothing of the run's own to go on from; then `parent` is the
    run that it starts from, if any. `doing` says what the rank is at, for an error's text.
    """

    def __init__(self, run: Run, here: World, options: Options, start: int) -> None:
        self.run, self.here, self.options, self.start = run, here, options, start
        self.files, self.doing = Files(run, options), "setting up"
        self.fresh = start == run.train.from_step
        self.parent: fork.Parent | None = None
        self.captures = options.captures(run)
        p, t = run.parallel, run.train
        torch.manual_seed(t.seed)
        self.train_data, self.held_out, self.other = datasets(run)
        local = t.batch // p.dp
        self.microbatches = p.microbatches if p.pp > 1 else local // (t.micro_batch or local)
        self.watch, self.meter = Watch(), Meter()
        self.par = setup(
            run.model,
            partial(build, run.model, t.seed),
            p,
            run.policy,
            mesh=build_mesh(p, here.device.type),
            meter=self.meter,
            observer=self.watch,
            dtype=DTYPES[t.dtype],
            device=here.device,
            seed=t.seed,
        )
        self.optimizer = adamw(self.par.named_parameters(), t)
        self.steps = StepMeter(here, self.meter, LOGGED_ROLES)
        self.log: LogWriter | None = None
        self.timings: list[tuple[float, float | None]] = []  # step, and communication in it where that is known
        self.losses: list[float] = []  # of the steps since the log's last step record
        self.val_loss = math.nan
        self.progress = Progress(run.name, t.steps, start, quiet=here.rank > 0)

    # --- state ---------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        named = self.par.named_parameters()
        return {
            **{f"model.{name}": value for name, value in self.par.state_dict().items()},
            **checkpoint.optimizer_state(named, self.optimizer),
            **checkpoint.rng_state(self.here),
        }

    def _restore(self) -> None:
        state = self._state()
        root, there = self.files.checkpoints, state
        if self.fresh:
            self.parent = self.here.agree(lambda: fork.parent(self.run, self.files.from_checkpoints))
            root, there = self.files.from_checkpoints, fork.held(state, self.parent.run.policy, self.run.policy)
        checkpoint.load_(root, self.start, there, self.here)
        model = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        self.par.load_state_dict(model)
        checkpoint.set_rng_state(self.here, state)

    def _open_log(self) -> None:
        header = {
            "name": self.run.name,
            "config": to_dict(self.run),
            "provenance": collect(self.here, self.run.train.seed),
            "corpus": {key: self.train_data.meta.get(key) for key in ("tokenizer", "vocab", "splits")},
            "parameters": parameters(self.run.model),
            "flops_per_token": flops_per_token(self.run.model, self.run.data.seq),
        }
        if self.other is not None:
            header["other_corpus"] = {key: self.other.meta.get(key) for key in ("tokenizer", "vocab", "splits")}
        tables = {role: comm.crossover for role, comm in self.par.communicators.items() if comm.crossover}
        if tables:
            header["crossover"] = {role: table.about() for role, table in tables.items()}
        for path in self.captures.values():
            check_writable(path)
        if self.fresh:
            fork.check_corpus(self.run, self.files.from_log, header["corpus"])
            self.files.clear()
        self.log = LogWriter(self.files.log, header, resume_step=None if self.fresh else self.start)
        for record in self.log.kept:
            if record["kind"] == "step":
                self.timings.append((record["step_ms"], record["phases_ms"].get("comm")))
            if record["kind"] == "eval":
                self.val_loss = float(record["val_loss"])

    def _write(self, kind: str, **record: Any) -> None:
        if self.log is not None:
            self.log.write(kind, **record)

    # --- one step ------------------------------------------------------------------------------------

    def _step(self, step: int) -> None:
        t, p = self.run.train, self.run.parallel
        rate = learning_rate(step, t)
        set_learning_rate_(self.optimizer, rate)
        self.par.begin_step(step)
        self.steps.begin()
        with self.steps.timed("data"):
            batch = self.train_data.batch(step - 1, self.par.dp_rank, p.dp)
            tokens, targets = (x.to(self.here.device, non_blocking=True) for x in batch)
        with self.steps.timed("forward_backward"):
            self.par.zero_grad()
            replay = self.options.replay and not self.watch.watchers
            loss = self.par.step(tokens, targets, self.microbatches, replay=replay)
        with self.steps.timed("optimizer"):
            norm = self.par.clip_(t.clip)
            self.optimizer.step()
        measured = self.steps.end(replayed=self.par.replayed)
        self.timings.append((measured["step_ms"], measured["phases_ms"].get("comm")))
        tokens_per_s = t.batch * self.run.data.seq / (measured["step_ms"] / 1e3)
        self.losses.append(loss)
        if step % t.log_every == 0 or step == t.steps or self._saves(step):
            mean, self.losses = sum(self.losses) / len(self.losses), []
            speed = round(tokens_per_s, 1)
            self._write("step", step=step, loss=mean, lr=rate, grad_norm=norm, tokens_per_s=speed, **measured)
        self.progress.step(step, loss, tokens_per_s)

    def _saves(self, step: int) -> bool:
        """Whether there is a checkpoint after `step`."""
        t = self.run.train
        return bool(t.checkpoint_every) and (step == t.steps or step % t.checkpoint_every == 0)

    def _watched_step(self, step: int) -> None:
        """A step, with the observers that are due on it."""
        t, p = self.run.train, self.run.parallel
        due = bool(t.monitor_every) and step % t.monitor_every == 0
        sqnr = Sqnr(self.run.policy, warming=self.run.policy.warming(step)) if due else None
        capture = Capture(p.virtual_tp) if step in self.captures and self.here.rank == 0 else None
        self.watch.watchers = [w for w in (sqnr, capture) if w]
        self._step(step)
        self.watch.watchers = []
        if sqnr:
            for record in self._gathered(sqnr.records):
                self._write("sqnr", step=step, **record)
        if step in self.captures:
            self.here.agree(lambda: capture.save(self.captures[step], run=self.run.name, step=step))

    def _gathered(self, records: list[dict]) -> list[dict]:
        """Records of the first rank of every pipeline stage, on rank 0; other ranks get an empty list."""
        p = self.run.parallel
        if self.here.size == 1:
            return records
        everyone: list[Any] | None = [None] * self.here.size if self.here.rank == 0 else None
        dist.gather_object(records, everyone, dst=0)
        return [record for of_rank in (everyone or [])[:: p.dp * p.tp] for record in of_rank]

    def _evaluate(self, step: int) -> None:
        t = self.run.train
        found = held_out(self.par, self.held_out, t.eval_batches, self.microbatches)
        self.val_loss = found["loss"]
        record = {"val_loss": self.val_loss, "val_accuracy": found["accuracy"], "tokens": found["tokens"]}
        everything = self.par.communicators.values()
        coded = {c.role for c in everything if c.role in ACTIVATIONS and c.codec != NONE}
        if coded:
            # what the weights are worth by themselves
            exact = found
            if any(role.endswith("forward") for role in coded):
                with untraced(everything), uncompressed(self.par):
                    exact = held_out(self.par, self.held_out, t.eval_batches, self.microbatches)
            record |= {"val_loss_uncompressed": exact["loss"], "val_accuracy_uncompressed": exact["accuracy"]}
        self._write("eval", step=step, **record)
        if step == t.steps:
            self.par.forget_recording()  # passes without a recording need its memory
            for kind, record in final_records(self.par, self.run, self.held_out, self.other, self.microbatches):
                self._write(kind, step=step, **record)

    # --- all steps -----------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train from `start` to the last step and close the log. When interrupted, the log stays an unfinished part."""
        began = time.perf_counter()
        if self.start:
            self.doing = f"loading the checkpoint of step {self.start}"
            self._restore()  # before the log: what does not load has removed nothing
        self.here.agree(self._open_log)
        if unused := self.run.unused:
            self.progress.say(f"not compressed, for want of ranks: {', '.join(map(' '.join, unused.items()))}")
        try:
            self._steps()
            self._finish(time.perf_counter() - began)
        except BaseException:
            if self.log is not None:
                self.log.abandon()
            raise
        finally:
            self.progress.close()

    def _steps(self) -> None:
        t = self.run.train
        if self.start:
            origin = self.parent.record() if self.parent else {}
            date = datetime.now(UTC).isoformat(timespec="seconds")
            self._write("fork" if origin else "resume", step=self.start, date=date, **origin)
            self.progress.say(f"goes on after step {self.start}" + (f" of {t.from_run}" if origin else ""))
        for step in range(self.start + 1, t.steps + 1):
            self.doing = f"step {step}"
            self._watched_step(step)
            if step == t.steps or (t.eval_every and step % t.eval_every == 0):
                self.doing = f"evaluation after step {step}"
                self._evaluate(step)
            if self._saves(step):
                self.doing = f"checkpoint after step {step}"
                checkpoint.save(self.files.checkpoints, step, self._state(), self.run, self.here)

    def _finish(self, wall_s: float) -> None:
        """Close the log; memory is the largest of any rank. paths and wall_s count from the last start of the run."""
        cuda = self.here.device.type == "cuda"
        mine = {"peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if cuda:  # allocated: in use at once; reserved: with what CUDA graphs keep
            mine["peak_gpu_mb"] = torch.cuda.max_memory_allocated(self.here.device) / 2**20
            mine["peak_gpu_reserved_mb"] = torch.cuda.max_memory_reserved(self.here.device) / 2**20
        everyone: list[Any] = [mine] * self.here.size
        if self.here.size > 1:
            dist.all_gather_object(everyone, mine)
        timed = self.timings[WARM_UP_STEPS:] or self.timings
        known = [(ms, comm) for ms, comm in timed if comm is not None]
        enough = 2 * len(known) > len(timed)  # the few steps that are not replayed are not like the others
        share = round(sum(comm for _, comm in known) / sum(ms for ms, _ in known), 4) if enough else None
        tokens = self.run.train.batch * self.run.data.seq
        if self.log is not None:
            self.log.close(
                steps=self.run.train.steps,
                val_loss=self.val_loss,
                tokens_per_s=round(tokens / (statistics.median(ms for ms, _ in timed) / 1e3), 1),
                wall_s=round(wall_s, 3),
                comm_fraction=share,
                paths={role: dict(c.paths) for role, c in self.par.communicators.items()},
                **{key: round(max(rank[key] for rank in everyone), 1) for key in mine},
            )
            self.progress.say(f"done, validation loss {self.val_loss:.4f}, {self.files.log}")


def train(run: Run, options: Options, env: Mapping[str, str], *, device: str = "auto", threads: int = 1) -> None:
    """Train `run` on the ranks that `env` describes, from its newest checkpoint, unless it is finished.

    Raises `ConfigError`, `LogError`, `CheckpointError` or the data's errors on every rank, and `RankLostError` when a
    peer dies or hangs for `run.train.timeout_s`.
    """
    files = Files(run, options)
    with world(run, env, device=device, threads=threads) as here:
        trainer: Trainer | None = None
        with naming_lost_ranks(here, lambda: trainer.doing if trainer else "setting up"):
            start = here.agree(lambda: start_step(run, files, options))
            if start is None:
                Progress(run.name, 0, 0, quiet=here.rank > 0).say(f"is finished: {files.log} (--force runs it again)")
                return
            trainer = Trainer(run, here, options, start)
            trainer.fit()

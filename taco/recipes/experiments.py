"""Experiments: which logs each table and figure is made of, per source.

`mini` runs on two CPU cores in every `snakemake --cores all`. `logged` and `fresh` share the full-size
runs: `logged` were measured before and are kept in the repository, `fresh` runs them on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from taco.recipes import runs
from taco.recipes.collective import TRANSPORTS, log_name
from taco.recipes.measures import GPU_MEASURES
from taco.recipes.names import by_name

SOURCES = ("mini", "logged", "fresh")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table and its figure.

    mini, full: names of training runs (full serves both `logged` and `fresh`). queued: runs beside `full` that count
    where somebody has run them; without a log they have no row. measures: names of measurement logs; gpu_measures: of
    those that need a GPU, which only `logged` and `fresh` have. All are read from results/<source>/<name>.jsonl.
    """

    name: str
    title: str
    mini: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    gpu_measures: tuple[str, ...] = ()

    def runs(self, source: str) -> tuple[str, ...]:
        """Run names of a source. Raises KeyError for an unknown source."""
        return {"mini": self.mini, "logged": self.full, "fresh": self.full}[source]

    def measured(self, source: str) -> tuple[str, ...]:
        """Names of a source's measurement logs."""
        return self.measures + (self.gpu_measures if source != "mini" else ())

    def optional(self, source: str) -> tuple[str, ...]:
        """Names of runs whose logs the table reads where they exist."""
        return self.queued if source != "mini" else ()

    def logs(self, source: str) -> tuple[str, ...]:
        """Names of every log that the table asks for; none if the source does not have this experiment."""
        return self.measured(source) + self.runs(source)


def _names(group) -> tuple[str, ...]:
    return tuple(run.name for run in group)


def _baselines(group, model: str, ways: int) -> tuple[str, ...]:
    wanted = [f"{model}-vtp{ways}-{arm}" for arm in ("none-s1", "none-s2", "taco-s1", "int8-s1", "int4-s1")]
    return tuple(run.name for run in group if run.name in wanted)


EXPERIMENTS: dict[str, Experiment] = by_name(
    Experiment(
        name="codec_fidelity",
        title="What each codec keeps of a tensor, and for how many bytes",
        measures=("codec_fidelity",),
    ),
    Experiment(name="distribution", title="What tensor-parallel tensors look like", measures=("distribution",)),
    Experiment(
        name="accuracy",
        title="Validation loss by tensor-parallel codec",
        mini=_names(runs.MINI_ACCURACY),
        full=_names(runs.FULL_ACCURACY),
        queued=_names(runs.QUEUED + runs.EIGHT_WAYS),
    ),
    Experiment(
        name="pareto",
        title="What each policy costs in loss and saves in bytes, over the pairs of runs there are",
        mini=_names(runs.MINI_ACCURACY + runs.MINI_PROBE),
        full=_names(runs.FULL_ACCURACY),
        queued=_names(runs.QUEUED + runs.EIGHT_WAYS),
    ),
    Experiment(
        name="threed",
        title="Compressing tensor, data and pipeline parallelism alone and together",
        mini=_names(runs.MINI_THREED),
        full=_names(runs.FULL_THREED),
    ),
    Experiment(
        name="scaling",
        title="Throughput, communication and bytes by cluster shape",
        mini=_names(runs.MINI_SCALING + runs.MINI_SCALING_SHARED),
        full=_names(runs.FULL_SCALING),
    ),
    Experiment(
        name="ablation",
        title="What each part of the codec buys",
        mini=_names(runs.MINI_ABLATION) + _baselines(runs.MINI_ACCURACY, "gpt-mini", 2),
        full=_names(runs.FULL_ABLATION) + _baselines(runs.FULL_ACCURACY, "gpt-125m", 2),
        measures=("ablation",),
    ),
    Experiment(
        name="correctness",
        title="The rules a training codec must keep: ours and the published semantics",
        measures=("correctness",),
    ),
    Experiment(
        name="codec_speed",
        title="How near each codec comes to the speed of a copy",
        gpu_measures=("codec_speed",),
    ),
    Experiment(
        name="collective",
        title="How fast collectives are against the best uncompressed ones",
        gpu_measures=tuple(log_name(transport) for transport in TRANSPORTS),
    ),
)

# Measurement logs that read captured tensors, and every one.
CAPTURE_MEASURES = ("codec_fidelity", "distribution", "ablation")
MEASURES = (*CAPTURE_MEASURES, "correctness", *GPU_MEASURES)


def captures(source: str) -> dict[str, tuple[int, ...]]:
    """Runs of a source whose tensors are captured, and at which steps."""
    return {"mini": runs.MINI_CAPTURE, "logged": runs.FULL_CAPTURE, "fresh": runs.FULL_CAPTURE}[source]

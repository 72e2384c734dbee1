"""One training run as the numbers that tables need."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath

from taco import log
from taco.config import ENDS, ROLES, run_from_dict, to_dict
from taco.paper.table import Row, number
from taco.paper.tables.load import Logs, codec_rank, mean, median, missing, provenance, run_config

WARM_STEPS = 3
"""Steps left out of every time: the first ones allocate, connect and fill caches."""

MIB = 2**20
SENT = (*ROLES, "exact")
"""Every role that a step counts; exact: small sums that always go uncompressed."""

AXES = {"tp": ("tp_forward", "tp_backward"), "dp": ("dp_gradient", "dp_weight"), "pp": ("pp_forward", "pp_backward")}


def joined(names: list[str]) -> str:
    """Distinct codec names with '+', or 'none'."""
    used = [n for i, n in enumerate(names) if n != "none" and n not in names[:i]]
    return "+".join(used) if used else "none"


def _other_codecs(policy: dict) -> list[str]:
    """A policy's overrides and warm-up in words, such as 'int8 in blocks 0 11' or 'int8 for 20 steps'."""
    places: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for each in policy["overrides"]:
        where = each["codec"]["name"], tuple(sorted(each["layers"]))
        places.setdefault(where, []).append(each["role"].removeprefix("tp_"))
    words = []
    for (codec, layers), roles in places.items():
        numbers = [str(layer) for layer in layers if layer != ENDS]
        blocks = [f"block{'s' if len(numbers) > 1 else ''} {' '.join(numbers)}"] if numbers else []
        where = " and ".join((["the ends"] if ENDS in layers else []) + blocks)
        words.append(f"{codec} in {where}" if len(roles) == len(AXES["tp"]) else f"{codec} {roles[0]} in {where}")
    if steps := policy["warmup_steps"]:
        words.append(f"{policy['warmup']['name']} for {steps} step{'s' if steps > 1 else ''}")
    return words


@dataclass(frozen=True)
class Summary:
    """A run of an experiment: its configuration, and its log unless that is missing.

    Times are medians over the steps after `WARM_STEPS`; wire bytes are what the busiest rank sends in a step.
    """

    name: str
    config: dict
    log: log.Log | None = field(default=None, repr=False)

    @cached_property
    def steps(self) -> list[dict]:
        return self.log.of("step") if self.log else []

    @property
    def seed(self) -> int:
        return self.config["train"]["seed"]

    @property
    def model(self) -> str:
        return self.config["model"]["name"]

    @property
    def ways(self) -> int:
        """Tensor-parallel ranks, real or virtual."""
        return self.config["parallel"]["tp"] * self.config["parallel"].get("virtual_tp", 1)

    def codec(self, axis: str) -> str:
        """The codecs of one axis (tp, dp, pp) of the grid, 'none' if the axis is not compressed."""
        policy = self.config["policy"]
        names = [policy[role]["name"] for role in AXES[axis]]
        return joined(names + [each["codec"]["name"] for each in policy["overrides"] if each["role"] in AXES[axis]])

    @property
    def tp_codec(self) -> str:
        """The TP codec if both directions share it, else what each direction has; behind it, in parentheses, blocks and
        first steps that have another."""
        policy = self.config["policy"]
        forward, backward = (policy[role]["name"] for role in AXES["tp"])
        words = forward if forward == backward else f"{forward} forward, {backward} backward"
        others = _other_codecs(policy)
        return f"{words} ({', '.join(others)})" if others else words

    @property
    def compressed(self) -> bool:
        return any(self.codec(axis) != "none" for axis in AXES)

    @property
    def control(self) -> bool:
        """Whether the run differs from an uncompressed one by how sums are rounded."""
        return self.config["parallel"]["virtual_sum"] != "once"

    @property
    def corpus(self) -> str:
        return PurePath(self.config["data"]["corpus"]).name

    @property
    def text(self) -> str:
        """The sha256 of the tokens that were learned from; '' where no log says."""
        splits = (self.log.header.get("corpus") or {}).get("splits") if self.log else None
        return (splits or {}).get("train", {}).get("sha256", "")

    @property
    def planned_tokens(self) -> int:
        """Of the whole run, whether or not it has a log."""
        return self.config["train"]["steps"] * self.config["train"]["batch"] * self.config["data"]["seq"]

    @property
    def shared_tokens(self) -> int:
        """Tokens before the checkpoint that a run starts from, learned under its parent's policy; 0 without one."""
        train = self.config["train"]
        return train["from_step"] * train["batch"] * self.config["data"]["seq"]

    def key(self, *, seed: bool = True, parallel: bool = True) -> str:
        """What two runs must share to be compared: all but name, codecs, the rounding of sums, how often they log and
        how many checkpoints they keep, and but seed or grid if asked."""
        but = {"log_every", "keep_checkpoints"} | (set() if seed else {"seed", "from_run"})
        train = {k: v for k, v in self.config["train"].items() if k not in but}
        parts = {"model": self.config["model"], "data": self.config["data"], "train": train}
        grid = {"parallel": self.config["parallel"] | {"virtual_sum": "once"}} if parallel else {}
        return json.dumps(parts | grid, sort_keys=True)

    @property
    def val_loss(self) -> float:
        if self.log is None:
            return math.nan
        evals = self.log.of("eval")
        return number(self.log.end.get("val_loss", evals[-1]["val_loss"] if evals else None))

    @property
    def val_accuracy(self) -> float:
        """Share of held-out tokens that are the most probable ones; NaN in logs that do not say."""
        evals = self.log.of("eval") if self.log else []
        return number(evals[-1].get("val_accuracy")) if evals else math.nan

    @property
    def val_loss_uncompressed(self) -> float:
        """Held-out loss of the final weights with messages as they are; NaN in logs that do not say."""
        evals = self.log.of("eval") if self.log else []
        return number(evals[-1].get("val_loss_uncompressed")) if evals else math.nan

    @property
    def other(self) -> dict:
        """The record of the other corpus' held-out text, empty without one."""
        found = self.log.of("held_out") if self.log else []
        return found[-1] if found else {}

    @property
    def tokens(self) -> int | None:
        train = self.config["train"]
        return self.steps[-1]["step"] * train["batch"] * self.config["data"]["seq"] if self.steps else None

    def _warm(self) -> list[dict]:
        return self.steps[WARM_STEPS:] or self.steps

    @property
    def tokens_per_s(self) -> float:
        return median(s.get("tokens_per_s") for s in self._warm())

    @property
    def step_ms(self) -> float:
        return median(s.get("step_ms") for s in self._warm())

    @property
    def step_ms_quartiles(self) -> tuple[float, float]:
        """First and third quartile of the step time; NaN with fewer than two steps."""
        times = [number(s["step_ms"]) for s in self._warm()]
        if len(times) < 2:
            return math.nan, math.nan
        low, _, high = statistics.quantiles(times, n=4)
        return low, high

    @property
    def comm_fraction(self) -> float:
        """Share of the step's time spent in communication, from the same step's clock; NaN if most steps do not say."""
        shares = [number(s["phases_ms"].get("comm")) / number(s["step_ms"]) for s in self._warm() if "phases_ms" in s]
        known = sum(not math.isnan(share) for share in shares)
        return median(shares) if 2 * known > len(shares) else math.nan

    def wire_mib(self, *roles: str) -> float:
        """MiB one rank sends in a step for these roles; NaN without a log."""
        return mean(sum(s.get("wire", {}).get(r, {}).get("wire", 0) for r in roles) / MIB for s in self.steps)

    def wire_ratio(self, *roles: str) -> float:
        """Bytes the same messages have uncompressed, over bytes sent; NaN if nothing was sent."""
        totals = {
            k: sum(s.get("wire", {}).get(r, {}).get(k, 0) for s in self.steps for r in roles) for k in ("raw", "wire")
        }
        return totals["raw"] / totals["wire"] if totals["wire"] else math.nan

    def provenance(self) -> Row:
        return provenance(self.name, self.log) if self.log else missing(self.name, self.seed)


def place_order(row: Row) -> tuple:
    """What rows of runs are sorted by first: model, grid, text and tokens, then codec."""
    where = row["model"], row["tp"], row["corpus"], row["planned_tokens"], row["shared_tokens"]
    return *where, codec_rank(row["codec"])


def summaries(logs: Logs) -> list[Summary]:
    """All runs of an experiment; a measured run's configuration is its log's, a missing one's is the recipe's."""
    # through a Run: a log from before a field existed has that field's default, and is comparable with later logs
    found = [
        Summary(name, to_dict(run_from_dict(source.header["config"])), source) for name, source in logs.runs.items()
    ]
    return found + [Summary(name, run_config(name)) for name in logs.missing_runs]


def baseline(run: Summary, runs: list[Summary]) -> Summary | None:
    """The measured uncompressed run that differs from `run` in nothing but its codecs, and has read the same tokens; of
    several the first that was run, whatever its loss."""
    same = [r for r in runs if _plain_as(r, run) and not r.control and r.key() == run.key()]
    return min(same, key=_by_date, default=None)


def _by_date(run: Summary) -> tuple[str, str]:
    return run.log.header["provenance"].get("date") or "", run.name


def change_pct(value: float, reference: float) -> float:
    """100 (value - reference) / reference."""
    return 100 * (value - reference) / reference


def delta_pct(run: Summary, base: Summary | None) -> float:
    """Change of the validation loss to the baseline in percent; NaN if one of the two is missing."""
    return change_pct(run.val_loss, base.val_loss) if base else math.nan


def uncompressed_pct(run: Summary, base: Summary | None) -> float:
    """Change of the validation loss in percent when the run's weights are judged with messages as they are."""
    return change_pct(run.val_loss_uncompressed, base.val_loss) if base else math.nan


def control_changes_pct(run: Summary, runs: list[Summary]) -> list[float]:
    """Changes of validation loss from the baselines of `run`'s grid, one a seed, to uncompressed runs of their seed
    that differ by rounding alone: another grid or order of sums, a repetition, what a fork left. Finite ones only."""
    alike = [r for r in runs if _plain_as(r, run)]
    bases: dict[int, Summary] = {}
    for each in sorted(alike, key=_by_date):
        if not each.control and each.key(seed=False) == run.key(seed=False):
            bases.setdefault(each.seed, each)
    pairs = [(base, r) for base in bases.values() for r in alike if r is not base]
    changes = [change_pct(r.val_loss, base.val_loss) for base, r in pairs if _repeats(r, base) or _went_on(r, base)]
    return [change for change in changes if math.isfinite(change)]


def _repeats(run: Summary, base: Summary) -> bool:
    return run.seed == base.seed and run.key(parallel=False) == base.key(parallel=False)


def _went_on(run: Summary, fork: Summary) -> bool:
    """Whether `fork` starts from a checkpoint of `run` and does what that does after it."""
    own = {"train": {**fork.config["train"], "from_run": "", "from_step": 0}}
    return run.name == fork.config["train"]["from_run"] and Summary(run.name, fork.config | own).key() == run.key()


def control_band_pct(run: Summary, runs: list[Summary]) -> float:
    """The largest of `control_changes_pct`, whatever its sign: what chance alone does at one seed; NaN without."""
    return max(map(abs, control_changes_pct(run, runs)), default=math.nan)


def _plain_as(other: Summary, run: Summary) -> bool:
    """Whether `other` is measured and uncompressed, and has read the same tokens as `run` if that is measured: a folder
    of one name may hold another text elsewhere."""
    return bool(other.log) and not other.compressed and (not run.log or other.text == run.text)


def noise_band_pct(run: Summary, runs: list[Summary]) -> float:
    """Largest change of validation loss between uncompressed runs that differ in the seed only; NaN with one seed.

    Every grid of the same model counts: without compression grids differ by fp32 rounding.
    """
    wanted = run.key(seed=False, parallel=False)
    losses: dict[int, list[float]] = {}
    for r in runs:
        if _plain_as(r, run) and r.key(seed=False, parallel=False) == wanted:
            losses.setdefault(r.seed, []).append(r.val_loss)
    if len(losses) < 2:
        return math.nan
    means = [mean(losses[seed]) for seed in sorted(losses)]
    return max(abs(change_pct(value, means[0])) for value in means[1:])

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

    @property
    def checkpoint_written(self) -> str:
        """When the checkpoint was written that the run starts from; '' where no log says."""
        starts = self.log.of("fork") if self.log else []
        return starts[-1].get("written", "") if starts else ""

    def key(self, *, seed: bool = True, parallel: bool = True) -> str:
        """What two runs must share to be compared: all but name, codecs, the rounding of sums, how often they log and
        how many checkpoints they keep, and but seed (with the checkpoint they start from) or grid if asked."""
        but = {"log_every", "keep_checkpoints"} | (set() if seed else {"seed", "from_run"})
        train = {k: v for k, v in self.config["train"].items() if k not in but}
        parts = {"model": self.config["model"], "data": self.config["data"], "train": train}
        parts |= {"parallel": self.config["parallel"] | {"virtual_sum": "once"}} if parallel else {}
        parts |= {"checkpoint": self.checkpoint_written} if seed else {}
        return json.dumps(parts, sort_keys=True)

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

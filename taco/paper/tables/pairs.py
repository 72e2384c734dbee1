"""Which two runs are compared, by how much their losses differ, and by how much chance alone makes losses differ."""

from __future__ import annotations

import math

from taco.paper.tables.load import mean
from taco.paper.tables.summary import Summary


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
    """Changes of validation loss from the baselines of `run`'s grid, one a seed and checkpoint, to uncompressed runs of
    their seed that differ by rounding alone: another grid or order of sums, a repetition, what a fork left. Finite
    ones only."""
    alike = [r for r in runs if _plain_as(r, run)]
    bases: dict[str, Summary] = {}
    for each in sorted(alike, key=_by_date):
        if not each.control and each.key(seed=False) == run.key(seed=False):
            bases.setdefault(each.key(), each)
    pairs = [(base, r) for base in bases.values() for r in alike if r is not base]
    same = [(base, r) for base, r in pairs if r.key(parallel=False) == base.key(parallel=False) or _went_on(r, base)]
    changes = [change_pct(r.val_loss, base.val_loss) for base, r in same]
    return [change for change in changes if math.isfinite(change)]


def _went_on(run: Summary, fork: Summary) -> bool:
    """Whether `fork` starts from a checkpoint of `run` and does what that does after it. A run that began after the
    checkpoint was written is a later one of the same name."""
    own = {"train": {**fork.config["train"], "from_run": "", "from_step": 0}}
    earlier = not fork.checkpoint_written or _by_date(run)[0] <= fork.checkpoint_written
    alike = run.name == fork.config["train"]["from_run"] and Summary(run.name, fork.config | own).key() == run.key()
    return alike and earlier


def control_band_pct(run: Summary, runs: list[Summary]) -> float:
    """The largest of `control_changes_pct`, whatever its sign: what chance alone does at one seed; NaN without."""
    return max(map(abs, control_changes_pct(run, runs)), default=math.nan)


def _plain_as(other: Summary, run: Summary) -> bool:
    """Whether `other` is measured and uncompressed, and has read the same tokens as `run` if that is measured: a folder
    of one name may hold another text elsewhere."""
    return bool(other.log) and not other.compressed and (not run.log or other.text == run.text)


def noise_band_pct(run: Summary, runs: list[Summary]) -> float:
    """Largest change of validation loss from the first seed's uncompressed runs to another's; NaN with one seed.

    A seed's loss is the mean over its grids, orders of sums and repetitions, which differ by rounding alone. With two
    seeds this is a single difference, which may be small by coincidence.
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

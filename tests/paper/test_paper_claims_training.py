"""Which runs and captured steps the claims about training are judged by."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from test_paper_claims import judge, loss, seeds, write_rows

from taco.paper.claims.verdict import FAILS, HOLDS, UNTESTABLE
from taco.recipes.queue import STRESS


def test_runs_made_hard_on_purpose_judge_no_claim(tmp_path: Path):
    rows = seeds(loss("taco", 0.1))
    hard = loss("taco", 5.0) | {"seed": 1, "log": "gpt-125m-outliers-vtp4-taco-s1"}
    assert hard["log"] in STRESS
    assert (
        judge("near-lossless", tmp_path, [*rows, hard]).verdict
        == judge("near-lossless", tmp_path, rows).verdict
        == HOLDS
    )
    assert judge("near-lossless", tmp_path, [*rows, hard | {"log": "another"}]).verdict == FAILS


def test_the_longest_runs_judge_the_loss(tmp_path: Path):
    short = seeds(loss("taco", 0.1, 0.2))
    longer = [row | {"planned_tokens": 9000} for row in seeds(loss("taco", 0.9, 0.3))]
    assert judge("near-lossless", tmp_path, short).verdict == HOLDS
    found = judge("near-lossless", tmp_path, [*short, *longer])
    assert (found.verdict, found.value) == (FAILS, pytest.approx(0.9))
    assert len(found.rows) == 3
    one = judge("near-lossless", tmp_path, [*short, longer[0]])
    assert (one.verdict, one.value) == (UNTESTABLE, pytest.approx(0.9))
    assert "over 1 pair of runs of 0.0 M tokens" in one.reason
    forks = [row | {"shared_tokens": 4500} for row in longer]
    assert judge("near-lossless", tmp_path, [*short, *forks]).value == pytest.approx(0.1)
    other = [row | {"planned_tokens": 9000, "model": "other"} for row in seeds(loss("taco", -3.0, 0.3))]
    assert judge("near-lossless", tmp_path, [*longer, *other]).value == pytest.approx(0.9)
    assert judge("near-lossless", tmp_path, [loss("taco", 0.1) | {"seed": s} for s in (1, 2)]).verdict == UNTESTABLE


def test_each_captured_step_counts_and_hard_runs_do_not(tmp_path: Path):
    def pair(dataset: str, step: int, gain: float) -> list[dict]:
        place = {"part": "sqnr", "base": "taco", "axis": "rotation", "dataset": dataset, "step": step}
        return [
            place | {"role": "tp_forward", "value": value, "sqnr_db": 30.0 + more}
            for value, more in (("none", 0.0), ("hadamard", gain))
        ]

    rows = [*pair("run", 20, 1.0), *pair("run", 200, 3.0)]
    assert judge("hadamard", tmp_path, rows).value == pytest.approx(2.0)
    hard = pair("gpt-125m-outliers-vtp4-none-s1", 200, -9.0)
    assert judge("hadamard", tmp_path, [*rows, *hard]).value == pytest.approx(2.0)
    near = [
        {"part": "tensor", "run": run, "role": "tp_forward", "near_zero_fraction": share, "rms": 1.0}
        for run, share in (("run", 0.1), ("gpt-125m-vtp4-none-hot-s1", 0.9))
    ]
    assert judge("near-zero", tmp_path, near).value == pytest.approx(0.1)


def fork(codec: str, delta: float, seed: int, *, ratio: float = 2.0, control: float = 0.02, **changes) -> dict:
    row = loss(codec, delta, control=control, seed=seed) | {"shared_tokens": 500, "wire_ratio": ratio}
    return row | {"log": f"{codec}-{seed}-{changes.get('model', '')}"} | changes


def forks(codec: str, *deltas: float, **more) -> list[dict]:
    return [fork(codec, delta, seed, **more) for seed, delta in enumerate(deltas, 1)]


@pytest.mark.parametrize(
    ("rows", "verdict", "value"),
    [
        (forks("int8", 0.0, 0.01, 0.02), HOLDS, 0.01),
        (forks("int8", 0.0, 0.1, 0.2), FAILS, 0.1),
        (forks("int8", 0.0, 0.01, 0.02) + forks("int8", 0.1, 0.1, 0.1, model="other"), FAILS, 0.1),
        (forks("int8", 0.0, 0.02), UNTESTABLE, 0.01),
        # a model with a single seed decides nothing, and if it is beyond the limit nothing is decided
        ([*forks("int8", 0.0, 0.01, 0.02), fork("int8", 0.03, 1, model="other")], HOLDS, 0.01),
        ([*forks("int8", 0.0, 0.01, 0.02), fork("int8", 0.06, 1, model="other")], UNTESTABLE, 0.06),
        (forks("int8", 0.0, 0.01, 0.02, control=0.4), UNTESTABLE, 0.01),
        (forks("int8", 0.0, 0.01, 0.02, control=math.nan), UNTESTABLE, 0.01),
        ([*forks("int8", 0.0, 0.01), fork("int8", math.nan, 3, val_loss=math.nan)], FAILS, math.inf),
        ([row | {"shared_tokens": 0} for row in forks("int8", 0.0, 0.01, 0.02)], UNTESTABLE, math.nan),
    ],
)
def test_int8_is_judged_by_forks_where_chance_is_small(rows: list[dict], verdict: str, value: float, tmp_path: Path):
    found = judge("int8-loss", tmp_path, rows)
    assert found.verdict == verdict
    assert found.value == pytest.approx(value, nan_ok=True)


@pytest.mark.parametrize(
    ("rows", "verdict", "value"),
    [
        (forks("a", 0.1, 0.0, 0.1, ratio=2.6) + forks("b", 0.2, 0.2, 0.2, ratio=3.0), HOLDS, 2.6),
        (forks("a", 0.1, 0.0, 0.1, ratio=2.4) + forks("b", 0.2, 0.2, 0.2, ratio=3.0), FAILS, 2.4),
        # another has too few seeds: it leaves the claim open if it would do
        (forks("a", 0.1, 0.0, 0.1, ratio=2.4) + forks("b", 0.05, ratio=3.0), UNTESTABLE, 3.0),
        (forks("a", 0.1, 0.0, 0.1, ratio=2.4) + forks("b", 0.05, ratio=2.45), FAILS, 2.4),
        (forks("b", 0.05, ratio=2.45), UNTESTABLE, 2.45),
        # chance is not known, or larger than what is asked for
        (forks("a", 0.1, 0.0, 0.1, ratio=2.6, control=math.nan), UNTESTABLE, 2.6),
        (forks("a", 0.1, 0.0, 0.1, ratio=2.6, control=1.0), UNTESTABLE, 2.6),
        (forks("a", 0.1, 0.0, 0.1, ratio=2.6) + forks("b", 0.05, ratio=3.0), HOLDS, 2.6),
        # one model is enough to fail on
        (forks("a", *[0.1] * 3, ratio=2.6) + forks("a", *[0.3] * 3, ratio=2.6, model="other"), UNTESTABLE, math.nan),
        (
            [*forks("a", 0.0, 0.0, ratio=2.6), fork("a", math.nan, 3, ratio=2.6, val_loss=math.nan)],
            UNTESTABLE,
            math.nan,
        ),
        (forks("none", 0.0, 0.0, 0.0, ratio=9.0), UNTESTABLE, math.nan),
        (forks("a", 0.0, 0.0, 0.0, ratio=4.0, dtype="float32"), UNTESTABLE, math.nan),
    ],
)
def test_the_fewest_bytes_at_little_loss(rows: list[dict], verdict: str, value: float, tmp_path: Path):
    found = judge("fewest-bytes", tmp_path, rows)
    assert found.verdict == verdict
    assert found.value == pytest.approx(value, nan_ok=True)


def test_forks_stand_beside_the_whole_runs_of_the_papers_codec(tmp_path: Path):
    whole = seeds(loss("taco", 0.9, control=1.0))
    found = judge("near-lossless", tmp_path, [*whole, *forks("taco", 0.1, 0.2)])
    assert found.verdict == UNTESTABLE
    assert "it changes the loss by +0.150% (2 seeds; rounding alone 0.020%)" in found.reason


def test_growth_over_layers_stands_beside_that_over_steps(tmp_path: Path):
    rows = [row | {"first_quarter_pct": 0.1, "last_quarter_pct": 0.3} for row in seeds(loss("taco", 0.1))]
    assert "layers are not separated" in judge("error-growth", tmp_path, rows).reason
    logs = (
        ("one", {}, (0.1, 0.5, 0.2)),
        ("alone", {"codec": "rounding"}, (0.1, 0.5, 0.8)),
        ("gpt-125m-outliers-vtp4-taco-s1", {}, (1.0, 1.0, 9.0)),
        ("fork", {"shared_tokens": 500}, (1.0, 1.0, 9.0)),
        ("longer", {"planned_tokens": 2000}, (1.0, 1.0, 9.0)),
        ("other", {"codec": "int8"}, (1.0, 1.0, 9.0)),
    )
    depth = [
        {"part": "depth", "codec": "taco", "planned_tokens": 1000, "shared_tokens": 0, "log": log, "role": role,
         "layer": layer, "error": error} | changes
        for log, changes, errors in logs
        for role in ("tp_forward", "tp_backward")
        for layer, error in zip((2, 11, 10), (errors[0], errors[2], errors[1]), strict=True)
    ]  # fmt: skip
    write_rows(tmp_path, "pareto", depth)
    reason = judge("error-growth", tmp_path, rows).reason
    assert "grows 2.0 times from the first block to the last, the gradients' 0.5 times from the last" in reason
    assert "(that of rounding 8.0 and 0.1)" in reason

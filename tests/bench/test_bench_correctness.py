"""The correctness measurement: ours passes, the published semantics fail where they are known to, checks can fail."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from taco.bench import correctness, correctness_codec, correctness_collective, correctness_ranks
from taco.bench.correctness_codec import Rule, Subject
from taco.comm import VirtualCommunicator
from taco.log import Log, read

FIELDS = {"kind", "rule", "section", "statement", "subject", "codec", "passed", "detail"}
CODEC = {rule.name: rule for rule in correctness_codec.RULES}
COLLECTIVE = {rule.name: rule for rule in correctness_collective.RULES}
OURS, AUTHORS = (next(s for s in correctness_codec.subjects() if s.name == name) for name in ("ours", "authors-code"))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    out: Path = tmp_path_factory.mktemp("correctness") / "correctness.jsonl"
    correctness.measure_correctness("mini", [], out, {"commit": "none"})
    return read(out)


def test_every_rule_of_ours_passes(log: Log) -> None:
    rows = [r for r in log.of("row") if r["subject"] == "ours"]
    assert {r["rule"] for r in rows} == {*CODEC, *COLLECTIVE, *correctness_ranks.CHECKS}
    assert {r["codec"] for r in rows} == {"taco", "int8", "int6", "int4", "fp8"}
    assert [(r["rule"], r["codec"], r["detail"]) for r in rows if not r["passed"]] == []


def test_the_published_semantics_fail_where_they_are_known_to(log: Log) -> None:
    rows = {r["rule"]: r for r in log.of("row") if r["subject"] == "authors-code"}
    assert {rule for rule, r in rows.items() if not r["passed"]} == {
        "tail",
        "non-finite",
        "large-data",
        "any-size",
        "configuration",
        "sum-precision",
        "collective-non-finite",
    }
    assert {"deterministic", "zeros"} <= set(rows)
    # ranks replayed in one process are identical whatever the code does: no verdict can rest on it
    assert "rank-identity" not in rows
    assert "0.16 dB" in rows["configuration"]["detail"]


def test_rows_have_the_tables_fields(log: Log) -> None:
    assert log.header["name"] == "correctness"
    for row in log.of("row"):
        assert set(row) == FIELDS
        assert row["section"] in ("codec", "collective")
        assert isinstance(row["passed"], bool)
        assert row["detail"]
    statements = {(r["rule"], r["statement"]) for r in log.of("row")}
    assert len(statements) == len({rule for rule, _ in statements})


# --- every check can fail -----------------------------------------------------------------------------


def _forget(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def _first_16_of_64(x: Tensor) -> Tensor:
    y = x.clone()
    y[16 if x.numel() == 64 else x.numel() :] = 0
    return y


def _in_place(x: Tensor) -> Tensor:
    return x.mul_(2.0)


BROKEN = {
    "tail": lambda x: torch.cat([x[:256] + 0.01, torch.zeros_like(x[256:])]),
    "non-finite": lambda x: x.nan_to_num(0.0, 0.0, 0.0),
    "zeros": lambda x: x + 1e-12,
    "subnormals": lambda x: x / 0.0,
    "small-data": lambda x: x + 1e-16,
    "large-data": lambda x: x.clamp(-1e6, 1e6) * 1.0001,
    "any-size": _first_16_of_64,
    "shapes": lambda x: x.reshape(-1),
    "dtypes": lambda x: x.half(),
    "input-unchanged": _in_place,
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_codec_fails_its_rule(rule: str) -> None:
    passed, detail = CODEC[rule].check(replace(OURS, roundtrip=BROKEN[rule]))
    assert not passed
    assert detail


def test_broken_encodings_fail_their_rules() -> None:
    noisy = replace(OURS, encode=lambda x: (torch.rand(8),))
    assert not CODEC["deterministic"].check(noisy)[0]
    assert not CODEC["refused"].check(noisy)[0]


def test_a_nan_that_spreads_beyond_its_group_fails() -> None:
    everywhere = replace(OURS, roundtrip=lambda x: x * (math.nan if not x.isfinite().all() else 1.0))
    passed, detail = CODEC["non-finite"].check(everywhere)
    assert not passed
    assert "more than 200 places away" in detail


def test_broken_collectives_fail_their_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in ("any-dim", "sum-precision"):  # the codec of the rule is not that of the collective
        assert not COLLECTIVE[rule].check(replace(OURS, roundtrip=_forget))[0], rule
    real = VirtualCommunicator.all_reduce
    with monkeypatch.context() as patch:
        patch.setattr(VirtualCommunicator, "all_reduce", lambda self, parts, **k: parts[0].float() + len(parts))
        for rule in ("any-world-size", "two-shot-error", "keeps-dtype", "exempt", "bad-input", "collective-non-finite"):
            assert not COLLECTIVE[rule].check(OURS)[0], rule
    monkeypatch.setattr(correctness_collective, "wire_bytes", lambda *form: 1)
    assert VirtualCommunicator.all_reduce is real
    assert not COLLECTIVE["counted-bytes"].check(OURS)[0]


def test_a_check_that_raises_is_a_failed_row_and_one_that_does_not_apply_is_none() -> None:
    def explode(subject: Subject) -> None:
        raise RuntimeError("on purpose")

    broken = Rule(name="r", section="codec", statement="s", check=explode)
    [row] = correctness._row(broken, OURS)
    assert (row["passed"], row["detail"]) == (False, "RuntimeError: on purpose")
    assert list(correctness._row(CODEC["one-packet"], AUTHORS)) == []


def test_ranks_that_differ_or_do_not_answer_fail() -> None:
    good = {"rank-identity int8": {"ok": True, "value": ["a"]}}
    other = {"rank-identity int8": {"ok": True, "value": ["b"]}}
    assert correctness_ranks._row("rank-identity", "int8", [good] * 4)["passed"]
    differs = correctness_ranks._row("rank-identity", "int8", [good, good, other, good])
    assert (differs["passed"], differs["detail"][:14]) == (False, "rank 2 differs")
    silent = correctness_ranks._row("rank-identity", "int8", [good, {}, {}, good])
    assert (silent["passed"], silent["detail"]) == (False, "no answer from rank 1, 2")

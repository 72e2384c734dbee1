"""Policies by layer, and which layers measured errors say to protect."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from taco.config import TENSOR_ROLES, ConfigError, Override
from taco.recipes import policy, preset, protected, with_layers

ERRORS = {("tp_forward", 0): 3.0, ("tp_forward", 1): 1.0, ("tp_backward", 0): 4.0, ("tp_backward", 1): "0.5"}


def records(errors: dict) -> list[dict]:
    return [{"role": role, "layer": layer, "codec": "int4", "error": e} for (role, layer), e in errors.items()]


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (1.0, {}),
        (0.4, {"tp_backward": (0,)}),  # 26.25 in all, 10.25 without the largest
        (0.1, {"tp_forward": (0,), "tp_backward": (0,)}),
        (0.04, {"tp_forward": (0, 1), "tp_backward": (0,)}),
        (0.0, {"tp_forward": (0, 1), "tp_backward": (0, 1)}),
    ],
)
def test_the_largest_errors_are_protected_until_little_is_left(share: float, expected: dict):
    assert protected(records(ERRORS), share) == expected


def test_no_smaller_set_leaves_as_little():
    draw = random.Random(1)
    for share in (0.05, 0.3, 0.7):
        errors = {(role, layer): draw.random() ** 3 for role in TENSOR_ROLES for layer in range(4)}
        found = protected(records(errors), share)
        count = sum(map(len, found.values()))
        squares = [e * e for e in errors.values()]
        assert sum(squares) - sum(errors[r, i] ** 2 for r, layers in found.items() for i in layers) <= share * sum(
            squares
        )
        assert all(
            sum(squares) - sum(chosen) > share * sum(squares) for chosen in combinations(squares, max(count - 1, 0))
        )


def test_errors_without_any_need_no_protection_and_ties_have_an_order():
    assert protected(records(dict.fromkeys(ERRORS, 0.0)), 0.0) == {}
    assert protected(records(dict.fromkeys(ERRORS, 1.0)), 0.5) == {"tp_backward": (0, 1)}


def test_several_logs_count_together():
    twice = records(ERRORS) + records({("tp_forward", 0): 4.0, ("tp_backward", 0): 0.0})
    assert protected(twice, 0.5) == {"tp_forward": (0,)}


@pytest.mark.parametrize(
    ("found", "share", "text"),
    [
        (records(ERRORS), 1.5, "share=1.5; need a number from 0 to 1"),
        ([], 0.1, "no records; need those of kind sensitivity"),
        (records({("tp_forward", 0): "nan"}), 0.1, r"error nan of \('tp_forward', 0\); need a finite"),
    ],
)
def test_what_cannot_be_chosen_from_is_named(found: list, share: float, text: str):
    with pytest.raises(ConfigError, match=text):
        protected(found, share)


def test_a_policy_protects_the_chosen_layers():
    chosen = with_layers(policy(tp="int4"), {"tp_forward": (0, 1), "tp_backward": [2]}, "int8")
    assert chosen.overrides == (
        Override(role="tp_forward", layers=(0, 1), codec=preset("int8")),
        Override(role="tp_backward", layers=(2,), codec=preset("int8")),
    )
    more = with_layers(chosen, {"tp_backward": (1,)}, preset("none"))
    assert [each.codec.name for each in more.overrides] == ["int8", "int8", "none"]
    with pytest.raises(ConfigError, match="tp_backward overridden twice in layer 1"):
        with_layers(more, {"tp_backward": (1,)}, "int6")
    with pytest.raises(ConfigError, match=r"layers 0 of tp_forward; need several, e\.g\. \(0, 11\)"):
        with_layers(policy(tp="int4"), {"tp_forward": 0}, "int8")
    with pytest.raises(ConfigError, match="tp_backward of layer 3 overridden with its own 'int4'; need another codec"):
        with_layers(policy(tp="int4"), {"tp_backward": (3,)}, "int4")

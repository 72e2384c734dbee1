"""collective: its grid, its operands by hand, what the ranks agree on, and times by clocks of our own."""

from __future__ import annotations

import collective_ranks as ranks
import pytest
import torch
from collective_ranks import case
from distributed import run_ranks

from taco.bench.collective_case import MOST_SETS, bytes_of, numel_of, sets_of
from taco.config import ConfigError
from taco.recipes import COLLECTIVE, PRESETS, TRANSPORTS
from taco.recipes.collective import COLLECTIVES

MIB = 2**20

# --- grid ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("transport", "cases"), [("nvlink", 20), ("host", 7), ("tcp", 6)])
def test_the_grid_is_every_collective_and_size_it_says(transport: str, cases: int):
    grid = COLLECTIVE[transport]
    made = [(c.collective, c.mib) for c in grid.cases()]
    assert len(made) == len(set(made)) == cases
    assert tuple(dict.fromkeys(collective for collective, _ in made)) == COLLECTIVES
    assert {codec for c in grid.cases() for codec in c.codecs} <= set(PRESETS)
    assert grid.least_rounds >= (15 if transport == "nvlink" else 7)
    assert list(COLLECTIVE)[:3] == list(TRANSPORTS)


def test_a_quick_look_is_a_part_of_the_grid():
    small = COLLECTIVE["nvlink"].narrowed(collectives=["reduce_scatter"], codecs=["int4", "fp8"], mib=[8, 0.5])
    assert [(c.collective, c.mib, c.codecs) for c in small.cases()] == [
        ("reduce_scatter", 8, ("int4",)), ("reduce_scatter", 0.5, ("int4",)),
    ]  # fmt: skip
    assert COLLECTIVE["tcp"].narrowed() == COLLECTIVE["tcp"]


@pytest.mark.parametrize("asked", [{"collectives": ["all_to_all"]}, {"codecs": ["fp8-cast"]}, {"mib": [-1]}])
def test_what_the_grid_does_not_have_is_refused(asked: dict):
    with pytest.raises(ConfigError, match=r"got .*; need .*; because"):
        COLLECTIVE["host"].narrowed(**asked)


# --- operands --------------------------------------------------------------------------------------


def test_the_full_tensor_divides_by_the_ranks():
    assert (numel_of(case(mib=1), 2), bytes_of(case(mib=1), 2)) == (524288, MIB)
    assert numel_of(case(mib=1), 3) == 524286


def test_sets_fill_a_turn_and_exceed_the_cache():
    assert [sets_of(case(mib=mib), 2, 60 * MIB) for mib in (0.25, 1, 16, 64, 256)] == [MOST_SETS, 512, 32, 8, 4]
    assert sets_of(case(mib=64), 2, 600 * MIB) == 29
    assert sets_of(case(mib=1), 2, 0) == 4


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_right_is_made_of_every_ranks_first_set(collective: str):
    (xs, first), (ys, second) = run_ranks(2, ranks.operands, collective)
    assert (xs.dtype, xs.shape) == (torch.bfloat16, (2, 8192 if collective != "all_gather" else 4096))
    assert not torch.equal(xs[0], ys[0])
    assert not torch.equal(xs[0], xs[1])
    total = xs[0].float() + ys[0].float()
    right = {
        "all_reduce": (total, total),
        "reduce_scatter": total.chunk(2),
        "all_gather": (torch.cat([xs[0], ys[0]]).float(),) * 2,
    }[collective]
    assert torch.equal(first, right[0])
    assert torch.equal(second, right[1])


def test_kernels_over_symmetric_memory_keep_their_results_apart():
    (two, one), other = run_ranks(2, ranks.symmetric)
    assert two.count_nonzero() > 8000
    assert all(torch.equal(result, two) for result in (one, *other))


# --- agreement -------------------------------------------------------------------------------------


def test_every_rank_hears_the_same():
    first, second = run_ranks(2, ranks.agreements)
    assert first == second
    assert first == {
        "largest": [1.0, 0.0], "nobody": "", "somebody": "rank 1: no memory", "error": 0.25,
        "no number": float("inf"), "same": True, "other": False,
    }  # fmt: skip


def test_an_arm_that_fails_on_one_rank_fails_on_all():
    first, second = run_ranks(2, ranks.failures)
    assert first == second == ["rank 1: OSError: no kernel", "rank 0: ValueError: no launch"]


# --- times -----------------------------------------------------------------------------------------


def test_the_slowest_rank_has_the_time_and_the_budget_the_rounds():
    first, second = run_ranks(2, ranks.slowest)
    assert first == second
    assert (first["fast"].us, first["fast"].timing) == (pytest.approx(20.0), "eager")
    assert (first["slow"].us, first["slow"].calls) == (pytest.approx(1e6), 1)
    assert first["fast"].replays == first["slow"].replays == 5
    # before the calls that estimate, two warm turns and five timed ones
    assert first["resets"] == 1 + 2 + 5


def test_turns_go_through_the_sets():
    assert run_ranks(2, ranks.sets_in_turn)[0] == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]


def test_a_graph_holds_every_set_and_a_launch_that_escapes_it_shows():
    for found in run_ranks(2, ranks.graphs, None):
        assert found["words"] == ["graph", "graph", "eager"]
        assert (found["timing"].us, found["timing"].calls, found["timing"].replays) == (5.0, 2, 3)
        assert found["answers"] == [4.0, 0.0]
        assert found["made"] == ["replay", "b", "a", "replay"]


def test_a_graph_that_one_rank_cannot_hold_is_held_by_none():
    for found in run_ranks(2, ranks.graphs, 1):
        assert found["words"] == ["eager", "eager", "eager"]
        assert (found["timing"].us, found["timing"].timing) == (5.0, "eager")

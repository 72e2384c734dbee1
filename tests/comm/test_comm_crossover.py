"""The choice by a measured table: its rule, the promise that it keeps under noise, and the table's file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from crossover_cases import CPU, KIB, table, two_paths
from hypothesis import given, settings
from hypothesis import strategies as st

from taco.comm import Crossover
from taco.comm.crossover import COMPRESSED, MEASURED, UNCOMPRESSED, find, key_here, load
from taco.config import ConfigError
from taco.recipes import preset

# --- the rule ---------------------------------------------------------------------------------------


def test_compression_needs_both_neighbours_to_be_faster() -> None:
    won, lost_above, lost_below = two_paths(50, 60), two_paths(50, 120), two_paths(120, 50)
    for size in (65, 96, 127):
        assert won.choose("all_reduce", size * KIB) == "unfused"
        assert lost_above.choose("all_reduce", size * KIB) == "uncompressed"
        assert lost_below.choose("all_reduce", size * KIB) == "uncompressed"
    assert lost_above.choose("all_reduce", 64 * KIB) == "unfused"
    assert lost_below.choose("all_reduce", 128 * KIB) == "unfused"


def test_compression_that_is_hardly_faster_is_not_chosen() -> None:
    assert two_paths(98.5, 50).choose("all_reduce", 80 * KIB) == "uncompressed"
    assert two_paths(97.5, 50).choose("all_reduce", 80 * KIB) == "unfused"


def test_outside_of_the_sizes_the_nearest_decides_but_never_compresses_less_than_was_measured() -> None:
    won = two_paths(50, 60)
    assert won.choose("all_reduce", 64 * KIB - 1) == "uncompressed"
    assert won.choose("all_reduce", 1 << 40) == "unfused"
    assert two_paths(50, 120).choose("all_reduce", 1 << 40) == "uncompressed"


def test_the_best_of_several_is_chosen_between_sizes_by_straight_lines() -> None:
    chosen = table(
        {
            100: {"uncompressed": 30.0, "symmetric": 10.0, "fused_uncompressed": 20.0},
            200: {"uncompressed": 40.0, "symmetric": 40.0, "fused_uncompressed": 30.0},
        }
    )
    picks = [chosen.choose("all_reduce", size) for size in (99, 100, 140, 160, 200, 201)]
    assert picks == ["symmetric"] * 3 + ["fused_uncompressed"] * 3
    both = table({100: {"uncompressed": 30.0, "unfused": 20.0, "fused": 10.0}})
    assert both.choose("all_reduce", 100) == "fused"
    assert both.choose("all_reduce", 100, without=("fused",)) == "unfused"
    assert both.choose("all_reduce", 100, without=COMPRESSED) == "uncompressed"


def test_a_path_counts_between_sizes_only_if_it_was_measured_at_both() -> None:
    half = table({100: {"uncompressed": 9.0, "fused": 1.0}, 200: {"uncompressed": 9.0}})
    assert half.choose("all_reduce", 100) == "fused"
    assert half.choose("all_reduce", 150) == "uncompressed"


def test_what_was_not_measured_is_not_chosen() -> None:
    with pytest.raises(ValueError, match="got 'all_to_all'; need one of all_reduce, "):
        two_paths(1, 1).choose("all_to_all", 5)
    with pytest.raises(ValueError, match="got no uncompressed path for all_reduce of 5 bytes"):
        two_paths(1, 1).choose("all_reduce", 5, without=("uncompressed",))


def test_the_crossing_is_where_compression_begins_to_win_for_good() -> None:
    sizes = {64: 50.0, 128: 150.0, 256: 90.0, 512: 90.0}
    for last, expected in ((90.0, 256), (150.0, None)):
        times = {size: {"uncompressed": 100.0, "fused": us} for size, us in (sizes | {512: last}).items()}
        assert table(times).crossing("all_reduce") == expected


# --- the promise ------------------------------------------------------------------------------------

_LINES = st.tuples(st.floats(1.0, 300.0), st.floats(1e-6, 1e-2))  # latency in us, us a byte


@settings(max_examples=300, deadline=None)
@given(
    lines=st.fixed_dictionaries({"uncompressed": _LINES}, optional=dict.fromkeys(MEASURED[1:], _LINES)),
    noise=st.lists(st.floats(-0.01, 0.01), min_size=len(MEASURED) * 6, max_size=len(MEASURED) * 6),
    nbytes=st.integers(1 << 14, 1 << 19),
)
def test_no_size_is_slower_than_0_98_of_the_best_uncompressed_path(
    lines: dict[str, tuple[float, float]], noise: list[float], nbytes: int
) -> None:
    """Times that are a latency and a rate, measured with an error of up to 1% at powers of two."""

    def true(path: str, size: int) -> float:
        return lines[path][0] + lines[path][1] * size

    errors = iter(noise)
    times = {1 << k: {path: true(path, 1 << k) * (1 + next(errors)) for path in lines} for k in range(14, 20)}
    chosen = table(times).choose("all_reduce", nbytes)
    best = min(true(path, nbytes) for path in lines if path in UNCOMPRESSED)
    assert best / true(chosen, nbytes) >= 0.98  # 1% in both times: 0.99 / 1.01 is 0.9802


@settings(max_examples=200, deadline=None)
@given(
    plain=_LINES,
    packed=_LINES,
    noise=st.lists(st.floats(-0.02, 0.02), min_size=12, max_size=12),
    nbytes=st.integers(1 << 14, 1 << 19),
)
def test_noise_of_two_percent_cannot_make_compression_lose_more(
    plain: tuple[float, float], packed: tuple[float, float], noise: list[float], nbytes: int
) -> None:
    def true(line: tuple[float, float], size: int) -> float:
        return line[0] + line[1] * size

    errors = iter(noise)
    times = {
        1 << k: {
            "uncompressed": true(plain, 1 << k) * (1 + next(errors)),
            "unfused": true(packed, 1 << k) * (1 + next(errors)),
        }
        for k in range(14, 20)
    }
    if table(times).choose("all_reduce", nbytes) == "unfused":
        assert true(plain, nbytes) / true(packed, nbytes) >= 0.98


# --- the file ---------------------------------------------------------------------------------------


def test_a_table_comes_back_from_its_file(tmp_path: Path) -> None:
    saved = table({100: {"uncompressed": 1.5, "unfused": 0.25}, 200: {"uncompressed": 3.0}})
    path = saved.save(tmp_path / "new")
    assert load(path) == load(str(path)) == saved
    assert find(tmp_path / "new", saved.key) == saved
    assert [p.name for p in path.parent.iterdir()] == [saved.key.filename()]
    assert json.loads(path.read_text())["provenance"] == {"date": "today"}


def test_keys_that_differ_have_other_files() -> None:
    key = two_paths(1, 1).key
    others = [
        replace(key, device="other"), replace(key, transport="nccl host"), replace(key, world_size=4),
        replace(key, codec=replace(key.codec, group=64)), replace(key, dtype="float16"), replace(key, torch="1.0"),
        replace(key, nccl="2.0"), replace(key, node_size=2),
    ]  # fmt: skip
    assert len({k.filename() for k in (key, *others)}) == len(others) + 1
    assert replace(key, device="NVIDIA H200 / x").filename().startswith("NVIDIA_H200_x-gloo-2x-int8-float32-")


def test_a_table_from_before_codecs_had_a_clip_is_found(tmp_path: Path) -> None:
    saved = two_paths(1, 1)
    path = saved.save(tmp_path)
    data = json.loads(path.read_text())
    assert data["key"]["codec"].pop("clip") == 1.0
    path.unlink()
    digest = hashlib.sha256(json.dumps(data["key"], sort_keys=True).encode()).hexdigest()[:12]
    old = path.with_name(f"{path.stem.rpartition('-')[0]}-{digest}.json")
    old.write_text(json.dumps(data))
    assert find(tmp_path, saved.key) == saved
    clipped = replace(saved.key, codec=replace(saved.key.codec, clip=0.9))
    assert clipped.filename() != saved.key.filename()


def test_a_missing_table_says_how_to_measure_it(tmp_path: Path) -> None:
    key = replace(key_here(CPU, "auto", 4, preset("taco"), torch.bfloat16, 2), transport="nccl host")
    with pytest.raises(ConfigError, match=f"got no table .* in {tmp_path}; need one: ") as info:
        find(tmp_path, key)
    command = "torchrun --nproc-per-node 4 -m taco crossover --codec taco --dtype bfloat16 --transport host --node-size"
    assert command in str(info.value)
    with pytest.raises(ConfigError, match=r"--codec taco\.json --dtype"):
        find(tmp_path, replace(key, codec=replace(key.codec, group=64)))


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "crossover", "version": 9}', '{"kind": "log", "version": 1}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ConfigError, match=r"got .*x\.json; need a table that `taco crossover` wrote"):
        load(tmp_path / "x.json")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_that_is_not_there_is_called_absent(tmp_path: Path, kind: type) -> None:
    with pytest.raises(ConfigError, match=r"^got no file .*x\.json; need a table that `taco crossover` wrote; because"):
        load(kind(tmp_path / "x.json"))


def test_a_table_under_another_name_is_refused(tmp_path: Path) -> None:
    saved = two_paths(1, 1)
    other = replace(saved.key, world_size=8)
    saved.save(tmp_path).rename(tmp_path / other.filename())
    with pytest.raises(ConfigError, match="a table holds for what it was measured on"):
        find(tmp_path, other)


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ({}, "got no sizes of all_reduce"),
        ({100: {"unfused": 1.0}}, "an uncompressed one at least"),
        ({100: {"uncompressed": 1.0, "ring": 1.0}}, "of uncompressed, symmetric"),
        ({100: {"uncompressed": 0.0}}, "need positive numbers"),
        ({0: {"uncompressed": 1.0}}, "need positive numbers"),
    ],
)
def test_tables_that_cannot_choose_are_refused(times: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Crossover(key=two_paths(1, 1).key, times={"all_reduce": times})


def test_collectives_and_paths_that_do_not_exist_are_refused() -> None:
    key = two_paths(1, 1).key
    with pytest.raises(ConfigError, match="got collective='all_to_all'; need one of all_reduce"):
        Crossover(key=key, times={"all_to_all": {1: {"uncompressed": 1.0}}})
    with pytest.raises(ConfigError, match="of uncompressed, fused_uncompressed, unfused, fused; because"):
        Crossover(key=key, times={"all_gather": {1: {"uncompressed": 1.0, "symmetric": 1.0}}})

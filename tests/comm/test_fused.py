"""Fused collectives give the bits of virtual ranks on every rank. The ranks share one GPU (fused_ranks.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fused_ranks import (
    ALL_REDUCES,
    COLLECTIVES,
    DTYPES,
    OWN,
    PRESETS,
    Ranks,
    collect,
    difference,
    differences,
    expected,
    inputs,
    one_gpu,
    shared_out,
)
from torch import Tensor

from taco.comm.numerics import mix_seed
from taco.config import Codec
from taco.recipes import preset

pytestmark = one_gpu

SIZES = (1, 31, 127, 4096, 4097, 100_003, 3_000_001)
NAMES = ("none", "int8", "taco")


def _name(value: object) -> str | None:
    return value.name if isinstance(value, Codec) else None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", [*PRESETS, *OWN], ids=_name)
def test_every_codec_and_dtype(codec: Codec, dtype: torch.dtype) -> None:
    """On one SM a pipeline takes many chunks, so its buffers and slots are used over and over."""
    ranks = Ranks(2, codec, sms=1)
    wrong = []
    for numel in (4097, 300_001):
        parts = inputs(2, numel, dtype)
        for collective in COLLECTIVES:
            wrong += ranks.wrong(collective, shared_out(parts, collective))
    assert wrong == []


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_size(name: str, world_size: int, dtype: torch.dtype) -> None:
    ranks = Ranks(world_size, preset(name))
    wrong = []
    for numel in SIZES:
        parts = inputs(world_size, numel, dtype, seed=1)
        for collective in COLLECTIVES:
            wrong += ranks.wrong(collective, shared_out(parts, collective))
    assert wrong == []


@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
@pytest.mark.parametrize("name", [*NAMES, "int4", "sdp4bit-weight"])
def test_every_world_size(name: str, world_size: int) -> None:
    ranks = Ranks(world_size, preset(name), sms=3)
    wrong = []
    for numel in (127, 400_003):
        parts = inputs(world_size, numel, torch.bfloat16, seed=2)
        for collective in COLLECTIVES:
            wrong += ranks.wrong(collective, shared_out(parts, collective))
    assert wrong == []


@pytest.mark.parametrize("name", ["none", "int8"])
def test_more_peers_than_a_warp_has_lanes(name: str) -> None:
    ranks = Ranks(34, preset(name), sms=2)
    wrong = []
    for numel in (1000, 300_001):
        parts = inputs(34, numel, torch.bfloat16)
        for collective in COLLECTIVES:
            wrong += ranks.wrong(collective, shared_out(parts, collective))
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_that_start_between_words(name: str, dtype: torch.dtype) -> None:
    """Ranks need not agree in this: only rank 0 starts at a word in every second round."""
    ranks = Ranks(2, preset(name))
    wrong = []
    for offset in range(1, 9):
        whole = inputs(2, 40_000 + offset, dtype, seed=offset)
        parts = [part[(offset if rank or offset % 2 else 0) :][:40_000] for rank, part in enumerate(whole)]
        for collective in COLLECTIVES:
            wrong += ranks.wrong(collective, parts, f"at element {offset}")
    assert wrong == []


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name: str) -> None:
    """A transposed view in its own order, a number, and nothing at all; all-reduce keeps the shape."""
    ranks = Ranks(3, preset(name))
    whole = inputs(3, 96 * 65, torch.bfloat16)
    forms = (
        [part.view(65, 96).t() for part in whole],
        [part.view(65, 96)[:, ::2] for part in whole],
        [part[5] for part in whole],
        [part[:0] for part in whole],
        [part.view(65, 96)[:0] for part in whole],
    )
    wrong = []
    for parts in forms:
        for collective in COLLECTIVES:
            if collective != "reduce_scatter" or parts[0].numel() % 3 == 0:
                wrong += ranks.wrong(collective, parts)
    assert wrong == []


@pytest.mark.parametrize("name", ["int8", "none"])
def test_results_and_inputs_are_not_touched_later(name: str) -> None:
    ranks = Ranks(2, preset(name))
    parts = inputs(2, 20_000, torch.float32)
    before = [part.clone() for part in parts]
    results = {collective: ranks.run(collective, parts) for collective in COLLECTIVES}
    kept = {collective: [y.clone() for y in ys] for collective, ys in results.items()}
    for seed in range(10):
        other = inputs(2, 20_000 + 1000 * seed, torch.float32, seed=seed + 1)
        for collective in COLLECTIVES:
            ranks.run(collective, other)
    for collective in COLLECTIVES:
        assert differences(results[collective], kept[collective], collective) == []
    assert differences(parts, before, "inputs") == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["none", "taco", "int8", "int6", "int4", "fp8", "sdp4bit-weight"])
def test_numbers_that_are_not_finite(name: str, value: float) -> None:
    """They spoil what they are summed with, on all ranks alike, and nothing of another group."""
    ranks = Ranks(3, preset(name))
    wrong = []
    for dtype in (torch.bfloat16, torch.float32):
        parts = inputs(3, 30_000, dtype)
        parts[1][17_003] = value
        for collective in COLLECTIVES:
            got = ranks.run(collective, parts)
            wrong += differences(got, expected(ranks.codec, collective, parts), f"{name} {collective} {dtype}")
            if collective in ALL_REDUCES:
                assert not any(y[17_003].isfinite() for y in got)
                assert all(y[:14_000].isfinite().all() for y in got)
    assert wrong == []


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", ["int8", "int4", "taco"])
def test_stochastic_rounding(name: str, world_size: int) -> None:
    """The noise is that of the algorithms for the seed of their first call, and another for another seed."""
    codec = replace(preset(name), name=f"{name}-stochastic", rounding="stochastic")
    ranks = Ranks(world_size, codec, sms=2)
    wrong = []
    for dtype in (torch.bfloat16, torch.float32):
        for numel in (300, 100_002):
            parts = inputs(world_size, numel, dtype)
            for collective in COLLECTIVES:
                got = ranks.run(collective, parts, mix_seed(7, 1))
                want = expected(codec, collective, parts, seed=7)
                wrong += differences(got, want, f"{codec.name} {collective} {numel} {dtype}")
                assert difference(ranks.run(collective, parts, mix_seed(8, 1))[0], want[0])
    assert wrong == []


@pytest.mark.parametrize("name", ["none", "int8", "int6", "taco"])
def test_few_sms_give_the_same_bits(name: str) -> None:
    parts = inputs(2, 1_000_002, torch.bfloat16)
    many = Ranks(2, preset(name), sms=50)
    for sms in (1, 2, 3, 7):
        few = Ranks(2, preset(name), sms=sms)
        for collective in COLLECTIVES:
            assert differences(few.run(collective, parts), many.run(collective, parts), f"{sms} SMs {collective}") == []


def test_default_algorithm_is_one_shot_for_two_ranks_and_two_shot_for_more() -> None:
    for world_size, algorithm in ((2, "one_shot"), (3, "two_shot")):
        ranks = Ranks(world_size, preset("int4"))
        parts = inputs(world_size, 5000, torch.float32)
        got = ranks.each(lambda fused, rank, parts=parts: fused.all_reduce(parts[rank]))
        assert differences(got, ranks.run(algorithm, parts), algorithm) == []
        other = ALL_REDUCES[1 - ALL_REDUCES.index(algorithm)]
        assert difference(got[0], ranks.run(other, parts)[0])  # they do differ


def test_tensors_that_require_a_gradient() -> None:
    ranks = Ranks(2, preset("int8"))
    parts = [part.requires_grad_() for part in inputs(2, 3000, torch.float32)]
    got: list[Tensor] = ranks.each(lambda fused, rank: collect(fused, "one_shot", parts[rank]))
    assert not any(y.requires_grad for y in got)
    assert differences(got, expected(ranks.codec, "one_shot", parts), "requires_grad") == []

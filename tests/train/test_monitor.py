"""What the observers see, and the file that a capture becomes."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors import safe_open

from taco.codec import coder
from taco.codec.quality import sqnr_db
from taco.config import Override, Policy
from taco.recipes import preset
from taco.train.monitor import Capture, Sqnr, Watch, crest_db


def test_crest_factor_of_known_signals():
    assert crest_db(torch.full((8,), -3.0)) == pytest.approx(0.0, abs=1e-6)
    one = torch.zeros(100)
    one[7] = 2.0
    assert crest_db(one) == pytest.approx(20.0, abs=1e-5)
    assert math.isnan(crest_db(torch.zeros(4)))
    assert math.isnan(crest_db(torch.zeros(0)))


@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_crest_factor_of_a_diverging_run_does_not_end_it(size):
    """Squares beyond fp32, as just before a run diverges, and what it sends then."""
    assert crest_db(torch.full((8,), size)) == pytest.approx(0.0, abs=1e-6)
    assert math.isnan(crest_db(torch.tensor([size, math.inf])))
    assert math.isnan(crest_db(torch.tensor([size, math.nan])))


def test_sqnr_is_the_codecs_own_for_the_role():
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(1))
    watch = Sqnr(Policy(tp_forward=preset("int8")))
    watch("tp_forward", "layer", x)
    watch("tp_forward", "layer", 5 * x)  # a later microbatch
    watch("tp_backward", "layer", x)
    int8 = coder(preset("int8"))
    forward, backward = watch.records
    assert forward["sqnr_db"] == sqnr_db(x, int8.decode(int8.encode(x), x.numel(), x.dtype).view_as(x))
    assert forward["crest_db"] == crest_db(x)
    assert backward["sqnr_db"] == math.inf
    assert [r["role"] for r in watch.records] == ["tp_forward", "tp_backward"]


def test_sqnr_is_that_of_the_layers_own_codec():
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(1))
    second = Override(role="tp_forward", layers=(2,), codec=preset("int8"))
    watch = Sqnr(Policy(tp_forward=preset("int4"), overrides=(second,)))
    for layer in (1, 2):
        watch("tp_forward", f"transformer.h.{layer}.mlp.c_proj", x)
    expected = [
        sqnr_db(x, c.decode(c.encode(x), x.numel(), x.dtype).view_as(x))
        for c in map(coder, map(preset, ("int4", "int8")))
    ]
    assert [r["sqnr_db"] for r in watch.records] == expected


def test_sqnr_in_the_warm_up_is_its_codecs():
    x = torch.randn(8, 128, generator=torch.Generator().manual_seed(1))
    chosen = Policy(tp_forward=preset("int4"), warmup_steps=1)
    watch = Sqnr(chosen, warming=chosen.warming(1))
    watch("tp_forward", "transformer.wte", x)
    assert [r["sqnr_db"] for r in watch.records] == [math.inf]


def test_capture_keeps_each_virtual_rank_of_the_first_call(tmp_path):
    capture = Capture(2)
    for value in (1.0, 2.0, 3.0):  # two virtual ranks, then the next microbatch
        x = torch.full((2, 3), value).T
        capture("tp_forward", "h.0", x)
        x.zero_()
    capture.save(tmp_path / "deep" / "x.safetensors", run="r", step=7)
    with safe_open(tmp_path / "deep" / "x.safetensors", framework="pt") as file:
        assert file.metadata() == {"run": "r", "step": "7"}
        assert sorted(file.keys()) == ["tp_forward|h.0|0", "tp_forward|h.0|1"]
        assert torch.equal(file.get_tensor("tp_forward|h.0|1"), torch.full((3, 2), 2.0))
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.safetensors"]


def test_capture_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no tensor to capture"):
        Capture(1).save(tmp_path / "x.safetensors", run="r", step=1)
    assert not list(tmp_path.iterdir())


def test_watch_passes_on_only_while_someone_watches():
    watch, capture = Watch(), Capture(1)
    watch("tp_forward", "a", torch.ones(1))
    watch.watchers = [capture]
    watch("tp_forward", "b", torch.ones(1))
    assert list(capture.tensors) == ["tp_forward|b|0"]

"""Quality measures, the data-driven choice, the authors' semantics, and which code runs."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from taco.codec import coder, cuda, fit, quality
from taco.codec.authors import RELEASED
from taco.codec.group import GroupCoder
from taco.config import ConfigError, GroupCodec
from taco.recipes import PRESETS


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_sqnr_of_known_errors():
    x = torch.tensor([3.0, 4.0])
    assert quality.sqnr_db(x, x) == math.inf
    assert quality.sqnr_db(x, torch.zeros(2)) == 0.0
    assert quality.sqnr_db(x, x + torch.tensor([0.3, 0.4])) == pytest.approx(20, abs=1e-5)
    assert quality.sqnr_db(torch.zeros(2), x) == -math.inf
    assert math.isnan(quality.sqnr_db(x, torch.tensor([math.nan, 4.0])))
    assert math.isnan(quality.sqnr_db(torch.tensor([math.inf, 4.0]), x))


def test_bulk_sqnr_leaves_outliers_out():
    x = torch.tensor([[1.0, 1000.0], [1.0, 1000.0]])
    y = torch.tensor([[0.9, 0.0], [1.1, 0.0]])
    assert quality.bulk_sqnr_db(x, y, [1]) == pytest.approx(20, abs=1e-5)
    with pytest.raises(ValueError, match="need one that is not"):
        quality.bulk_sqnr_db(x, y, [0, 1])


def test_max_error_and_crest():
    x = torch.tensor([1.0, -2.0, 0.0, 0.0])
    assert quality.max_error(x, torch.zeros(4)) == 2.0
    assert quality.max_error(x[:0], x[:0]) == 0.0
    assert math.isnan(quality.max_error(x, x / x * x))
    assert quality.crest_db(torch.tensor([1.0, -1, 2, 0, 9]), 2)[0] == pytest.approx(0.0)
    assert quality.crest_db(torch.tensor([1.0, -1, 2, 0, 9]), 2)[1] == pytest.approx(3.0103, abs=1e-4)
    with pytest.raises(ValueError, match="need equal ones"):
        quality.max_error(x, x[:2])


# --- fit -------------------------------------------------------------------------------------------


def test_fit_takes_the_cheapest_codec_that_is_good_enough():
    tensors = [randn(16, 256), 1e-6 * randn(16, 256, seed=1)]
    chosen = fit(tensors, 31.0)
    meets = [row for row in chosen.table if row["meets"] and row["axis"] == "last"]
    row = next(r for r in meets if r["codec"] == chosen.codec.name)
    assert row["bytes_per_element"] == min(r["bytes_per_element"] for r in meets)
    assert chosen.codec.payload == "int6"
    assert min(quality.sqnr_db(t, coder(chosen.codec).roundtrip(t)) for t in tensors) == row["sqnr_db"] >= 31.0
    assert fit(tensors, 15.0).codec.payload == "int4"
    assert fit(tensors, 40.0).codec.payload == "int8"


def test_fit_rotates_where_tails_are_heavy():
    x = randn(16, 512)
    x[:, ::64] *= 30
    assert fit([x], 42.0).codec.rotation == "signed"


def test_fit_measures_the_other_axis_and_does_not_choose_it():
    # channels of very different size: groups along tokens see equal magnitudes
    x = randn(256, 64) * torch.logspace(0, 3, 64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))]
    table = {(r["codec"], r["axis"]): r["sqnr_db_mean"] for r in fit([x], 10.0).table}
    name = "int4-none-g64"
    assert table[name, "first"] != table[name, "last"]
    # one large channel in each group along memory: INT4 would do along tokens only
    spiky = randn(256, 64)
    spiky[:, ::32] *= 10
    chosen = fit([spiky], 18.0, [GroupCodec(name="plain", payload="int4", group=32, rotation="none"), PRESETS["int8"]])
    assert {(r["axis"], r["meets"]) for r in chosen.table if r["codec"] == "plain"} == {
        ("last", False),
        ("first", True),
    }
    assert chosen.codec == PRESETS["int8"]
    one_dimensional = fit([x.reshape(-1)], 10.0).table
    assert {r["axis"] for r in one_dimensional} == {"last"}


def test_fit_takes_named_tensors_and_prints_short():
    named = {"a": randn(4096), "b": randn(512)}
    chosen = fit(named, 31.0)
    assert chosen == fit(list(named.values()), 31.0) == fit(iter(named.values()), 31.0)
    assert "table" not in repr(chosen)


def test_fit_does_not_count_zeros_in_a_mean():
    x = randn(4096)
    zeros = torch.zeros(4096)
    with_zeros, without = fit([x, zeros], 31.0), fit([x], 31.0)
    assert [r["sqnr_db_mean"] for r in with_zeros.table] == [r["sqnr_db_mean"] for r in without.table]
    assert fit([zeros], 31.0).table[0]["sqnr_db_mean"] == math.inf


def test_fit_takes_other_candidates_and_says_when_none_will_do():
    candidates = [PRESETS[n] for n in ("int4", "fp8", "tahquant")]
    assert fit([randn(4096)], 30.0, candidates).codec == PRESETS["fp8"]
    with pytest.raises(ConfigError, match="got target_db=60 with a best candidate of"):
        fit([randn(4096)], 60, candidates)
    with pytest.raises(ConfigError, match="need captured messages"):
        fit([], 30.0)
    with pytest.raises(ConfigError, match="need captured messages"):
        fit([torch.empty(0)], 30.0)


# --- the authors' semantics ------------------------------------------------------------------------


def test_authors_turn_a_nan_into_zeros_and_ours_does_not():
    x = randn(256)
    x[5] = math.nan
    assert torch.equal(RELEASED.roundtrip(x)[:128], torch.zeros(128))
    assert RELEASED.roundtrip(x)[128:].isfinite().all()
    assert coder(PRESETS["taco"]).roundtrip(x)[:128].isnan().all()


@pytest.mark.parametrize(("tail", "relative"), [(1, 0.99), (32, 0.75), (64, 0.50), (120, 0.24)])
def test_authors_lose_a_short_last_group_and_ours_does_not(tail, relative):
    x = randn(200, tail)
    lost = [float((RELEASED.roundtrip(row) - row).norm() / row.norm()) for row in x]
    assert (sum(v * v for v in lost) / len(lost)) ** 0.5 == pytest.approx(relative, abs=0.06)
    for row in x[:20]:
        ours = coder(PRESETS["taco"]).roundtrip(row)
        assert float((ours - row).norm() / row.norm()) < 0.06


def test_authors_clamp_the_scale_of_very_large_data_and_ours_does_not():
    x = 1e15 * randn(128)
    assert quality.sqnr_db(x, RELEASED.roundtrip(x)) < 3
    assert quality.sqnr_db(x, coder(PRESETS["taco"]).roundtrip(x)) > 30


def test_authors_bytes():
    assert RELEASED.bytes_per_element() == 1.0625
    assert [t.numel() for t in RELEASED.encode(randn(130))] == [130, 2, 2]


# --- which code runs -------------------------------------------------------------------------------


def test_kernels_are_used_when_there_are_any_and_the_path_says_so(monkeypatch):
    reference = coder(PRESETS["int8"], backend="reference")
    calls = []

    def record(name, function):
        def call(*args):
            calls.append(name)
            return function(*args)

        return call

    kernels = SimpleNamespace(
        encode=record("encode", lambda x, number, seeds: reference.encode(x)),
        decode_sum=record(
            "decode_sum", lambda p, number, numel, dtype: reference.decode_sum(p.view(-1, p.shape[-1]), numel, dtype)
        ),
        decode_sum_encode=record(
            "decode_sum_encode",
            lambda p, number, target, numel, seeds: reference.decode_sum_encode(p, numel, torch.float32),
        ),
    )
    monkeypatch.setattr("taco.codec.backend.cuda", SimpleNamespace(available=lambda: True))
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: True)
    fused, x = GroupCoder(PRESETS["int8"]), randn(300)
    monkeypatch.setattr("taco.codec.group.cuda", kernels)
    assert fused.path == "reference"
    packet = fused.encode(x)
    assert fused.path == "cuda"
    assert torch.equal(packet, reference.encode(x))
    assert torch.equal(fused.decode(packet, 300, x.dtype), reference.decode(packet, 300, x.dtype))
    packets = torch.stack([packet, packet])
    assert torch.equal(fused.decode_sum(packets, 300, x.dtype), reference.decode_sum(packets, 300, x.dtype))
    assert torch.equal(
        fused.decode_sum_encode(packets, 300, x.dtype), reference.decode_sum_encode(packets, 300, x.dtype)
    )
    assert calls == ["encode", "decode_sum", "decode_sum", "decode_sum_encode"]
    monkeypatch.undo()
    asked = GroupCoder(PRESETS["int8"], "reference")
    asked.encode(x)
    assert asked.path == "reference"


@pytest.mark.parametrize("built", [True, False])
def test_kernels_that_cannot_run_are_not_replaced(monkeypatch, built):
    monkeypatch.setattr("taco.codec.backend.cuda", SimpleNamespace(available=lambda: built))
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: not built)
    with pytest.raises(RuntimeError, match=r"`taco kernels build`.*backend='reference'"):
        GroupCoder(PRESETS["int8"], "cuda").encode(randn(4))


CLIPPED = replace(PRESETS["int4"], name="clipped", clip=0.9)


def test_a_codec_without_kernels_runs_in_plain_torch_on_a_gpu_and_says_so_once(monkeypatch):
    # without `available`: nothing may ask for the library
    monkeypatch.setattr("taco.codec.backend.cuda", SimpleNamespace())
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: True)
    x, reference = randn(2, 300), coder(CLIPPED, "reference")
    chosen = GroupCoder(CLIPPED)
    with pytest.warns(UserWarning, match=r"'clipped' runs in plain torch on a GPU, .*: clip=0.9 has no kernel"):
        packets = chosen.encode_rows(x, [0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(chosen.encode(x[0]), packets[0])
        assert torch.equal(chosen.decode(packets[0], 300, x.dtype), reference.decode(packets[0], 300, x.dtype))
        assert torch.equal(chosen.decode_sum(packets, 300, x.dtype), reference.decode_sum(packets, 300, x.dtype))
        summed = chosen.decode_sum_encode(packets, 300, x.dtype)
        assert torch.equal(summed, reference.decode_sum_encode(packets, 300, x.dtype))
        # sums of packets with kernels into one without
        wide = GroupCoder(replace(CLIPPED, name="wide", payload="int8", clip=1.0))
        packets = coder(wide.config, "reference").encode_rows(x, [0, 0])
        summed = wide.sum_into(chosen, packets, 300)
        assert torch.equal(summed, coder(wide.config, "reference").sum_into(reference, packets, 300))
    assert chosen.path == "reference"


@pytest.mark.filterwarnings("error")
def test_a_codec_without_kernels_is_silent_where_plain_torch_is_the_rule():
    for chosen in (GroupCoder(CLIPPED), GroupCoder(CLIPPED, "reference")):
        chosen.roundtrip(randn(40))


def test_kernels_that_do_not_exist_cannot_be_asked_for():
    with pytest.raises(
        ValueError, match=r"got backend='cuda' for codec 'clipped'; need 'auto' or 'reference'; because"
    ):
        coder(CLIPPED, "cuda")
    with pytest.raises(ValueError, match=r"got codec 'clipped'; need one that the kernels can run; because clip=0.9"):
        cuda.number(CLIPPED)
    wide = GroupCoder(replace(CLIPPED, payload="int8", clip=1.0), "cuda")
    with pytest.raises(
        RuntimeError, match=r"got backend='cuda' for sums into codec 'clipped'; need .*; because clip=0.9"
    ):
        wide.sum_into(coder(CLIPPED), coder(wide.config, "reference").encode(randn(40))[None], 40)


# --- two payloads, one rotation ----------------------------------------------------------------------


def test_a_sum_goes_from_one_payload_into_another():
    inter = PRESETS["sdp4bit-gradient"]
    intra = replace(inter, name="intra", payload=inter.intra_payload)
    parts = [randn(300, seed=s) for s in range(4)]
    packets = torch.stack([coder(intra).encode(p) for p in parts])
    packet = coder(intra).sum_into(coder(inter), packets, 300)
    assert packet.numel() == coder(inter).nbytes(300, torch.float32)
    total = coder(intra).decode_sum(packets, 300, torch.float32)
    assert quality.sqnr_db(total, coder(inter).decode(packet, 300, torch.float32)) > 17
    assert (
        coder(intra)
        .sum_into(coder(intra), packets, 300)
        .equal(coder(intra).decode_sum_encode(packets, 300, torch.float32))
    )
    assert coder(intra).sum_into(coder(inter), packets[:, :0], 0).numel() == 0
    with pytest.raises(ValueError, match="own rotation only"):
        coder(intra).sum_into(coder(PRESETS["int8"]), packets, 300)


def test_small_elements_are_judged_without_the_large_ones():
    x = torch.ones(1000)
    x[:10] = 1000.0
    y = x.clone()
    y[10:] += 0.1
    assert quality.small_sqnr_db(x.view(10, 100), y.view(10, 100)) == pytest.approx(20, abs=1e-4)
    assert quality.sqnr_db(x, y) > 55
    y[:10] = 0.0
    assert quality.small_sqnr_db(x, y) == pytest.approx(20, abs=1e-4)
    assert math.isnan(quality.small_sqnr_db(x[:0], y[:0]))

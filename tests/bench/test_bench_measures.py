"""Measurements write the rows that tables read, from synthetic and from captured tensors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from taco import log
from taco.bench import captures, synthetic
from taco.bench.ablation import AXES, BASES, measure_ablation
from taco.bench.distribution import measure_distribution
from taco.bench.fidelity import measure_fidelity
from taco.config import ConfigError
from taco.recipes import PRESETS

ROLES = {"tp_forward": 1.0, "tp_backward": 1e-6}
NAMES = ("model.layers.0.mlp.down_proj", "model.layers.1.self_attn.o_proj", "model.embed_tokens")
PROVENANCE = {"commit": "abc", "device": "cpu"}


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("captures") / "gpt.safetensors"
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"{role}|{name}|{rank}": scale * torch.randn(2, 16, 128, generator=generator)
        for role, scale in ROLES.items()
        for name in NAMES
        for rank in range(4)
    }
    save_file(tensors, path, metadata={"run": "gpt-mini-vtp4", "step": "30"})
    return path


@pytest.fixture(scope="module")
def fidelity(capture, tmp_path_factory) -> log.Log:
    out = tmp_path_factory.mktemp("results") / "codec_fidelity.jsonl"
    measure_fidelity("mini", [capture], out, PROVENANCE, rows=8, channels=1024)
    return log.read(out)


@pytest.fixture(scope="module")
def ablation(capture, tmp_path_factory) -> log.Log:
    out = tmp_path_factory.mktemp("results") / "ablation.jsonl"
    measure_ablation("mini", [capture], out, PROVENANCE, rows=4, channels=1024)
    return log.read(out)


# --- captures --------------------------------------------------------------------------------------


def test_captured_tensors_know_where_they_come_from(capture):
    read = captures.read([capture])
    assert len(read) == 24
    assert {c.run for c in read} == {"gpt-mini-vtp4"}
    assert {(c.name, c.layer) for c in read} == {(n, i) for n, i in zip(NAMES, (0, 1, -1), strict=True)}
    assert [c.rank for c in read[:4]] == [0, 1, 2, 3]
    assert read[0].step == 30


def test_a_limit_keeps_whole_rows(capture):
    assert {c.tensor.shape for c in captures.read([capture], limit=1000)} == {(7, 128)}
    assert {c.tensor.shape for c in captures.read([capture], limit=10**6)} == {(2, 16, 128)}


def test_layers_are_found_in_both_naming_schemes(tmp_path):
    save_file({"tp_forward|transformer.h.11.mlp.c_proj|0": torch.zeros(20)}, tmp_path / "a.safetensors")
    (only,) = captures.read([tmp_path / "a.safetensors"], limit=8)
    assert (only.layer, only.run, only.step, only.tensor.shape) == (11, "a", 0, (8,))


def test_ranks_of_one_collective_are_joined(capture):
    groups = captures.by_collective(captures.read([capture]))
    assert set(groups) == {("gpt-mini-vtp4", 30, role) for role in ROLES}
    assert [len(parts) for parts in groups["gpt-mini-vtp4", 30, "tp_forward"]] == [4, 4, 4]


def test_foreign_files_are_refused(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"no tensors here")
    with pytest.raises(ValueError, match="need a capture file"):
        captures.read([tmp_path / "a.safetensors"])
    with pytest.raises(ValueError, match="need a capture file"):
        captures.read([tmp_path / "missing.safetensors"])
    save_file({"weight": torch.zeros(2)}, tmp_path / "b.safetensors")
    with pytest.raises(ValueError, match=r"got key 'weight'.*need role\|name\|rank"):
        captures.read([tmp_path / "b.safetensors"])


@pytest.mark.parametrize(
    ("values", "expected"),
    [([30.0, math.inf, 40.0], 35.0), ([math.inf, math.inf], math.inf), ([30.0, -math.inf], -math.inf)],
)
def test_mean_leaves_out_what_every_codec_keeps(values, expected):
    assert captures.mean(values) == expected
    assert math.isnan(captures.mean([*values, math.nan]))


def test_mean_of_nothing_is_nan():
    assert math.isnan(captures.mean([]))


# --- synthetic -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mean", "rms", "kurtosis"),
    [
        ("gauss", 0, 1, 3),
        ("gauss-small", 0, 1e-3, 3),
        ("laplace", 0, math.sqrt(2), 6),
        ("gauss-mean", 3, math.sqrt(10), 3),
    ],
)
def test_moments(name, mean, rms, kurtosis):
    x = synthetic.dataset(name).tensor.double()
    assert float(x.mean()) == pytest.approx(mean, abs=0.01 * rms)
    assert float(x.square().mean().sqrt()) == pytest.approx(rms, rel=0.01)
    central = x - x.mean()
    assert float(central.pow(4).mean() / central.square().mean() ** 2) == pytest.approx(kurtosis, rel=0.03)


def test_student_t3_has_its_tails():
    x = synthetic.dataset("student-t3").tensor.abs()
    # P(|t3| > 5.841) = 0.01
    assert float((x > 5.841).double().mean()) == pytest.approx(0.01, abs=0.001)


@pytest.mark.parametrize(("name", "count", "ratio"), [("outliers-100x", 8, 100), ("outliers-1000x", 4, 1000)])
def test_massive_channels_are_as_many_and_as_large_as_said(name, count, ratio):
    data = synthetic.dataset(name)
    rms = data.tensor.square().mean(0).sqrt()
    assert len(data.outliers) == count
    assert set(rms.topk(count).indices.tolist()) == set(data.outliers)
    bulk = torch.ones(len(rms), dtype=torch.bool)
    bulk[list(data.outliers)] = False
    assert float(rms[~bulk].mean() / rms[bulk].mean()) == pytest.approx(ratio, rel=0.1)


def test_data_sets_are_the_same_every_time_and_parts_differ():
    assert torch.equal(synthetic.dataset("gauss", 4, 64).tensor, synthetic.dataset("gauss", 4, 64).tensor)
    assert not torch.equal(synthetic.dataset("gauss", 4, 64).tensor, synthetic.dataset("gauss", 4, 64, part=1).tensor)
    with pytest.raises(ValueError, match="got data set 'normal'"):
        synthetic.dataset("normal")


# --- measurements ----------------------------------------------------------------------------------


def test_fidelity_has_every_codec_on_every_set(fidelity):
    rows = fidelity.of("row")
    ours = [r for r in rows if r["label"] == "ours"]
    places = {(n, "synthetic", "") for n in synthetic.NAMES} | {("gpt-mini-vtp4", "captured", r) for r in ROLES}
    for name in PRESETS:
        assert {(r["dataset"], r["tensors"], r["role"]) for r in ours if r["codec"] == name} == places
    theirs = {r["codec"] for r in rows if r["label"] == "authors-code"}
    assert theirs == {"taco", "taco-readme", "tahquant"}
    assert fidelity.header["name"] == "codec_fidelity"
    assert fidelity.header["provenance"] == PROVENANCE


def test_fidelity_of_sums_over_ranks(fidelity):
    rows = {(r["codec"], r["label"], r["tensors"], r["role"]): r for r in fidelity.of("row")}
    row = rows["int8", "ours", "captured", "tp_forward"]
    assert (row["step"], row["ranks"]) == (30, 4)
    assert row["one_shot_sqnr_db"] == pytest.approx(row["sqnr_db"], abs=0.3)  # independent parts and errors
    assert row["two_shot_sqnr_db"] == pytest.approx(row["one_shot_sqnr_db"] - 3, abs=0.3)
    for key in (("none", "ours"), ("taco", "authors-code")):
        assert rows[*key, "captured", "tp_forward"]["two_shot_sqnr_db"] is None


def test_fidelity_numbers(fidelity):
    rows = {(r["codec"], r["label"], r["dataset"], r["role"]): r for r in fidelity.of("row")}
    row = rows["int8", "ours", "gpt-mini-vtp4", "tp_backward"]
    assert row["bytes_per_element"] == 1.015625
    assert row["ratio_to_bf16"] == pytest.approx(1.969, abs=1e-3)
    assert row["sqnr_db"] == pytest.approx(43.7, abs=0.3)
    assert 0 < row["max_error"] < 1e-6
    assert 0 < row["sqnr_db"] - row["bulk_sqnr_db"] < 1
    assert rows["fp8-cast", "ours", "gpt-mini-vtp4", "tp_backward"]["sqnr_db"] == 0.0
    none = rows["none", "ours", "gauss", ""]
    assert (none["bytes_per_element"], none["ratio_to_bf16"]) == (2.0, 1.0)
    assert none["sqnr_db"] == pytest.approx(55.6, abs=0.3)
    assert rows["fp8", "ours", "outliers-100x", ""]["bulk_sqnr_db"] == pytest.approx(31.5, abs=0.3)
    assert rows["taco-readme", "authors-code", "gauss", ""]["sqnr_db"] == pytest.approx(0.16, abs=0.02)


def test_distribution_of_gaussian_captures(capture, tmp_path):
    measure_distribution("mini", [capture], tmp_path / "distribution.jsonl", PROVENANCE)
    written = log.read(tmp_path / "distribution.jsonl")
    rows = written.of("row")
    assert len(rows) == 24
    for row in rows:
        assert row["numel"] == 4096
        assert row["rms"] == pytest.approx(ROLES[row["role"]], rel=0.05)
        assert row["kurtosis"] == pytest.approx(3, abs=0.4)
        # P(|z| < 0.1) = 0.0797
        assert row["near_zero_fraction"] == pytest.approx(0.0797, abs=0.015)
        assert row["crest_db_mean"] == pytest.approx(9.0, abs=0.8)
        assert row["crest_rotated_db_mean"] == pytest.approx(9.0, abs=0.8)
        assert row["crest_db_max"] >= row["crest_db_mean"]
        assert row["alpha_clamped_fraction"] == (1.0 if row["role"] == "tp_backward" else 0.0)
    histograms = written.of("histogram")
    assert {(h["role"], h["layer"]) for h in histograms} == {(r, i) for r in ROLES for i in (-1, 0, 1)}
    for h in histograms:
        assert len(h["edges"]) == len(h["counts"]) + 1
        assert sum(h["counts"]) + h["outside"] == 4 * 4096


def test_distribution_of_nothing_is_refused_and_writes_nothing(tmp_path):
    with pytest.raises(ConfigError, match="got no captures; need files"):
        measure_distribution("mini", [], tmp_path / "d.jsonl", PROVENANCE)
    assert not list(tmp_path.iterdir())


def test_distribution_of_zeros_and_of_short_tensors(tmp_path):
    tensors = {"tp_forward|a|0": torch.zeros(256), "tp_forward|b|0": torch.ones(5)}
    save_file(tensors, tmp_path / "c.safetensors")
    measure_distribution("mini", [tmp_path / "c.safetensors"], tmp_path / "d.jsonl", PROVENANCE)
    zeros, short = log.read(tmp_path / "d.jsonl").of("row")
    assert (zeros["rms"], zeros["absmax_over_rms"], zeros["crest_db_mean"]) == (0.0, "nan", "nan")
    assert (short["absmax_over_rms"], short["crest_db_mean"], short["crest_db_max"]) == (1.0, "nan", "nan")
    assert len(log.read(tmp_path / "d.jsonl").of("histogram")) == 1


def test_ablation_changes_one_field_at_a_time(ablation):
    rows = ablation.of("row")
    places = {("gauss", ""), ("outliers-100x", ""), *(("gpt-mini-vtp4", r) for r in ROLES)}
    assert len(rows) == sum(len(AXES[axis]) for axes in BASES.values() for axis in axes) * len(places)
    assert {axis for axes in BASES.values() for axis in axes} == set(AXES)
    for base, axes in BASES.items():
        for axis in axes:
            chosen = [r for r in rows if r["base"] == base and r["axis"] == axis]
            assert {r["value"] for r in chosen} == set(AXES[axis])
            assert {(r["dataset"], r["role"]) for r in chosen} == places


def test_ablation_numbers(ablation):
    rows = {(r["base"], r["axis"], r["value"], r["dataset"]): r for r in ablation.of("row")}
    assert rows["taco", "payload", "int8", "gauss"]["sqnr_db"] == pytest.approx(43.8, abs=0.3)
    assert rows["taco", "rotation", "none", "gauss"]["sqnr_db"] == pytest.approx(31.8, abs=0.3)
    assert rows["int8", "scale", "e8m0", "gauss"]["bytes_per_element"] == 1.0078125
    assert rows["int8", "rounding", "stochastic", "gauss"]["sqnr_db"] == pytest.approx(40.7, abs=0.3)
    for row in ablation.of("row"):
        # two roundings of equal power instead of one, as parts are independent; a power-of-two scale depends on
        # where in its octave the absmax is, and that of a sum is elsewhere
        if row["dataset"] != "outliers-100x" and row["value"] != "e8m0" and row["axis"] != "clip":
            assert row["two_shot_sqnr_db"] == pytest.approx(row["sqnr_db"] - 3, abs=0.6)


def test_one_rank_has_no_two_shot(tmp_path):
    save_file({"tp_forward|a|0": torch.randn(256)}, tmp_path / "c.safetensors")
    measure_ablation("mini", [tmp_path / "c.safetensors"], tmp_path / "a.jsonl", PROVENANCE, rows=1, channels=512)
    rows = [r for r in log.read(tmp_path / "a.jsonl").of("row") if r["role"]]
    assert rows
    assert {r["two_shot_sqnr_db"] for r in rows} == {None}

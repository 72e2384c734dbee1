"""What a run writes: its log, its captures, and nothing when its input is bad."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from statistics import median

import pytest
import torch
from distributed import run_ranks
from safetensors import safe_open
from train_cases import MODEL, fit, fit_ranks, log_of, numbers, tiny_run

from taco.comm import wire_bytes
from taco.config import NONE, ConfigError, Parallel, Policy, run_from_dict, to_dict
from taco.log import read
from taco.models.flops import parameters
from taco.parallel import Parallelism
from taco.recipes import policy, preset
from taco.train.data import DataError, TokenDataset
from taco.train.files import Files, Options
from taco.train.monitor import crest_db
from taco.train.trainer import train


def test_log_says_everything_about_the_run(tmp_path, data):
    run = tiny_run(data, eval_every=4, checkpoint_every=0)
    fit(run, tmp_path)
    log = log_of(tmp_path)
    assert run_from_dict(log.header["config"]) == run
    assert log.header["parameters"] == parameters(MODEL)
    where = log.header["provenance"]
    assert {"commit", "dirty", "date", "hardware", "device", "transport", "world_size", "torch"} <= set(where)
    assert (where["device"], where["transport"], where["world_size"], where["seed"]) == ("cpu", "none", 1, 1)
    steps = log.of("step")
    assert [s["step"] for s in steps] == list(range(1, 11))
    assert [e["step"] for e in log.of("eval")] == [4, 8, 10]
    assert {e["tokens"] for e in log.of("eval")} == {2 * 4 * 16}
    for s in steps:
        assert set(s["phases_ms"]) == {"data", "forward_backward", "optimizer", "comm"}
        outer = sum(ms for phase, ms in s["phases_ms"].items() if phase != "comm")
        assert 0 < outer <= s["step_ms"] + 0.01
        assert s["tokens_per_s"] == pytest.approx(4 * 16 / s["step_ms"] * 1e3, rel=0.01)
        assert s["wire"] == {}
    assert steps[0]["loss"] == pytest.approx(math.log(512), abs=0.1)
    assert log.end["val_loss"] < steps[0]["loss"] - 0.05
    assert log.end["steps"] == 10
    assert log.end["comm_fraction"] == 0.0
    assert log.end["peak_rss_mb"] > 50
    assert not list(tmp_path.rglob("checkpoints"))


def test_validation_loss_is_the_mean_over_the_held_out_split_once(tmp_path, data):
    """A split smaller than eval_batches is seen once; its tokens are counted as they are."""
    fit(tiny_run(data, steps=1, eval_batches=10**6), tmp_path)
    held_out = TokenDataset(data, "val", 16, batch=4)
    assert log_of(tmp_path).of("eval")[0]["tokens"] == len(held_out) // 4 * 4 * 16


def test_accumulation_changes_only_rounding(tmp_path, data):
    fit(tiny_run(data, steps=4), tmp_path / "whole")
    fit(tiny_run(data, steps=4, micro_batch=1), tmp_path / "parts")
    whole, parts = log_of(tmp_path / "whole").of("step"), log_of(tmp_path / "parts").of("step")
    assert [s["loss"] for s in parts] == pytest.approx([s["loss"] for s in whole], rel=1e-5)
    assert [s["grad_norm"] for s in parts] == pytest.approx([s["grad_norm"] for s in whole], rel=1e-4)


def test_a_warm_up_is_the_other_codecs_run_for_its_steps(tmp_path, data):
    warm = replace(policy(tp="int4"), warmup_steps=2, warmup=preset("int8"))
    runs = {"warm": warm, "int8": policy(tp="int8"), "int4": policy(tp="int4")}
    for name, chosen in runs.items():
        grid = {"parallel": Parallel(virtual_tp=2), "chosen": chosen, "checkpoint_every": 0}
        fit(tiny_run(data, steps=4, eval_every=2, monitor_every=2, **grid), tmp_path / name)
    logs = {name: log_of(tmp_path / name) for name in runs}
    assert numbers(logs["warm"])[:2] == numbers(logs["int8"])[:2]
    assert logs["warm"].of("eval")[0] == logs["int8"].of("eval")[0]
    assert logs["warm"].of("eval")[1] != logs["int8"].of("eval")[1]
    wire = {name: [s["wire"] for s in log.of("step")] for name, log in logs.items()}
    assert wire["warm"] == wire["int8"][:2] + wire["int4"][2:]
    for role in ("tp_forward", "tp_backward"):
        paths = [logs["warm"].end["paths"][key] for key in (role, f"{role}.int8")]
        assert sum(paths[0].values()) > 0
        assert sum(paths[1].values()) > 0
    first, last = (median(r["sqnr_db"] for r in logs["warm"].of("sqnr") if r["step"] == step) for step in (2, 4))
    assert first > last + 15  # four bits more


def test_same_seed_same_bits_other_seed_other_bits(tmp_path, data):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        fit(tiny_run(data, steps=3, seed=seed), tmp_path / name)
    a, b, c = (numbers(log_of(tmp_path / name)) for name in "abc")
    assert a == b
    assert a != c


def test_bytes_on_the_wire_are_those_of_the_formula(tmp_path, data):
    """Two virtual ranks, two layers: embedding + 2 a layer forward; 2 a layer + the head's input backward."""
    int8 = preset("int8")
    run = tiny_run(data, steps=1, parallel=Parallel(virtual_tp=2), chosen=Policy(tp_forward=int8))
    fit(run, tmp_path)
    wire = log_of(tmp_path).of("step")[0]["wire"]
    elements = 4 * 16 * MODEL.hidden
    each = wire_bytes("all_reduce", "auto", elements, torch.float32, 2, int8)
    plain = wire_bytes("all_reduce", "auto", elements, torch.float32, 2, NONE)
    assert wire["tp_forward"] == {"wire": 5 * each, "raw": 5 * plain, "messages": 5}
    assert wire["tp_backward"] == {"wire": 5 * plain, "raw": 5 * plain, "messages": 5}


def test_capture_and_monitor_see_the_same_tensors(tmp_path, data):
    file = tmp_path / "captured" / "x.safetensors"
    run = tiny_run(data, steps=4, monitor_every=2, parallel=Parallel(virtual_tp=4), chosen=policy(tp="taco"))
    fit(run, tmp_path, capture=file, capture_steps=(2,))
    records = [r for r in log_of(tmp_path).of("sqnr") if r["step"] == 2]
    assert {r["step"] for r in log_of(tmp_path).of("sqnr")} == {2, 4}
    assert {r["role"] for r in records} == {"tp_forward", "tp_backward"}
    with safe_open(file, framework="pt") as captured:
        assert captured.metadata() == {"run": "tiny-run", "step": "2"}
        keys = set(captured.keys())
        assert keys == {f"{r['role']}|{r['name']}|{rank}" for r in records for rank in range(4)}
        for r in records:
            x = captured.get_tensor(f"{r['role']}|{r['name']}|0")
            assert x.shape == (4, 16, MODEL.hidden)
            assert r["crest_db"] == crest_db(x)
            assert 25 < r["sqnr_db"] < 40


def test_several_steps_are_captured_each_in_its_file(tmp_path, data):
    run = tiny_run(data, steps=3, parallel=Parallel(virtual_tp=2), chosen=policy(tp="int8"))
    with pytest.raises(ConfigError, match=re.escape("{step} in the name")):
        fit(run, tmp_path, capture=tmp_path / "c", capture_steps=(1, 3))
    fit(run, tmp_path, capture=tmp_path / "c-{step}", capture_steps=(1, 3))
    steps = {}
    for file in tmp_path.glob("c-*"):
        with safe_open(file, framework="pt") as captured:
            steps[file.name] = captured.metadata()["step"]
    assert steps == {"c-1": "1", "c-3": "3"}


@pytest.mark.parametrize("wanted", [True, False])
def test_steps_that_are_watched_are_not_replayed(tmp_path, data, monkeypatch, wanted):
    """On a GPU; here what is asked for is seen, and a step that says it was replayed has no time of communication."""
    asked = []
    real = Parallelism.step

    def step(self, tokens, targets, microbatches, *, replay=False):
        asked.append(replay)
        loss = real(self, tokens, targets, microbatches)
        self.replayed = replay
        return loss

    monkeypatch.setattr(Parallelism, "step", step)
    run = tiny_run(data, steps=8, monitor_every=4, parallel=Parallel(virtual_tp=2), chosen=policy(tp="int8"))
    fit(run, tmp_path, capture=tmp_path / "c", capture_steps=(6,), replay=wanted)
    watched = [step in (4, 6, 8) for step in range(1, 9)]
    assert asked[:8] == [wanted and not each for each in watched]
    assert not any(asked[8:])  # errors by depth
    log = log_of(tmp_path)
    assert ["comm" in s["phases_ms"] for s in log.of("step")] == [not each for each in asked[:8]]
    assert (log.end["comm_fraction"] is None) == wanted


def test_watching_changes_no_number(tmp_path, data):
    grid = {"parallel": Parallel(virtual_tp=2), "chosen": policy(tp="int6"), "steps": 4}
    fit(tiny_run(data, **grid), tmp_path / "blind")
    fit(tiny_run(data, monitor_every=1, **grid), tmp_path / "seeing", capture=tmp_path / "c", capture_steps=(2,))
    assert numbers(log_of(tmp_path / "seeing")) == numbers(log_of(tmp_path / "blind"))


def test_stages_report_to_the_first_rank(tmp_path, data):
    run = tiny_run(data, steps=2, monitor_every=2, parallel=Parallel(pp=2, microbatches=2), chosen=policy(pp="int8"))
    run_ranks(2, fit_ranks, run, tmp_path, 0)
    assert {r["role"] for r in log_of(tmp_path).of("sqnr")} == {"pp_forward", "pp_backward"}
    assert log_of(tmp_path).header["provenance"]["transport"] == "gloo"
    assert {"pp_forward", "pp_backward"} <= set(log_of(tmp_path).of("step")[0]["wire"])


def test_capture_that_cannot_happen_is_refused_before_training(tmp_path, data):
    with pytest.raises(ConfigError, match="--capture-step 2 without --capture"):
        fit(tiny_run(data), tmp_path, capture_steps=(2,))
    with pytest.raises(ConfigError, match="--capture-step 0; need a step from 1 to 10, or nothing for the last"):
        fit(tiny_run(data), tmp_path, capture=tmp_path / "c", capture_steps=(0,))
    with pytest.raises(ConfigError, match="--capture-step 99"):
        fit(tiny_run(data), tmp_path, capture=tmp_path / "c", capture_steps=(99,))
    run = tiny_run(data, parallel=Parallel(virtual_tp=2))
    fit(run, tmp_path, stop=8)
    with pytest.raises(ConfigError, match=re.escape("--capture-step 2 after a resume at step 6")):
        fit(run, tmp_path, capture=tmp_path / "c", capture_steps=(2,))
    fit(run, tmp_path)
    with pytest.raises(ConfigError, match="finished run"):
        fit(run, tmp_path, capture=tmp_path / "c", capture_steps=(2,))


def test_codecs_that_no_message_has_are_told(tmp_path, data, capsys):
    fit(tiny_run(data, chosen=policy(tp_forward="int8"), steps=2), tmp_path)
    assert "tiny-run: not compressed, for want of ranks: tp_forward int8" in capsys.readouterr().err
    fit(tiny_run(data, chosen=policy(tp="int8"), parallel=Parallel(virtual_tp=2), steps=2), tmp_path / "2")
    assert "not compressed" not in capsys.readouterr().err


def test_capture_of_a_run_that_sends_nothing_is_refused(tmp_path, data):
    with pytest.raises(ConfigError, match="--capture of tiny-run on one rank; need tp, virtual_tp, pp or dp above 1"):
        fit(tiny_run(data, steps=2), tmp_path, capture=tmp_path / "c")
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_a_capture_that_cannot_be_written_is_refused_before_training(tmp_path, data):
    (tmp_path / "file").write_text("")
    run = tiny_run(data, parallel=Parallel(virtual_tp=2))
    for place in (tmp_path / "file" / "c", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(f"--capture {place}; need a file that can be written")):
            fit(run, tmp_path / "out", capture=place)
    assert not list(tmp_path.rglob("*.jsonl*"))


def test_bad_data_leaves_nothing_behind(tmp_path, data):
    with pytest.raises(DataError):
        fit(tiny_run(tmp_path / "none"), tmp_path)
    small = to_dict(tiny_run(data))
    small["model"] |= {"vocab": 128}
    with pytest.raises(DataError, match="vocabulary"):
        fit(run_from_dict(small), tmp_path)
    assert not list(tmp_path.rglob("*.jsonl*"))


@pytest.mark.parametrize("options", [{"force": True}, {"restart": True}])
@pytest.mark.parametrize("damage", ["missing", "empty", "ids"])
def test_a_run_that_starts_again_on_bad_data_removes_no_result(tmp_path, data, options, damage):
    shutil.copytree(data, tmp_path / "data")
    run = tiny_run(tmp_path / "data", steps=3, lr=0.1)
    fit(tiny_run(tmp_path / "data", steps=3), tmp_path)
    tokens = tmp_path / "data" / "train.bin"
    size = tokens.stat().st_size
    tokens.unlink()
    if damage != "missing":
        tokens.write_bytes(b"" if damage == "empty" else bytes(size - 2) + b"\xff\xff")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(DataError, match="token 65535 of" if damage == "ids" else "truncated"):
        fit(run, tmp_path, **options)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_train_reads_the_environment_it_is_given(tmp_path, data):
    threads = torch.get_num_threads()
    try:
        run = tiny_run(data, steps=2)
        options = Options(source="test", out=tmp_path)
        with pytest.raises(ConfigError, match="world size 2"):
            train(run, options, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
        train(run, options, {}, device="cpu", threads=1)
        assert read(Files(run, options).log).header["provenance"]["threads"] == 1
        train(run, options, {}, device="cpu")  # finished: says so and does nothing
    finally:
        torch.set_num_threads(threads)

"""The log of codec_speed: a small grid on a stand-in for a GPU, other implementations, the command line; a GPU."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from speed_cases import MIB, TACO, StandIn, case

from taco import cli, log
from taco.bench import speed, speed_case, speed_peers, speed_timer
from taco.bench.speed import measure_codec_speed
from taco.bench.speed_timer import Work
from taco.codec import coder, cuda
from taco.config import ConfigError
from taco.recipes import PRESETS, SPEED

SMALL = replace(
    SPEED.narrowed(codecs=["taco", "int8", "flash-int4"], mib=[1]), dtypes=("bfloat16", "float32"), parts=(2,)
)

PEERS = """
import torch

def make(x):
    return lambda: [x.clone()]

def broken(x):
    raise OSError("no kernel\\nfor this GPU")

def late(x):
    def call():
        raise RuntimeError("no launch")
    return call

def arm(name, make, op="encode", codec="taco", **more):
    return {"arm": name, "op": op, "codec": codec, "make": make, "source": "here", "note": "n", **more}

ARMS = [
    arm("coccl-a", make), arm("coccl-b", broken), arm("other", late, "decode"), arm("own", make, codec="mine"),
    arm("own", make, "decode", "mine"), arm("sized", make, "decode", "mine", bytes_per_element=2.5, allocates=True),
]
"""


@pytest.fixture(scope="module")
def peers(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("peers") / "peers.py"
    path.write_text(PEERS)
    return path


@pytest.fixture(scope="module")
def measured(peers, tmp_path_factory) -> log.Log:
    out = tmp_path_factory.mktemp("speed") / "codec_speed.jsonl"
    measure_codec_speed("fresh", [], out, {"device": "cpu"}, grid=SMALL, peers=peers, compiled=False, timer=StandIn())
    return log.read(out)


# --- the check -------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", SPEED.ops)
@pytest.mark.parametrize("codec", ["taco", "int6"])
def test_right_answers_pass(op: str, codec: str):
    speed_case.check(case(op, codec, parts=1 if "sum" not in op else 3), torch.device("cpu"), 0)


def test_a_wrong_answer_is_not_timed(monkeypatch, tmp_path):
    broken = type(coder(PRESETS["int8"]))(PRESETS["int8"])
    monkeypatch.setattr(broken, "_encode", lambda rows, seeds: type(broken)._encode(broken, rows * 1.01, seeds))
    monkeypatch.setattr(
        speed_case, "coder", lambda config, backend="auto": broken if backend == "auto" else coder(config, backend)
    )
    with pytest.raises(RuntimeError, match="got another result of encode of 1 x 65536 bfloat16 elements with int8"):
        measure_codec_speed(
            "fresh", [], tmp_path / "x.jsonl", {}, grid=SMALL.narrowed(codecs=["int8"]), timer=StandIn()
        )
    assert not list(tmp_path.iterdir())


# --- records ---------------------------------------------------------------------------------------


def test_every_case_has_a_row_beside_a_copy_of_its_bytes(measured):
    rows = [r for r in measured.of("row") if r["arm"] == "ours"]
    assert len(rows) == len(list(SMALL.cases()))
    for r in rows:
        assert r["part"] == "operation"
        assert r["us"] == pytest.approx(r["bytes"] / 1e6)
        assert (r["copy_us"], r["timing"], r["path"]) == (pytest.approx(2 * r["us"]), "graph", "reference")
    taco = next(r for r in rows if (r["op"], r["codec"], r["dtype"]) == ("encode", "taco", "bfloat16"))
    assert (taco["bytes"], taco["parts"], taco["mib"], taco["replays"]) == (MIB + TACO, 1, 1, SPEED.replays)


def test_a_copy_has_one_row_for_each_number_of_bytes(measured):
    copies = [r["bytes"] for r in measured.of("row") if r["arm"] == "copy"]
    assert sorted(copies) == sorted({r["bytes"] for r in measured.of("row") if r["part"] == "operation"})
    row = next(r for r in measured.of("row") if r["arm"] == "copy")
    assert (row["op"], row["dtype"], row["mib"]) == ("copy", "uint8", row["bytes"] / 2 / MIB)


def test_small_calls_are_timed_on_the_host_and_in_a_graph(measured):
    rows = [r for r in measured.of("row") if r["part"] == "launch"]
    assert {(r["op"], r["codec"], r["mib"], r["arm"]) for r in rows} == set(
        itertools.product(SPEED.ops, ("taco", "int8"), (4 / 1024, 64 / 1024, 1.0), ("eager", "graph"))
    )
    assert {r["parts"] for r in rows if "sum" in r["op"]} == {2}
    assert {(r["arm"], r["timing"]) for r in rows} == {("eager", "host"), ("graph", "graph")}


def test_peers_that_raise_are_told_with_their_reason(measured):
    failed = {(r["arm"], r["op"]): r["reason"] for r in measured.of("failed")}
    assert failed["coccl-b", "encode"] == "OSError: no kernel for this GPU"
    assert failed["other", "decode"] == "RuntimeError: no launch"
    assert "need bytes_per_element" in failed["own", "decode"]
    assert len(failed) == 3


def test_peers_move_the_bytes_of_their_packets(measured):
    rows = {(r["arm"], r["op"]): r for r in measured.of("row") if r.get("source") == "here"}
    assert rows["coccl-a", "encode"]["bytes"] == MIB + TACO
    assert rows["own", "encode"]["bytes"] == 2 * MIB
    assert rows["sized", "decode"]["bytes"] == MIB + 2**19 // 2
    assert {r["note"] for r in rows.values()} == {"n"}


def test_the_header_says_what_was_measured(measured):
    config = measured.header["config"]
    assert (config["source"], config["peers"], config["mib"]) == ("fresh", "peers.py", [1])


@pytest.mark.parametrize(
    "text",
    [
        "", "ARMS = 3", "ARMS = [{'arm': 'a'}]", "ARMS = [3]",
        PEERS + "ARMS = [arm('a', make, op='decode_sum')]", PEERS + "ARMS = [arm('a', 3)]",
        PEERS + "ARMS = [arm('a', make), arm('a', make)]",
    ],
)  # fmt: skip
def test_files_of_another_form_are_refused(text: str, tmp_path: Path):
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(ConfigError, match=r"got .*; need .*; because"):
        speed_peers.load(tmp_path / "p.py")


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="got no file"):
        speed_peers.load(tmp_path / "absent.py")


def test_the_compiled_reference_is_one_arm_per_codec_and_operation():
    found = speed_peers.compiled(SPEED.narrowed(codecs=["taco", "int4"], ops=["encode", "decode_sum"]))
    assert [(p.arm, p.codec, p.op) for p in found] == [("compile", "taco", "encode")]


# --- command line ----------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="tells of a machine without a CUDA GPU")
def test_without_a_gpu_the_error_says_so(capsys, tmp_path: Path):
    assert cli.main(["measure", "codec_speed", "--out", str(tmp_path / "x.jsonl")]) == cli.BAD_INPUT
    assert capsys.readouterr().err.startswith("taco: got no CUDA GPU; need one; because")
    with pytest.raises(ConfigError, match="got no CUDA GPU"):
        measure_codec_speed("fresh", [], tmp_path / "x.jsonl", {})


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["codec_speed", "--source", "mini"], "the mini runs none"),
        (["codec_speed", "--source", "logged"], "copied in"),
        (["ablation", "--mib", "1"], "got --mib with ablation"),
    ],
)
def test_options_that_do_not_fit_are_refused(argv: list[str], told: str, capsys):
    assert cli.main(["measure", *argv]) == cli.BAD_INPUT
    assert told in capsys.readouterr().err


# --- on a GPU --------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")
def test_quick_look_end_to_end(tmp_path: Path, peers: Path):
    out = tmp_path / "codec_speed.jsonl"
    options = ["--codecs", "taco", "tahquant", "--mib", "1", "--skip-compile", "--peers", str(peers)]
    assert cli.main(["measure", "codec_speed", "--out", str(out), *options]) == 0
    found = log.read(out)
    ours = [r for r in found.of("row") if r["arm"] == "ours"]
    assert found.header["provenance"]["device"] == "cuda"
    assert {r["path"] for r in ours if r["codec"] == "taco"} == {"cuda"}
    assert all(r["us"] > 0 and r["copy_us"] > 0 and r["us_iqr"] < r["us"] for r in ours)
    assert {r["timing"] for r in ours if r["codec"] == "taco"} == {"graph"}
    assert {r["arm"] for r in found.of("failed")} == {"coccl-b", "other", "own"}


@pytest.mark.gpu
def test_what_a_graph_cannot_hold_is_called_from_python():
    timer = speed_timer.GpuTimer()
    x = torch.ones(1 << 20, device=timer.device)
    elsewhere = torch.cuda.Stream()

    def on_another_stream():
        with torch.cuda.stream(elsewhere):
            return x * 2

    def waits():
        return x[: int(x[0])]

    for call, timing in ((lambda: x * 2, "graph"), (waits, "eager"), (on_another_stream, "eager")):
        (found,) = timer.interleaved([Work(sets=(call, call), nbytes=8 << 20)], 4)
        assert found.timing == timing
        torch.rand(1, device=timer.device)
    assert speed.gpu() == timer.device

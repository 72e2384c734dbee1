"""The log of collective: what ranks on CPUs write, what broken arms leave in it, files of peers, the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import collective_ranks as ranks
import pytest
import torch
from distributed import RankError, run_ranks

from taco import cli, log
from taco.bench import collective_peers
from taco.codec import cuda
from taco.comm.crossover import Crossover, key_here
from taco.config import ConfigError
from taco.recipes import preset
from taco.recipes.collective import COLLECTIVES

PEERS = """
import torch.distributed as dist

def make(group, numel, device):
    assert (numel, device.type) == (8192, "cpu")
    def run(x):
        dist.all_reduce(x, group=group)
        return x
    return run

def broken(group, numel, device):
    raise OSError("no kernel\\nfor this GPU")

def wrong(group, numel, device):
    return lambda x: x.zero_()

class Peer:
    name, collective, make, source, note, codec = "lossy", "all_reduce", make, "there", "n", "mine"

def peer(name, make, collective="all_reduce", **more):
    return {"name": name, "collective": collective, "make": make, "source": "here", "note": "n", **more}

Peer.make = staticmethod(make)
PEERS = [peer("plain", make), peer("coccl-a", broken), peer("wrong", wrong), Peer()]
PEERS.append(peer("gathers", broken, "all_gather"))
"""


@pytest.fixture(scope="module")
def peers(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("peers") / "peers.py"
    path.write_text(PEERS)
    return path


@pytest.fixture(scope="module")
def measured(peers, tmp_path_factory) -> log.Log:
    out = tmp_path_factory.mktemp("collective") / "collective-gloo.jsonl"
    run_ranks(2, ranks.measures, out, peers, COLLECTIVES)
    return log.read(out)


def rows_of(found: log.Log, **equal) -> list[dict]:
    return [r for r in found.of("row") if all(r[k] == v for k, v in equal.items())]


# --- records ---------------------------------------------------------------------------------------


def test_every_arm_has_a_row_with_its_bytes(measured):
    sent = {(r["collective"], r["arm"], r["codec"]): r["wire_bytes"] for r in measured.of("row") if "source" not in r}
    full, packet = 16384, 8192 + 64 * 2
    assert sent == {
        ("all_reduce", "gloo", "none"): full,
        ("all_reduce", "unfused", "int8"): packet,
        ("reduce_scatter", "gloo", "none"): full // 2,
        ("reduce_scatter", "unfused", "int8"): packet // 2,
        ("all_gather", "gloo", "none"): full // 2,
        ("all_gather", "unfused", "int8"): packet // 2,
    }


def test_a_row_says_where_how_and_how_well(measured):
    for r in measured.of("row"):
        assert (r["transport"], r["world_size"], r["mib"], r["dtype"], r["bytes"]) == (
            "gloo",
            2,
            1 / 64,
            "bfloat16",
            16384,
        )
        assert r["us"] > 0
        assert (r["timing"], r["replays"] >= 2) == ("eager", True)
        assert r["rank_identical"] is (None if r["collective"] == "reduce_scatter" else True)
        assert r["rel_error"] < 0.02
    (exact,) = rows_of(measured, collective="all_gather", arm="gloo")
    assert exact["rel_error"] == 0
    (coded,) = rows_of(measured, collective="all_reduce", arm="unfused")
    assert (coded["path"], coded["rel_error"] > 1e-3) == ("reference", True)


def test_the_header_says_what_was_measured_and_in_which_environment(measured):
    config = measured.header["config"]
    assert (config["transport"], config["world_size"], config["peers"]) == ("gloo", 2, "peers.py")
    assert config["environment"] == {"NCCL_X": "1"}
    assert [part["mib"] for part in config["parts"]] == [[1 / 64]] * 3


def test_peers_run_on_their_own_operands_and_those_that_raise_or_err_say_so(measured):
    plain, lossy = (rows_of(measured, arm=name)[0] for name in ("plain", "lossy"))
    assert (plain["source"], plain["note"], plain["codec"], plain["wire_bytes"]) == ("here", "n", "none", None)
    assert (lossy["source"], lossy["codec"]) == ("there", "mine")
    reasons = {(r["arm"], r["collective"]): r["reason"] for r in measured.of("failed")}
    assert reasons == {
        ("coccl-a", "all_reduce"): "rank 0: OSError: no kernel for this GPU",
        ("wrong", "all_reduce"): "the result of the timed calls is off by 1 of the sum's norm",
        ("gathers", "all_gather"): "rank 0: OSError: no kernel for this GPU",
    }
    # whose operands are the others' too
    assert rows_of(measured, collective="all_reduce", arm="unfused")[0]["rel_error"] < 0.02


@pytest.fixture(scope="module")
def kernels(tmp_path_factory) -> log.Log:
    out = tmp_path_factory.mktemp("kernels") / "collective-nvlink.jsonl"
    run_ranks(2, ranks.measures_kernels, out, "")
    return log.read(out)


def test_nvlink_times_our_kernel_uncompressed_and_with_every_codec(kernels):
    timed = [(r["arm"], r["codec"]) for r in rows_of(kernels, collective="all_reduce")]
    unfused = [("unfused", codec) for codec in ("taco", "int8", "fp8", "int6", "int4")]
    plain = [("gloo", "none"), ("gloo-eager", "none")]
    assert timed == [*plain, ("fused", "none"), ("fused", "int8"), ("fused", "int4"), *unfused]
    assert {r["rank_identical"] for r in rows_of(kernels, arm="fused", codec="int8")} == {True, None}


def test_broken_kernels_leave_their_reasons(kernels):
    reasons = {(r["arm"], r["codec"]): r["reason"] for r in kernels.of("failed") if r["collective"] == "all_reduce"}
    assert "RuntimeError: no symmetric memory" in reasons["fused", "int6"]
    assert reasons["fused", "taco"] == "rank 1: RuntimeError: rank 0 did not come in 60 s"
    assert reasons["fused", "fp8"] == "the result of the timed calls is off by 2 of the sum's norm"
    # torch's own kernels have no symmetric memory on CPUs
    assert {arm for arm, codec in reasons if codec == "none"} == {"symm-two-shot", "symm-one-shot"}
    others = {(r["collective"], r["arm"]) for r in kernels.of("failed") if r["collective"] != "all_reduce"}
    assert {("reduce_scatter", "symm-copies"), ("all_gather", "symm-copies")} <= others


def test_ranks_with_other_bits_are_told(kernels):
    (row,) = rows_of(kernels, collective="all_reduce", arm="fused", codec="int4")
    assert row["rank_identical"] is False


def test_kernels_that_cannot_run_here_say_why(tmp_path: Path):
    out = tmp_path / "x.jsonl"
    run_ranks(2, ranks.measures_kernels, out, "GPUs 0 and 1 do not address each other")
    reasons = {r["reason"] for r in log.read(out).of("failed") if r["arm"] == "fused"}
    assert len(reasons) == 6
    assert all("because GPUs 0 and 1 do not address each other" in reason for reason in reasons)


def test_a_place_that_cannot_be_written_stops_every_rank(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RankError) as raised:
        run_ranks(2, ranks.measures, tmp_path / "file" / "x.jsonl", None, ("all_gather",))
    assert {rank: "Error: " in text for rank, text in raised.value.errors.items()} == {0: True, 1: True}


# --- files of peers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", "PEERS = 3", "PEERS = [{'name': 'a'}]", "PEERS = [3]",
        PEERS + "PEERS = [peer('a', make, collective='broadcast')]", PEERS + "PEERS = [peer('a', 3)]",
        PEERS + "PEERS = [peer('nccl', make)]", PEERS + "PEERS = [peer('a', make), peer('a', make)]",
    ],
)  # fmt: skip
def test_files_of_another_form_are_refused(text: str, tmp_path: Path):
    (tmp_path / "p.py").write_text(text)
    with pytest.raises(ConfigError, match=r"got .*; need .*; because"):
        collective_peers.load(tmp_path / "p.py")


# --- command line ----------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "got --transport ''; need one of nvlink, host, tcp, gloo"),
        (["--transport", "nvlink", "--source", "logged"], "copied in"),
        (["--transport", "nvlink", "--source", "mini"], "the mini runs none"),
        (["--transport", "nvlink", "--ops", "encode"], "got --ops with collective; need codec_speed"),
        (["--transport", "nvlink", "--codecs", "tahquant"], "got codec tahquant"),
        (["--transport", "host"], "got no NCCL_P2P_DISABLE; need NCCL_P2P_DISABLE=1, no NCCL_SHM_DISABLE; because"),
        (["--transport", "gloo"], "got one rank; need at least 2: `torchrun"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv: list[str], told: str, alone, capsys):
    assert cli.main(["measure", "collective", *argv]) == cli.BAD_INPUT
    assert told in capsys.readouterr().err


def test_an_option_of_collective_is_no_other_measurements(capsys):
    assert cli.main(["measure", "codec_speed", "--transport", "tcp"]) == cli.BAD_INPUT
    assert "got --transport with codec_speed; need collective" in capsys.readouterr().err


def under_torchrun(*options: str) -> str:
    """What two ranks of the command line print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "taco"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=200, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured_under_torchrun(folder: Path, transport: str, *options: str) -> log.Log:
    out = folder / "c.jsonl"
    under_torchrun("measure", "collective", "--transport", transport, "--out", str(out), *options)
    return log.read(out)


@pytest.mark.slow
def test_ranks_of_torchrun_on_cpus_end_to_end(alone, tmp_path: Path):
    found = measured_under_torchrun(tmp_path, "gloo", "--collectives", "all_gather", "--mib", "0.015625")
    assert [(r["arm"], r["mib"]) for r in found.of("row")] == [("gloo", 1 / 64), ("unfused", 1 / 64)]
    assert (found.header["provenance"]["transport"], found.header["provenance"]["world_size"]) == ("gloo", 2)


# --- tables of crossovers ---------------------------------------------------------------------------


def _table(folder: Path, times: dict) -> Crossover:
    key = key_here(torch.device("cpu"), "auto", 2, preset("int8"), torch.bfloat16)
    table = Crossover(key=key, times=times)
    table.save(folder)
    return table


def test_codecs_with_a_table_are_timed_on_the_paths_that_it_chooses(tmp_path: Path):
    compressed, plain = {"uncompressed": 2.0, "unfused": 1.0}, {"uncompressed": 1.0, "unfused": 2.0}
    table = _table(tmp_path, {"all_reduce": {1024: compressed}, "all_gather": {1024: plain}})
    run_ranks(2, ranks.measures_chosen, tmp_path / "c.jsonl", tmp_path)
    found = log.read(tmp_path / "c.jsonl")
    chosen = {r["collective"]: (r["codec"], r["path"], r["wire_bytes"]) for r in rows_of(found, arm="chosen")}
    assert chosen == {
        "all_reduce": ("int8", "unfused", 8192 + 64 * 2),
        "all_gather": ("int8", "uncompressed", 8192),
    }  # the table has no times of reduce_scatter
    assert found.header["config"]["tables"] == {"int8": table.key.filename()}
    assert all(r["rank_identical"] for r in rows_of(found, arm="chosen"))


def test_a_folder_without_tables_of_these_ranks_is_refused(tmp_path: Path):
    with pytest.raises(RankError, match=r"--tables .*; need one of .*int8.*json there: `torchrun .* taco crossover"):
        run_ranks(2, ranks.measures_chosen, tmp_path / "c.jsonl", tmp_path)
    assert not (tmp_path / "c.jsonl").exists()


# --- on GPUs ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")
def test_quick_look_end_to_end(alone, tmp_path: Path):
    printed = under_torchrun("crossover", "--codec", "int8", "--max-mib", "1", "--repeats", "3", "--out", str(tmp_path))
    assert "all_reduce, microseconds" in printed
    options = ("--codecs", "int8", "--mib", "1", "--tables", str(tmp_path))
    found = measured_under_torchrun(tmp_path, "nvlink", *options)
    assert {r["collective"] for r in rows_of(found, arm="chosen")} == set(COLLECTIVES)
    graphs = ("nccl", "symm-two-shot", "symm-copies", "fused")
    assert {r["timing"] for r in found.of("row") if r["arm"] in graphs} == {"graph"}
    assert {r["collective"] for r in rows_of(found, arm="symm-copies")} == {"reduce_scatter", "all_gather"}
    assert {r["timing"] for r in found.of("row") if r["arm"] == "nccl-eager"} == {"eager"}
    assert {r["path"] for r in found.of("row") if r["arm"] == "unfused"} == {"cuda"}
    assert all(r["rank_identical"] in (True, None) and r["rel_error"] < 0.02 for r in found.of("row"))
    assert not found.of("failed")

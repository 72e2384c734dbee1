"""`taco crossover` measures under torchrun, prints and writes; a run with the folder logs which paths it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from distributed import run_ranks
from train_cases import corpus, fit_ranks, log_of, tiny_run

from taco import cli
from taco.comm import Crossover
from taco.comm.crossover import key_here, load
from taco.config import GroupCodec, Parallel, to_dict
from taco.recipes import policy, preset
from taco.train.crossover_cli import cache_folder, lines, size_text

REPOSITORY = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def _table(times: dict) -> Crossover:
    key = key_here(CPU, "auto", 2, preset("int8"), torch.float32)
    return Crossover(
        key=key, times=dict.fromkeys(("all_reduce", "all_gather"), times), provenance={"date": "2030-01-01"}
    )


@pytest.mark.slow
def test_measures_writes_and_prints_under_torchrun(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "taco"]
    codec = GroupCodec(name="int6-signed-g64", payload="int6", group=64)
    (tmp_path / "fitted.json").write_text(json.dumps(to_dict(codec)))
    options = ["--codec", "fitted.json", "--dtype", "float32", "--device", "cpu", "--max-mib", "1", "--repeats", "1"]
    done = subprocess.run(
        [*launcher, "crossover", *options, "--limit", "1", "--out", str(tmp_path / "tables")],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [path] = (tmp_path / "tables").iterdir()
    table = load(path)
    assert (table.key.codec, table.key.dtype) == (codec, "float32")
    assert {"commit", "date", "hardware"} <= set(table.provenance)
    assert done.stdout.splitlines() == [*lines(table), f"written to {path}"]


def test_the_printed_table_marks_the_choice_and_says_where_compression_pays() -> None:
    times = {1 << 14: {"uncompressed": 10.0, "unfused": 20.0}, 1 << 20: {"uncompressed": 90.0, "unfused": 40.0}}
    text = "\n".join(lines(_table(times)))
    assert "int8, float32, 2 ranks, gloo" in text
    assert "    16 KiB               10.0*               20.0 " in text
    assert "     1 MiB               90.0                40.0*" in text
    assert text.count("compression pays from 1 MiB on") == 2
    assert "at no measured size" in "\n".join(lines(_table({64: {"uncompressed": 1.0, "unfused": 2.0}})))
    assert size_text(1 << 14) == "16 KiB"


def test_tables_are_kept_in_the_users_cache_unless_told_otherwise(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/taco/crossover")
    assert cache_folder({}) == Path.home() / ".cache/taco/crossover"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--codec", "int9"], "got codec 'int9'; need an existing JSON file or a known codec, such as 'int8'"),
        (["--codec", "absent.json"], "got no file absent.json; need an existing JSON file of a codec"),
        (
            ["--codec", "int8"],
            "got 1 rank; need at least two: torchrun --nproc-per-node N -m taco crossover --codec int8",
        ),
        (["--codec", "int8", "--repeats", "0"], "got --repeats 0"),
    ],
)
def test_bad_options_are_one_line(capsys: pytest.CaptureFixture, options: list[str], text: str) -> None:
    assert cli.main(["crossover", "--device", "cpu", *options]) == cli.BAD_INPUT
    assert capsys.readouterr().err.startswith(f"taco: {text}")


def test_a_run_with_tables_logs_them_and_the_paths_it_took(tmp_path: Path) -> None:
    _table({1: {"uncompressed": 9.0, "unfused": 1.0}}).save(tmp_path / "tables")
    grid = Parallel(tp=2, crossover=str(tmp_path / "tables"))
    run = tiny_run(corpus(tmp_path), steps=1, parallel=grid, chosen=policy(tp_forward="int8"))
    run_ranks(2, fit_ranks, run, tmp_path, 0)
    log = log_of(tmp_path)
    assert set(log.header["crossover"]) == {"tp_forward"}
    assert log.header["crossover"]["tp_forward"]["provenance"] == {"date": "2030-01-01"}
    assert log.header["crossover"]["tp_forward"]["key"]["codec"]["name"] == "int8"
    assert "one_shot" in log.end["paths"]["tp_forward"]
    assert set(log.end["paths"]["tp_backward"]) == {"uncompressed"}

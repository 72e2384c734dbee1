"""Preparing a corpus: same bytes each time, whole or not at all, and the command line."""

import argparse
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from taco.train import data_cli, data_corpora, data_prepare, tokenizer
from taco.train.data import TokenDataset, verify
from taco.train.data_format import DataError, read_meta
from taco.train.data_prepare import prepare

SOTU_SHA = ("51ebb7ac59628b5c", "089498b66d41f141")
TEXT = "".join(f"Line {i} says that {i} and {i + 1} make {2 * i + 1}.\n" for i in range(20_000))


def tokens_of(folder, split):
    return np.fromfile(folder / f"{split}.bin", "<" + ("u2" if read_meta(folder)["dtype"] == "uint16" else "u4"))


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_bytes_corpus_is_the_text_with_document_ends(tmp_path):
    (tmp_path / "a.txt").write_text("one\n<|endoftext|>\ntwo é\n")
    (tmp_path / "b.txt").write_text("held")
    meta = prepare([tmp_path / "a.txt"], tmp_path / "out", held_out=[tmp_path / "b.txt"])
    assert tokens_of(tmp_path / "out", "train").tobytes() == "one\n\0two é\n\0".encode("utf-16-le").replace(
        "é".encode("utf-16-le"), b"\xc3\0\xa9\0"
    )
    assert tokens_of(tmp_path / "out", "val").tolist() == [*b"held", 0]
    assert meta == verify(tmp_path / "out")
    assert (meta["tokenizer"], meta["vocab"], meta["eod"], meta["dtype"]) == ("bytes", 256, 0, "uint16")
    train = meta["splits"]["train"]
    assert (train["tokens"], train["documents"], train["text_bytes"]) == (13, 2, 11)
    assert [s["name"] for s in meta["sources"]["train"]] == ["a.txt"]


def test_a_share_is_held_out_from_everywhere(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    meta = prepare([tmp_path / "a.txt"], tmp_path / "out", held_out=0.2)
    train, val = (meta["splits"][s]["tokens"] for s in ("train", "val"))
    assert train + val == len(TEXT) + 1
    assert val / (train + val) == pytest.approx(0.2, abs=0.1)
    text = tokenizer.Bytes().decode(tokens_of(tmp_path / "out", "val").tolist())
    numbers = [int(line.split()[1]) for line in text.rstrip("\0").splitlines()]
    assert numbers == sorted(set(numbers))
    assert numbers[0] < 4000
    assert numbers[-1] > 12_000
    kept = tokenizer.Bytes().decode(tokens_of(tmp_path / "out", "train").tolist()).rstrip("\0")
    assert not set(kept.splitlines()) & set(text.splitlines())


def test_same_files_whatever_the_threads_and_the_compression(tmp_path):
    text = TEXT[:150_000]
    (tmp_path / "a.txt").write_text(text)
    made = [prepare([tmp_path / "a.txt"], tmp_path / f"out{n}", "bpe:300", held_out=0.1, threads=n) for n in (1, 3)]
    assert made[0] == made[1]
    assert contents(tmp_path / "out1") == contents(tmp_path / "out3")
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(text.encode()))
    meta = prepare([tmp_path / "a.txt.xz"], tmp_path / "out", "bpe:300", held_out=0.1)
    assert meta["splits"] == made[0]["splits"]
    assert meta["vocab"] == 300
    loaded = tokenizer.load(meta["tokenizer"], tmp_path / "out")
    assert loaded.decode(tokens_of(tmp_path / "out", "train")[:200].tolist()) in text


def test_a_trained_tokenizer_does_not_see_the_held_out_text(tmp_path):
    (tmp_path / "a.txt").write_text("aaaa bbbb " * 50)
    (tmp_path / "b.txt").write_text("zqzqzqzq " * 50)
    prepare([tmp_path / "a.txt"], tmp_path / "out", "bpe:300", held_out=[tmp_path / "b.txt"])
    vocabulary = json.loads((tmp_path / "out" / "tokenizer.json").read_text())["model"]["vocab"]
    assert "aa" in vocabulary
    assert "zq" not in vocabulary


def test_large_vocabulary_is_stored_in_32_bits(tmp_path, monkeypatch):
    class Wide(tokenizer.Bytes):
        name, vocab, eod = "wide", 70_000, 69_999

    monkeypatch.setattr(data_prepare, "load", lambda name, files: Wide())
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "b.txt").write_text("c")
    assert prepare([tmp_path / "a.txt"], tmp_path / "out", held_out=[tmp_path / "b.txt"])["dtype"] == "uint32"
    assert tokens_of(tmp_path / "out", "train").tolist() == [97, 98, 69_999]


def test_tokens_outside_the_vocabulary_are_refused(tmp_path, monkeypatch):
    class Narrow(tokenizer.Bytes):
        name, vocab = "narrow", 128

    monkeypatch.setattr(data_prepare, "load", lambda name, files: Narrow())
    (tmp_path / "a.txt").write_text("é")
    (tmp_path / "b.txt").write_text("e")
    with pytest.raises(DataError, match="got token 195 from narrow; need ids below 128"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", held_out=[tmp_path / "b.txt"])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_an_existing_folder_is_replaced_only_on_request(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)  # an empty folder is no corpus: workflow tools make it
    prepare([tmp_path / "a.txt"], out, held_out=0.1)
    before = contents(out)
    with pytest.raises(DataError, match="need a new or empty folder, or --overwrite"):
        prepare([tmp_path / "a.txt"], out, held_out=0.2)
    assert contents(out) == before
    (tmp_path / "bad.txt").write_bytes(b"good\n" * 99_999 + b"\xff\n")
    with pytest.raises(DataError, match="need UTF-8"):
        prepare([tmp_path / "bad.txt"], out, held_out=0.2, overwrite=True)
    assert contents(out) == before
    prepare([tmp_path / "a.txt"], out, held_out=0.2, overwrite=True)
    assert contents(out)["val.bin"] != before["val.bin"]
    assert list(out.parent.iterdir()) == [out]


def test_a_folder_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text(TEXT)
    out = tmp_path / "out"

    def meanwhile(path):
        out.mkdir(exist_ok=True)
        (out / "precious").touch()
        return "0"

    monkeypatch.setattr(data_prepare, "sha256", meanwhile)
    with pytest.raises(DataError, match="need a new or empty folder, or --overwrite"):
        prepare([tmp_path / "a.txt"], out, held_out=0.1)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.txt", "out", "precious"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out": 0.0}, "need a share between 0 and 1, or files"),
        ({"held_out": 1.0}, "need a share between 0 and 1, or files"),
        ({"held_out": []}, "need a share between 0 and 1, or files"),
        ({"held_out": 0.5, "tokenizer": "nope"}, "got tokenizer 'nope'"),
        ({"held_out": 0.5, "errors": "ignore"}, "need strict or replace"),
        ({"held_out": 0.5, "inputs": []}, "at least one file"),
        ({"held_out": 0.5, "inputs": ["absent.txt"]}, "no file"),
    ],
)
def test_bad_requests_leave_nothing(tmp_path, options, message):
    (tmp_path / "a.txt").write_text("one\n<|endoftext|>\ntwo\n")
    before = sorted(tmp_path.iterdir())
    inputs = [tmp_path / name for name in options.pop("inputs", ["a.txt"])]
    with pytest.raises(DataError, match=message):
        prepare(inputs, tmp_path / "out", **options)
    assert sorted(tmp_path.iterdir()) == before


SLOW = """
import sys, time
from pathlib import Path
from taco.train import data_prepare
def slow(*args): Path(sys.argv[2]).touch(); time.sleep(60)
data_prepare.sha256 = slow
data_prepare.prepare([sys.argv[1]], sys.argv[3], held_out=0.1)
"""


def test_a_killed_process_leaves_nothing_half_done(tmp_path):
    """Killed when both token files are written: no corpus is there, and the next one removes what was left."""
    (tmp_path / "a.txt").write_text(TEXT)
    mark, out = tmp_path / "mark", tmp_path / "data" / "out"
    child = subprocess.Popen([sys.executable, "-c", SLOW, tmp_path / "a.txt", mark, out])
    deadline = time.monotonic() + 120
    while not mark.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not out.exists()
    assert len(list(out.parent.iterdir())) == 1
    # a folder that a living process fills is not taken for a left-over
    prepare([tmp_path / "a.txt"], tmp_path / "data" / "out", held_out=0.1)
    assert len(list(out.parent.iterdir())) == 2
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    prepare([tmp_path / "a.txt"], out, held_out=0.1, overwrite=True)
    assert list(out.parent.iterdir()) == [out]
    verify(out)


def taco_data(*arguments):
    parser = argparse.ArgumentParser()
    data_cli.add_parser(parser.add_subparsers())
    return data_cli.run(parser.parse_args(["data", *map(str, arguments)]))


@pytest.fixture(scope="module")
def sotu(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sotu") / "sotu-mini"
    assert taco_data("sotu-mini", "--out", folder) == 0
    return folder


def test_the_shipped_corpus_is_prepared(sotu):
    meta = verify(sotu)
    assert meta["tokenizer"] == "bpe:1024"
    assert meta["vocab"] == 1024
    assert meta["splits"]["train"]["documents"] == 92
    assert meta["splits"]["val"]["documents"] == 11
    data = TokenDataset(sotu, "train", 128, batch=8, vocab=1024)
    assert data.sequences > 8000
    text = tokenizer.load("bpe:1024", sotu).decode(data.batch(0)[0][0].tolist())
    assert "�" not in text.strip("�")
    assert len(text) > 300


def test_the_shipped_corpus_is_the_same_everywhere(sotu):
    assert read_meta(sotu)["splits"]["train"]["sha256"].startswith(SOTU_SHA[0])
    assert read_meta(sotu)["splits"]["val"]["sha256"].startswith(SOTU_SHA[1])


def test_an_absent_corpus_names_both_places():
    assert (data_corpora.corpus_folder("sotu") / "LICENSE").is_file()
    with pytest.raises(DataError, match=r"corpora/nope or .*share/taco/corpora/nope"):
        data_corpora.corpus_folder("nope")


def test_an_installed_corpus_is_found(tmp_path, monkeypatch):
    installed = tmp_path / "share/taco/corpora/extra"
    installed.mkdir(parents=True)
    monkeypatch.setattr(data_corpora.sysconfig, "get_path", lambda name: str(tmp_path))
    assert data_corpora.corpus_folder("extra") == installed


def test_command_line_prepares_and_checks(tmp_path, capsys):
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"body": f"document {i}"}) for i in range(200)))
    out = tmp_path / "out"
    options = ("--tokenizer", "bpe:280", "--held-out", 0.1, "--field", "body", "--threads", 1)
    assert taco_data("prepare", tmp_path / "a.jsonl", "--out", out, *options) == 0
    made = capsys.readouterr().out
    assert "bpe:280, vocabulary 280, uint16" in made
    assert "180 documents" in made
    assert taco_data("check", out) == 0
    assert capsys.readouterr().out == made
    shutil.copy(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    files = ("--held-out-files", tmp_path / "b.jsonl", "--field", "body", "--overwrite")
    assert taco_data("prepare", tmp_path / "a.jsonl", "--out", out, *files) == 0
    assert read_meta(out)["splits"]["val"]["documents"] == 200
    assert read_meta(out)["tokenizer"] == "bytes"


def test_corpus_files_are_what_the_build_script_names():
    folder = data_corpora.corpus_folder("sotu")
    assert {p.name for p in folder.glob("*.xz")} == set(data_corpora.SOTU_FILES)
    assert sum(p.stat().st_size for p in Path(folder).iterdir()) < 1_500_000

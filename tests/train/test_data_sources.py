"""Documents from files of every kind, and errors for files that cannot be used."""

import gzip
import json
import lzma
from unittest import mock

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from taco.train import data_sources, tokenizer
from taco.train.data_format import DataError
from taco.train.data_sources import Piece, pieces


def documents(path, field="text"):
    """The documents of a file, whole."""
    found, held = [], ""
    for piece in pieces(path, field):
        held += piece.text
        if piece.last:
            found.append(held)
            held = ""
    assert held == ""
    return found


@pytest.mark.parametrize("opener", [(open, ""), (lzma.open, ".xz"), (gzip.open, ".gz")], ids=["plain", "xz", "gz"])
def test_text_and_jsonl_plain_and_compressed(tmp_path, opener):
    write, suffix = opener
    text, lines = tmp_path / f"a.v2.txt{suffix}", tmp_path / f"a.jsonl{suffix}"
    with write(text, "wb") as file:
        file.write("één\r\ntwo\x0c\n<|endoftext|>\n \n<|endoftext|>\r\nlast <|endoftext|>".encode())
    with write(lines, "wb") as file:
        file.write(b'{"body": "one\\n\\ntwo", "n": 1}\n\n{"body": ""}\n{"body": "\\u00e9"}')
    assert documents(text) == ["één\r\ntwo\x0c\n", "last <|endoftext|>"]
    assert documents(lines, "body") == ["one\n\ntwo", "é"]


def test_parquet(tmp_path):
    table = pyarrow.table({"id": [1, 2, 3], "text": ["first\ndocument", "", "third"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert documents(tmp_path / "a.parquet") == ["first\ndocument", "third"]
    with pytest.raises(DataError, match=r"columns id, text .*need a column 'body'"):
        documents(tmp_path / "a.parquet", "body")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", None]}), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=r"got NoneType in 'text', row 2"):
        documents(tmp_path / "b.parquet")
    raw = (tmp_path / "a.parquet").read_bytes()
    (tmp_path / "a.parquet").write_bytes(raw[:-20])
    with pytest.raises(DataError, match="need a whole parquet file"):
        documents(tmp_path / "a.parquet")


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["a", "b1", " ", "\n", "\n", ".", "\r", "\t", "'s", "é"]), max_size=60).map("".join))
def test_cutting_into_pieces_changes_no_token(all_kinds, text):
    """With pieces as small as allowed, the tokens of the pieces are the tokens of the whole."""
    with mock.patch.object(data_sources, "PIECE", 1):
        found = list(data_sources._pieces(text.splitlines(keepends=True)))
    assert "".join(piece.text for piece in found) == (text if text.strip() else "")
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True] * bool(found)
    for made in all_kinds if found else ():
        parts = np.concatenate([made.encode(piece.text) for piece in found])
        assert parts.tolist() == made.encode(text).tolist()


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory):
    """Tokenizers of all kinds, with merges that a bad cut would break."""
    folder = tmp_path_factory.mktemp("ranks")
    sample = "a\n\n b1.\n\n\n  a\r\n\t'sé.\n\na \n b\n" * 4
    published = tokenizers.ByteLevelBPETokenizer()
    published.train_from_iterator([sample], vocab_size=300, show_progress=False)
    published.save_model(str(folder))
    made = [tokenizer.load(name, folder) for name in ("bytes", "gpt2", "qwen")]
    made.append(tokenizer.Trained.train(300, [sample]))
    return made


def test_long_documents_come_in_pieces(tmp_path):
    (tmp_path / "a.txt").write_text("0123456789 line\n" * 10_000 + "<|endoftext|>\nshort")
    found = list(pieces(tmp_path / "a.txt"))
    assert [piece.last for piece in found] == [False, False, True, True]
    assert max(len(piece.text) for piece in found) < data_sources.PIECE + 16
    assert found[-1] == Piece("short", True)
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "0123456789 line\n" * 10_000}))
    assert list(pieces(tmp_path / "a.jsonl")) == found[:3]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, "no file"),
        ("empty.txt", b"", "no text in"),
        ("blank.txt", b" \n\n<|endoftext|>\n", "no text in"),
        ("empty.jsonl", b"\n", "no text in"),
        ("latin.txt", b"one\ntwo\ncaf\xe9 au lait\n", "byte 0xe9 after line"),
        ("a.txt.xz", lzma.compress(b"text\n" * 999)[:-30], "fails to unpack after line"),
        ("b.txt.xz", b"not xz at all", "fails to unpack after line 0"),
        ("a.txt.gz", gzip.compress(b"text\n" * 999)[:-12], "fails to unpack after line"),
        ("b.txt.gz", b"not gzip", "fails to unpack after line 0"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "got line 2 of"),
        ("key.jsonl", b'{"content": "a"}\n', "KeyError"),
        ("list.jsonl", b"[1]\n", "need a JSON object with 'text'"),
        ("type.jsonl", b'{"text": 3}\n', "got int in 'text', line 1"),
        ("a.pdf", b"%PDF", r"need a name that ends in \.txt"),
        ("a.xz", b"", r"need a name that ends in \.txt"),
        ("a.parquet.xz", b"", r"need a name that ends in \.txt"),
    ],
)
def test_unusable_files_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(pieces(tmp_path / name))


def test_undecodable_bytes_are_replaced_on_request(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait\n")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    assert list(pieces(tmp_path / "a.txt", errors="replace")) == [Piece("caf\ufffd au lait\n", True)]
    assert list(pieces(tmp_path / "a.jsonl", errors="replace")) == [Piece("caf\ufffd", True)]


def test_absent_pyarrow_says_how_to_install_it(monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(name)

    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setattr(data_sources.importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"pip install taco\[data\]"):
        list(pieces(tmp_path / "a.parquet"))

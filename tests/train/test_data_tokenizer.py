"""Tokenizers: published vocabularies in their file formats, and one trained on text."""

import base64
import json

import numpy as np
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from taco.train import tokenizer
from taco.train.data_format import DataError

TEXT = (
    "We hold these truths to be self-evident, that all men are created equal. 1776!\n\n  And it's so: it'll be, I'LL.\n"
)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small vocabulary in the files that GPT-2 and Qwen are published in, and the library's own encoder of it."""
    folder = tmp_path_factory.mktemp("published")
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([TEXT * 3], vocab_size=320, show_progress=False)
    # published vocabularies number the bytes first and then the merges; so does a vocabulary without specials
    made.save_model(str(folder))
    (folder / "encoder.json").write_bytes((folder / "vocab.json").read_bytes())
    (folder / "vocab.bpe").write_bytes((folder / "merges.txt").read_bytes())
    ranks = tokenizer._read_json_ranks(folder / "vocab.json", folder / "merges.txt")
    lines = (base64.b64encode(token) + b" %d" % rank for token, rank in sorted(ranks.items(), key=lambda item: item[1]))
    (folder / "qwen.tiktoken").write_bytes(b"\n".join(lines) + b"\n")
    return folder, made


@pytest.fixture(scope="module")
def trained():
    return tokenizer.Trained.train(300, [TEXT * 3])


def test_gpt2_equals_the_tokenizers_library_on_the_same_files(published):
    folder, theirs = published
    ours = tokenizer.load("gpt2", folder)
    text = TEXT + "éclair 日本 \t\n x  <|endoftext|>"
    assert (ours.vocab, ours.eod) == (theirs.get_vocab_size() + 1, theirs.get_vocab_size())
    assert ours.encode(text).tolist() == theirs.encode(text).ids
    assert len(ours.encode(TEXT)) < len(TEXT) - 10  # merges are used
    assert ours.encode("<|endoftext|>").max() < ours.eod  # the marker in a text is text


def test_every_file_format_gives_the_same_tokens(published, tmp_path):
    folder, _ = published
    (tmp_path / "vocab.json").write_bytes((folder / "vocab.json").read_bytes())
    (tmp_path / "merges.txt").write_bytes((folder / "merges.txt").read_bytes())
    for name in ("gpt2", "qwen"):  # `folder` has encoder.json and qwen.tiktoken, which come first
        one, other = tokenizer.load(name, folder), tokenizer.load(name, tmp_path)
        assert np.array_equal(one.encode(TEXT), other.encode(TEXT))
    assert len(tokenizer.load("qwen", folder).encode("1776")) == 4  # Qwen keeps digits apart


@pytest.fixture(scope="module")
def all_kinds(published, trained):
    return [trained, *(tokenizer.load(name, published[0]) for name in ("bytes", "gpt2", "qwen"))]


@given(st.text())
@example("\x00 é\n<|endoftext|>")
def test_decode_inverts_encode(all_kinds, text):
    for made in all_kinds:
        ids = made.encode(text)
        assert ids.dtype == np.uint32
        assert ids.max(initial=0) < made.vocab
        assert made.decode(ids.tolist()) == text


def test_trained_vocabulary_is_saved_and_the_same_each_time(trained, tmp_path):
    trained.save(tmp_path)
    first = (tmp_path / "tokenizer.json").read_bytes()
    tokenizer.Trained.train(300, iter([TEXT, TEXT, TEXT])).save(tmp_path)
    again = json.loads((tmp_path / "tokenizer.json").read_text())
    tokenizer.Trained.train(300, [TEXT * 3]).save(tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == first
    assert again["model"]["merges"][:5] == json.loads(first)["model"]["merges"][:5]
    loaded = tokenizer.load("bpe:300", tmp_path)
    assert (loaded.vocab, loaded.eod) == (trained.vocab, 0) == (300, 0)
    assert np.array_equal(loaded.encode(TEXT), trained.encode(TEXT))
    assert 0 not in trained.encode("<|endoftext|>")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama", "got tokenizer 'llama'; need bytes, gpt2, qwen or bpe:<size>"),
        ("bpe:256", "size of at least 257"),
        ("bpe:many", "size of at least 257"),
        ("gpt2", "none of encoder.json, vocab.json"),
        ("qwen", r"none of qwen\.tiktoken"),
        ("bpe:300", r"no file .*tokenizer\.json"),
    ],
)
def test_unknown_names_and_absent_files_are_refused(name, message, tmp_path):
    with pytest.raises(DataError, match=message):
        tokenizer.load(name, tmp_path)


def test_a_published_tokenizer_needs_its_folder():
    with pytest.raises(DataError, match="nothing is downloaded"):
        tokenizer.load("gpt2")


@pytest.mark.parametrize("damage", ["reorder", "drop", "json"])
def test_damaged_vocabulary_files_are_refused(published, tmp_path, damage):
    folder, _ = published
    vocabulary, merges = (folder / "vocab.json").read_text(), (folder / "merges.txt").read_text().splitlines()
    if damage == "reorder":
        merges[1], merges[2] = merges[2], merges[1]
    elif damage == "drop":
        merges.pop()
    else:
        vocabulary = vocabulary[:-5]
    (tmp_path / "vocab.json").write_text(vocabulary)
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    with pytest.raises(DataError, match="need the published vocabulary"):
        tokenizer.load("gpt2", tmp_path)


def test_damaged_tiktoken_ranks_are_refused(published, tmp_path):
    lines = (published[0] / "qwen.tiktoken").read_bytes().splitlines()
    (tmp_path / "qwen.tiktoken").write_bytes(b"\n".join(lines[:100] + lines[101:]))
    with pytest.raises(DataError, match="ranks are not 0, 1, 2"):
        tokenizer.load("qwen", tmp_path)


def test_absent_library_says_how_to_install_it(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(tokenizer.importlib, "import_module", missing)
    with pytest.raises(DataError, match=r"pip install taco\[data\]"):
        tokenizer.Trained.train(300, [TEXT])

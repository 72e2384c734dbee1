"""Megatron-LM's indexed datasets, written here byte by byte as its documentation says."""

import struct

import numpy as np
import pytest
import torch

from taco.train.data import TokenDataset
from taco.train.data_format import DataError
from taco.train.data_megatron import open_megatron, split_megatron

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def write(prefix, documents, dtype="uint16", *, magic=b"MMIDIDX\x00\x00", version=1, code=None, modes=b"", shift=0):
    """PREFIX.bin/.idx of `documents`, lists of sequences of tokens."""
    sequences = [np.array(s, dtype) for document in documents for s in document]
    sizes = [len(s) for s in sequences]
    pointers = np.concatenate(([0], np.cumsum([s.nbytes for s in sequences])))[:-1] + shift
    starts = np.cumsum([0] + [len(document) for document in documents])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(magic + struct.pack("<QB", version, CODES[dtype] if code is None else code))
        file.write(struct.pack("<QQ", len(sizes), len(starts)))
        file.write(np.array(sizes, "<i4").tobytes() + pointers.astype("<i8").tobytes() + starts.astype("<i8").tobytes())
        file.write(modes)
    with open(f"{prefix}.bin", "wb") as file:
        for s in sequences:
            file.write(s.tobytes())
    return np.concatenate(sequences).astype(np.int64), starts


DOCUMENTS = [[[1, 2, 3], [4, 5]], [[6] * 40], [[7, 8, 9]], [[10, 11]]]


@pytest.mark.parametrize("dtype", sorted(CODES))
def test_every_integer_dtype_is_read(tmp_path, dtype):
    want, _ = write(tmp_path / "c", DOCUMENTS, dtype)
    tokens, boundaries = open_megatron(tmp_path / "c")
    assert tokens.dtype == np.dtype(dtype)
    assert np.array_equal(tokens, want)
    assert boundaries.tolist() == [0, 5, 45, 48, 50]


def test_multimodal_index_is_read(tmp_path):
    write(tmp_path / "c", DOCUMENTS, modes=b"\0" * 5)
    assert len(open_megatron(tmp_path / "c")[0]) == 50


def test_whole_documents_at_the_end_are_held_out(tmp_path):
    want, _ = write(tmp_path / "c", DOCUMENTS)
    for share, cut in ((0.01, 48), (0.5, 45), (0.99, 5)):  # at least one document on each side
        assert np.array_equal(split_megatron(tmp_path / "c", "train", share), want[:cut])
        assert np.array_equal(split_megatron(tmp_path / "c", "val", share), want[cut:])
    write(tmp_path / "one", DOCUMENTS[:1])
    with pytest.raises(DataError, match="got 1 documents"):
        split_megatron(tmp_path / "one", "train", 0.01)


def test_same_interface_as_a_prepared_corpus(tmp_path):
    want, _ = write(tmp_path / "c_text_document", DOCUMENTS, "int32")
    data = TokenDataset(tmp_path / "c_text_document", "train", 10, batch=2, shuffle=False, vocab=12)
    tokens, targets = data.batch(1)
    assert (data.sequences, data.tokens, data.vocab, data.meta) == (4, 48, 12, {})
    assert tokens.dtype == targets.dtype == torch.int64
    assert np.array_equal(tokens.flatten(), want[20:40])
    assert np.array_equal(targets.flatten(), want[21:41])
    with pytest.raises(DataError, match="got token 7 in step 2"):
        TokenDataset(tmp_path / "c_text_document", "train", 9, batch=2, shuffle=False, vocab=7).batch(2)
    write(tmp_path / "n", [[[0, -1, 2]], [[3]]], "int32")
    with pytest.raises(DataError, match="got token -1 in step 0"):
        TokenDataset(tmp_path / "n", "train", 2, batch=1).batch(0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"magic": b"TNTIDX\x00\x00\x00"}, "starts with b'TNTIDX"),
        ({"version": 2}, "need version 1"),
        ({"code": 6}, "dtype code 6"),
        ({"code": 99}, "dtype code 99"),
        ({"modes": b"\0" * 3}, "it is truncated"),
        ({"shift": 2}, "not stored one after the other"),
        ({"code": 4}, "not stored one after the other"),
    ],
)
def test_foreign_or_inconsistent_index_is_refused(tmp_path, options, message):
    write(tmp_path / "c", DOCUMENTS, **options)
    with pytest.raises(DataError, match=message):
        open_megatron(tmp_path / "c")


@pytest.mark.parametrize("keep", [0, 8, 20, 60, -1])
def test_truncated_index_is_refused(tmp_path, keep):
    write(tmp_path / "c", DOCUMENTS)
    index = tmp_path / "c.idx"
    index.write_bytes(index.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"truncated|starts with"):
        open_megatron(tmp_path / "c")


def test_truncated_or_absent_tokens_are_refused(tmp_path):
    write(tmp_path / "c", DOCUMENTS)
    tokens = tmp_path / "c.bin"
    tokens.write_bytes(tokens.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"c\.bin of 98 bytes; need 100 bytes, 50 tokens of uint16"):
        open_megatron(tmp_path / "c")
    tokens.unlink()
    with pytest.raises(DataError, match=r"no file .*c\.bin"):
        open_megatron(tmp_path / "c")


def test_document_boundaries_must_cover_all_sequences(tmp_path):
    write(tmp_path / "c", DOCUMENTS)
    index = tmp_path / "c.idx"
    raw = bytearray(index.read_bytes())
    raw[-8:] = struct.pack("<q", 4)
    index.write_bytes(raw)
    with pytest.raises(DataError, match="an ascending list from 0 to 5"):
        open_megatron(tmp_path / "c")

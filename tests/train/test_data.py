"""The order of sequences, the parts of ranks, and what a damaged corpus does."""

import json

import numpy as np
import pytest
import torch

from taco.train.data import TokenDataset, _permutation, verify
from taco.train.data_format import META, DataError, read_meta, sha256, token_dtype

SEQ = 7
PINNED = [[9, 2, 4, 7, 5, 0, 8, 6, 3, 1], [5, 6, 3, 0, 7, 2, 1, 4, 9, 8]]


def corpus(folder, count=100, vocab=1000, dtype="uint16", extra=1):
    """A prepared folder whose token i is i, so that a batch tells where it was read."""
    folder.mkdir(exist_ok=True)
    splits = {}
    for split in ("train", "val"):
        tokens = np.arange(count * SEQ + extra, dtype=np.dtype(dtype).newbyteorder("<"))
        tokens.tofile(folder / f"{split}.bin")
        splits[split] = {
            "tokens": len(tokens),
            "documents": 1,
            "text_bytes": 1,
            "sha256": sha256(folder / f"{split}.bin"),
        }
    meta = {"version": 1, "tokenizer": "bytes", "vocab": vocab, "eod": 0, "dtype": dtype, "splits": splits}
    (folder / META).write_text(json.dumps(meta))
    return folder


def order(data, steps):
    """The number of the sequence in each row of the first `steps` batches."""
    rows = torch.cat([data.batch(step)[0] for step in range(steps)])
    assert torch.equal(rows, rows[:, :1] + torch.arange(SEQ))
    return (rows[:, 0] // SEQ).tolist()


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_targets_are_the_next_tokens(tmp_path, dtype):
    data = TokenDataset(corpus(tmp_path, dtype=dtype), "train", SEQ, batch=4)
    tokens, targets = data.batch(3)
    assert tokens.shape == targets.shape == (4, SEQ)
    assert tokens.dtype == targets.dtype == torch.int64
    assert tokens.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(targets, tokens + 1)
    assert (len(data), data.tokens, data.vocab) == (100, 701, 1000)


def test_every_epoch_sees_every_sequence_once_in_another_order(tmp_path):
    data = TokenDataset(corpus(tmp_path), "train", SEQ, batch=8, seed=3)
    seen = order(data, 25)  # two epochs of 100 sequences; the twelfth batch spans both
    first, second = seen[:100], seen[100:]
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first != list(range(100))


def test_order_depends_on_step_and_seed_alone(tmp_path):
    path = corpus(tmp_path)
    straight, jumping = (TokenDataset(path, "train", SEQ, batch=8, seed=3) for _ in range(2))
    want = [straight.batch(step) for step in range(30)]
    for step in (29, 0, 17, 17, 12):
        assert all(torch.equal(a, b) for a, b in zip(jumping.batch(step), want[step], strict=True))
    assert order(TokenDataset(path, "train", SEQ, batch=8, seed=4), 5) != order(straight, 5)
    # a larger batch takes the same sequences in fewer steps
    assert order(TokenDataset(path, "train", SEQ, batch=40, seed=3), 5) == order(straight, 25)


def test_order_is_fixed_for_all_time():
    """A checkpoint of another machine or version resumes on the same sequences."""
    assert _permutation(10, 1, 0).tolist() == PINNED[0]
    assert _permutation(10, 1, 1).tolist() == PINNED[1]


def test_ranks_share_the_batch_of_one(tmp_path):
    data = TokenDataset(corpus(tmp_path), "train", SEQ, batch=12, seed=1)
    for step in (0, 8):
        tokens, targets = data.batch(step)
        for dp in (1, 2, 3, 4, 6, 12):
            parts = [data.batch(step, rank, dp) for rank in range(dp)]
            assert torch.equal(torch.cat([p[0] for p in parts]), tokens)
            assert torch.equal(torch.cat([p[1] for p in parts]), targets)
    with pytest.raises(DataError, match="got batch=12 for rank 0 of 5"):
        data.batch(0, 0, 5)
    with pytest.raises(DataError, match="rank 2 of 2"):
        data.batch(0, 2, 2)


def test_validation_is_in_order_and_wraps(tmp_path):
    data = TokenDataset(corpus(tmp_path), "val", SEQ, batch=30)
    assert order(data, 4) == [*range(100), *range(20)]
    assert order(TokenDataset(tmp_path, "train", SEQ, batch=30, shuffle=False), 1) == list(range(30))


def test_a_rest_shorter_than_a_sequence_is_not_used(tmp_path):
    for extra, sequences in ((0, 99), (1, 100), (SEQ, 100), (SEQ + 1, 101)):
        data = TokenDataset(corpus(tmp_path, extra=extra), "val", SEQ, batch=1)
        assert data.sequences == sequences
        data.batch(sequences - 1)


def test_the_order_of_a_large_corpus_is_made_once_an_epoch():
    """A hundred million tokens are 782 thousand sequences of 128."""
    order = _permutation(782_000, 1, 0)
    assert _permutation(782_000, 1, 0) is order
    with pytest.raises(ValueError, match="read-only"):
        order[0] = 1


def test_vocabulary_and_tokens_are_checked(tmp_path):
    path = corpus(tmp_path, vocab=300)
    with pytest.raises(DataError, match="a vocabulary of 300; need at most 256"):
        TokenDataset(path, "train", SEQ, batch=1, vocab=256)
    data = TokenDataset(path, "val", SEQ, batch=1, vocab=512)
    data.batch(41)
    with pytest.raises(DataError, match=r"got token 301 in step 42 .*need ids from 0 to 299"):
        data.batch(42)
    with pytest.raises(DataError, match=r"got token 700 in .*train\.bin; need ids below 300"):
        verify(path)


def test_too_few_tokens_and_unknown_splits_are_refused(tmp_path):
    path = corpus(tmp_path)
    with pytest.raises(DataError, match=r"got 701 tokens in the train split .*; need at least 702"):
        TokenDataset(path, "train", 701, batch=1)
    assert TokenDataset(path, "train", 700, batch=1).sequences == 1
    with pytest.raises(DataError, match="got split 'valid'; need one of train, val"):
        TokenDataset(path, "valid", SEQ, batch=1)
    with pytest.raises(DataError, match="batch=0"):
        TokenDataset(path, "train", SEQ, batch=0)
    with pytest.raises(DataError, match=r"no file .*taco data prepare"):
        TokenDataset(tmp_path / "absent", "train", SEQ, batch=1)


@pytest.mark.parametrize("change", [-1, -2, 2])
def test_token_file_of_another_size_is_refused(tmp_path, change):
    path = corpus(tmp_path)
    raw = (path / "train.bin").read_bytes()
    (path / "train.bin").write_bytes(raw[:change] if change < 0 else raw + b"\0" * change)
    with pytest.raises(DataError, match=rf"of {1402 + change} bytes; need 1402 bytes, 701 tokens of uint16"):
        TokenDataset(path, "train", SEQ, batch=1)
    (path / "train.bin").unlink()
    with pytest.raises(DataError, match=r"no file .*train\.bin"):
        TokenDataset(path, "train", SEQ, batch=1)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda meta: "{", "it is damaged"),
        (lambda meta: "[]", "it is damaged"),
        (lambda meta: json.dumps({k: v for k, v in meta.items() if k != "vocab"}), "KeyError"),
        (lambda meta: json.dumps({**meta, "splits": {"train": {}}}), "KeyError"),
        (lambda meta: json.dumps({**meta, "version": 2}), "of version 2; need version 1"),
        (lambda meta: json.dumps({**meta, "dtype": "float32"}), "dtype 'float32'"),
        (lambda meta: json.dumps({**meta, "vocab": "many"}), "vocab 'many'"),
    ],
)
def test_damaged_meta_is_refused(tmp_path, edit, message):
    path = corpus(tmp_path)
    (path / META).write_text(edit(read_meta(path)))
    with pytest.raises(DataError, match=message):
        TokenDataset(path, "train", SEQ, batch=1)


def test_verify_finds_a_changed_byte(tmp_path):
    path = corpus(tmp_path)
    assert verify(path) == read_meta(path)
    raw = bytearray((path / "val.bin").read_bytes())
    raw[500] ^= 1
    (path / "val.bin").write_bytes(raw)
    with pytest.raises(DataError, match=r"val\.bin with sha256 .* the tokens were changed"):
        verify(path)


def test_stored_dtype_holds_the_vocabulary():
    assert [token_dtype(v) for v in (256, 50257, 65536, 65537, 151936)] == ["uint16"] * 3 + ["uint32"] * 2

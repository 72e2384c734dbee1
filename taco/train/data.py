"""Tokens for training: which sequences a step sees is a pure function of (seed, step), so a resumed run sees the same.

`prepare` makes a corpus from text (taco.train.data_prepare); `TokenDataset` reads it, or a Megatron .bin/.idx pair.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from taco.train.data_format import SPLITS, DataError, check, map_tokens, read_meta, verify
from taco.train.data_megatron import is_megatron, split_megatron
from taco.train.data_prepare import prepare

__all__ = ["DataError", "TokenDataset", "prepare", "verify"]

MEGATRON_HELD_OUT = 0.01
SCANNED = 1 << 28  # tokens that are looked at before training: less than a second


@lru_cache(maxsize=4)  # a batch touches at most a few epochs; 1e8 tokens in sequences of 128 make 6 MB
def _permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    # sorted raw bits: numpy keeps those the same in all versions, which it does not promise for its own permutation
    order = np.argsort(np.random.PCG64([seed, epoch]).random_raw(count), kind="stable")
    order.flags.writeable = False
    return order


class TokenDataset:
    """Sequences of `seq` tokens and their next tokens, in global batches of `batch` sequences.

    path: a prepared folder, or the prefix of a Megatron .bin/.idx pair (its last 1% of documents are the split 'val').
    Sequence i is tokens[i * seq : (i + 1) * seq], its targets are the same shifted by one; a rest shorter than that is
    not used. shuffle: a new permutation each epoch, of (seed, epoch); None means only for 'train'.
    vocab: how many rows the model's embedding has; a token at or above it raises. None means the corpus' own.
    Raises DataError for a missing or damaged corpus, a vocabulary larger than `vocab`, fewer tokens than one sequence.
    """

    def __init__(
        self,
        path: str | Path,
        split: str,
        seq: int,
        *,
        batch: int,
        seed: int = 0,
        shuffle: bool | None = None,
        vocab: int | None = None,
    ) -> None:
        check(split in SPLITS, f"split {split!r}", f"one of {', '.join(SPLITS)}", "a corpus has these")
        check(batch >= 1, f"batch={batch}", "at least 1", "a step sees a sequence")
        self.path, self.split, self.seq, self.batch_size, self.seed = Path(path), split, seq, batch, seed
        self.shuffle = split == "train" if shuffle is None else shuffle
        self.meta: dict = {}
        if is_megatron(path):
            self._tokens = split_megatron(path, split, MEGATRON_HELD_OUT)
        else:
            self.meta = read_meta(path)
            count = self.meta["splits"][split]["tokens"]
            self._tokens = map_tokens(self.path / f"{split}.bin", count, self.meta["dtype"])
        own = self.meta.get("vocab")
        check(
            own is None or vocab is None or own <= vocab,
            f"{path} with a vocabulary of {own}",
            f"at most {vocab}",
            "the model has no embedding for larger ids",
        )
        self.vocab: int | None = vocab if own is None else own
        self.sequences = (len(self._tokens) - 1) // seq
        check(
            self.sequences >= 1,
            f"{len(self._tokens)} tokens in the {split} split of {path}",
            f"at least {seq + 1}",
            f"a sequence of {seq} tokens and its last target take that many",
        )

    def __len__(self) -> int:
        """Sequences in an epoch."""
        return self.sequences

    @property
    def tokens(self) -> int:
        """Tokens in the split."""
        return len(self._tokens)

    def scan(self) -> None:
        """Look at the first `SCANNED` tokens, so that most bad files are refused before a run has written anything.

        Raises DataError for a token outside the vocabulary; `batch` looks at each token again when it is its turn.
        """
        self._check_ids(self._tokens[:SCANNED], "")

    def _check_ids(self, tokens: np.ndarray, where: str) -> None:
        low, high = int(tokens.min()), int(tokens.max())
        check(
            low >= 0 and (self.vocab is None or high < self.vocab),
            f"token {high if low >= 0 else low}{where} of {self.path} ({self.split})",
            f"ids from 0 to {(self.vocab or 0) - 1}" if self.vocab else "ids from 0",
            "other ids have no embedding: the file is damaged, or made with another tokenizer",
        )

    def _index(self, position: int) -> int:
        epoch, place = divmod(position, self.sequences)
        return int(_permutation(self.sequences, self.seed, epoch)[place]) if self.shuffle else place

    def batch(self, step: int, dp_rank: int = 0, dp: int = 1) -> tuple[Tensor, Tensor]:
        """(tokens, targets), both int64 [batch / dp, seq] on the CPU, of global batch `step` (from 0) for one rank.

        The ranks' parts in rank order are the batch of dp=1. Epochs follow each other without a gap.
        Raises DataError for a token outside the vocabulary, or a batch that dp does not divide.
        """
        check(
            self.batch_size % dp == 0 and 0 <= dp_rank < dp,
            f"batch={self.batch_size} for rank {dp_rank} of {dp}",
            "a multiple of dp and a rank below it",
            "ranks get equal parts",
        )
        local = self.batch_size // dp
        start = step * self.batch_size + dp_rank * local
        rows = []
        for position in range(start, start + local):
            first = self._index(position) * self.seq
            rows.append(self._tokens[first : first + self.seq + 1].astype(np.int64))
        both = np.stack(rows)
        self._check_ids(both, f" in step {step}")
        both_tensor = torch.from_numpy(both)
        return both_tensor[:, :-1].contiguous(), both_tensor[:, 1:].contiguous()

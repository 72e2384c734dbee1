"""Text files to a prepared corpus (taco.train.data_format), whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import numpy as np
from tqdm import tqdm

from taco.train.data_format import META, SPLITS, VERSION, check, sha256, token_dtype
from taco.train.data_sources import Piece
from taco.train.data_split import assign
from taco.train.tokenizer import Tokenizer, Trained, load, trained_size

BATCH = 64  # pieces in flight: 4 MB of text


class _Split:
    """Appends documents to one token file and counts them."""

    def __init__(self, file: IO[bytes], tokenizer: Tokenizer) -> None:
        self._file, self._tokenizer, self._hash = file, tokenizer, hashlib.sha256()
        self._dtype = np.dtype(token_dtype(tokenizer.vocab)).newbyteorder("<")
        self.tokens = self.documents = self.text_bytes = 0

    def add(self, piece: Piece, ids: np.ndarray) -> None:
        largest = int(ids.max(initial=0))
        vocab = self._tokenizer.vocab
        check(
            largest < vocab, f"token {largest} from {self._tokenizer.name}", f"ids below {vocab}", "of its vocabulary"
        )
        if piece.last:
            ids = np.append(ids, self._tokenizer.eod)
        raw = ids.astype(self._dtype).tobytes()
        self._file.write(raw)
        self._hash.update(raw)
        self.tokens += len(ids)
        self.documents += piece.last
        self.text_bytes += len(piece.text.encode())

    def info(self) -> dict:
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "text_bytes": self.text_bytes,
            "sha256": self._hash.hexdigest(),
        }


@contextmanager
def _new_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` at the end, or is removed. What a killed process left is
    removed by the next one: a folder that a living process is filling is locked."""
    _may_replace(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{out.name}.part-"
    for stale in out.parent.glob(f"{prefix}*"):
        with ExitStack() as stack:
            if _lock(stale, stack):
                shutil.rmtree(stale, ignore_errors=True)
    part = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
    with ExitStack() as stack:
        _lock(part, stack)
        try:
            yield part
            part.chmod(0o755)
            _publish(part, out, overwrite)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _may_replace(out: Path, overwrite: bool) -> bool:
    """Whether something is at `out`; DataError if so and overwrite was not asked for."""
    used = out.exists() and (not out.is_dir() or any(out.iterdir()))
    check(overwrite or not used, f"existing {out}", "a new or empty folder, or --overwrite", "it would be replaced")
    return used


def _publish(part: Path, out: Path, overwrite: bool) -> None:
    """Rename `part` to `out`; what is there goes first, by a rename as well. An empty folder is replaced as it is."""
    if _may_replace(out, overwrite):  # asked again: another process may have made it meanwhile
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.part-", dir=out.parent))
        out.rename(old / out.name)
        part.rename(out)
        shutil.rmtree(old)
    else:
        part.rename(out)


def _lock(folder: Path, stack: ExitStack) -> bool:
    handle = os.open(folder, os.O_RDONLY)
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tokenizer(name: str, files: str | Path | None, texts: Iterator[str], part: Path) -> Tokenizer:
    size = trained_size(name)
    if size is None:
        return load(name, files)
    trained = Trained.train(size, texts)
    trained.save(part)
    return trained


def prepare(
    inputs: Sequence[str | Path],
    out: str | Path,
    tokenizer: str = "bytes",
    *,
    held_out: float | Sequence[str | Path] = 0.01,
    files: str | Path | None = None,
    field: str = "text",
    errors: str = "strict",
    overwrite: bool = False,
    threads: int = 1,
    progress: bool = False,
) -> dict:
    """Tokenise text into the corpus folder `out` and return its meta. Only the text and the names decide the result.

    inputs: files (see taco.train.data_sources), read in this order. tokenizer, files: see taco.train.tokenizer;
    bpe:<size> learns from the training split. held_out: the share of the text for 'val' (in documents, long ones in
    pieces of about 64 KiB; where those come far from the share, a file's only document and the rest of long ones in
    finer pieces), or the files of 'val'. field: key or column of the text. threads: for tokenising.
    errors: 'replace' reads bytes that are not UTF-8 as U+FFFD. progress: show a bar if stderr is a terminal.
    `out` appears whole or not at all, also when the process is killed; overwrite replaces an existing one.
    Raises DataError for input that is absent, empty, damaged, not UTF-8, too short for two splits, or in both.
    """
    out, sources = Path(out), [Path(p) for p in inputs]
    held = held_out if isinstance(held_out, float) else [Path(p) for p in held_out]
    check(bool(sources), "no inputs", "at least one file", "there is nothing to read")
    check(
        0 < held < 1 if isinstance(held, float) else bool(held),
        f"held_out={held_out!r}",
        "a share between 0 and 1, or files",
        "the validation loss needs text that training does not see",
    )
    check(errors in ("strict", "replace"), f"errors={errors!r}", "strict or replace", "these are known")
    with _new_folder(out, overwrite) as part:
        pieces = assign(sources, held, field, errors)
        texts = (piece.text for split, piece in pieces() if split == "train")
        made = _tokenizer(tokenizer, files, texts, part)
        splits = _write_splits(part, made, pieces(), threads, progress)
        named = {"train": sources} if isinstance(held, float) else {"train": sources, "val": held}
        meta = {
            "version": VERSION,
            "tokenizer": made.name,
            "vocab": made.vocab,
            "eod": made.eod,
            "dtype": token_dtype(made.vocab),
            "held_out": held if isinstance(held, float) else "files",
            "errors": errors,
            "sources": {s: [{"name": p.name, "sha256": sha256(p)} for p in paths] for s, paths in named.items()},
            "splits": splits,
        }
        (part / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    return meta


def _write_splits(
    part: Path, made: Tokenizer, source: Iterator[tuple[str, Piece]], threads: int, progress: bool
) -> dict:
    """Encode and write all pieces; returns {split: info}."""
    with ExitStack() as stack:
        handles = {s: stack.enter_context((part / f"{s}.bin").open("wb")) for s in SPLITS}
        splits = {s: _Split(handle, made) for s, handle in handles.items()}
        pool = stack.enter_context(ThreadPoolExecutor(threads))
        bar = stack.enter_context(tqdm(unit="B", unit_scale=True, desc="tokenise", disable=None if progress else True))
        while batch := list(itertools.islice(source, BATCH)):
            for (split, piece), ids in zip(batch, pool.map(lambda p: made.encode(p[1].text), batch), strict=True):
                splits[split].add(piece, ids)
                bar.update(len(piece.text))
        for handle in handles.values():
            handle.flush()
            os.fsync(handle.fileno())
    return {s: split.info() for s, split in splits.items()}

"""Documents from files: .txt, .jsonl and .parquet, the first two also as .xz or .gz.

A text file is one document, or several that a line `<|endoftext|>` separates. A document comes in pieces, so that
neither a long file nor a long document has to be in memory; pieces end where no tokenizer joins characters across:
after a line feed between two printable characters. Fine pieces prefer that too, and do without where it is far away.
"""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from taco.train.data_format import DataError, check
from taco.train.tokenizer import EOD

PIECE = 1 << 16
OPENERS = {".xz": lzma.open, ".gz": gzip.open}
KINDS = (".txt", ".jsonl", ".parquet")
# where a fine piece may end, the best first: as the usual ones, after a line, before a word
PLACES = tuple(map(re.compile, (r"(?<=\S\n)(?=\S)", r"(?<=\n)", r"(?<=\S)(?= \S)")))


@dataclass(frozen=True)
class Piece:
    """A part of a document; `last`: the document ends here."""

    text: str
    last: bool


Cut = Callable[[Iterable[str]], Iterator[Piece]]


def kind(path: Path) -> str:
    """The suffix that decides how a file is read. Raises DataError for any other."""
    suffixes = path.suffixes
    compressed = bool(suffixes) and suffixes[-1] in OPENERS
    found = (suffixes[-2] if len(suffixes) > 1 else "") if compressed else path.suffix
    check(
        found in KINDS and not (compressed and found == ".parquet"),
        f"file {path}",
        "a name that ends in .txt, .jsonl (or either with .xz or .gz), or .parquet",
        "the name says how to read it",
    )
    return found


def _open(path: Path, errors: str) -> IO[str]:
    opener = OPENERS.get(path.suffix, open)
    # only \n ends a line: other line ends stay in the text as they are
    return opener(path, "rt", encoding="utf-8", errors=errors, newline="\n")


def _lines(path: Path, errors: str) -> Iterator[tuple[int, str]]:
    """(number from 1, line) of a text file; what makes a file unreadable becomes a DataError with the place."""
    number = 0
    try:
        with _open(path, errors) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except UnicodeDecodeError as error:
        raise DataError(
            f"got {path} with byte 0x{error.object[error.start]:02x} after line {number}; need UTF-8; "
            "because other bytes have no agreed meaning (--errors replace makes them U+FFFD)"
        ) from error
    except (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"got {path} that fails to unpack after line {number} ({error}); need a whole file; "
            "because a truncated corpus would be used silently"
        ) from error


def _joined(before: str, after: str) -> bool:
    """Whether a tokenizer could join characters across the end of line `before`."""
    return len(before) < 2 or before[-1] != "\n" or before[-2].isspace() or after[0].isspace()


def _pieces(lines: Iterable[str]) -> Iterator[Piece]:
    """The pieces of one document of lines; none if it is only white space."""
    held: list[str] = []
    size, seen = 0, False
    for line in lines:
        if size >= PIECE and seen and not _joined(held[-1], line):
            yield Piece("".join(held), False)
            held, size = [], 0
        held.append(line)
        size += len(line)
        seen = seen or not line.isspace()
    if seen:
        yield Piece("".join(held), True)


def _fine_pieces(lines: Iterable[str], whole: int, fine: int) -> Iterator[Piece]:
    """As `_pieces`, but of `fine` to twice as many characters, the first one of `whole` at least and the last one of
    half of `fine`; cut in the middle of a word where nothing better is in reach."""
    held: list[str] = []
    size, seen, least, reach = 0, False, max(whole, fine), fine + fine // 2
    for line in lines:
        held.append(line)
        size += len(line)
        seen = seen or not line.isspace()
        if not seen or size < least + reach:
            continue
        text, start = "".join(held), 0
        while size - start >= least + reach:
            first, last = start + least, start + least + fine
            found = (place.search(text, first, last) for place in PLACES)
            end = next((match.end() for match in found if match), first)
            yield Piece(text[start:end], False)
            start, least = end, fine
        held, size = [text[start:]], size - start
    if seen:
        yield Piece("".join(held), True)


def _text(path: Path, errors: str, cut: Cut) -> Iterator[Piece]:
    lines = (line for _, line in _lines(path, errors))
    more = True

    def document() -> Iterator[str]:
        nonlocal more
        for line in lines:
            if line.rstrip("\r\n") == EOD:
                return
            yield line
        more = False

    while more:
        yield from cut(document())


def _as_document(value: object, where: str, cut: Cut) -> Iterator[Piece]:
    check(isinstance(value, str), f"{type(value).__name__} in {where}", "a string", "it is the document's text")
    yield from cut(value.splitlines(keepends=True) if len(value) > PIECE else [value] if value else [])


def _jsonl(path: Path, field: str, errors: str, cut: Cut) -> Iterator[Piece]:
    for number, line in _lines(path, errors):
        if line.isspace():
            continue
        try:
            value = json.loads(line)[field]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"got line {number} of {path} ({error!r}); need a JSON object with {field!r}; because it is a document"
            ) from error
        yield from _as_document(value, f"{field!r}, line {number} of {path}", cut)


def _parquet(path: Path, field: str, cut: Cut) -> Iterator[Piece]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise DataError("got no module pyarrow; need `pip install taco[data]`; because it reads parquet") from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            check(field in names, f"columns {', '.join(names)} in {path}", f"a column {field!r}", "it is the text")
            row = 0
            for batch in file.iter_batches(columns=[field], batch_size=256):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield from _as_document(value, f"{field!r}, row {row} of {path}", cut)
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"got {path} ({error}); need a whole parquet file; because it is damaged") from error


def pieces(
    path: str | Path, field: str = "text", errors: str = "strict", *, fine: int = 0, whole: int = 0
) -> Iterator[Piece]:
    """The documents of a file in pieces. field: the key or column of the text in JSONL and parquet. errors: 'strict'
    refuses bytes that are not UTF-8, 'replace' reads them as U+FFFD. fine: instead of the usual pieces, of at least
    `PIECE` characters, those of at least so many; whole: the least of a document that is not cut finer.

    Raises DataError for an absent, empty, truncated or undecodable file, and for a record without that text.
    """
    path = Path(path)
    check(path.is_file(), f"no file {path}", "an existing file", "it is the input")
    cut = partial(_fine_pieces, whole=whole, fine=fine) if fine else _pieces
    readers = {
        ".txt": lambda: _text(path, errors, cut),
        ".jsonl": lambda: _jsonl(path, field, errors, cut),
        ".parquet": lambda: _parquet(path, field, cut),
    }
    empty = True
    for piece in readers[kind(path)]():
        empty = False
        yield piece
    check(not empty, f"no text in {path}", "at least one document", "nothing could be learned from it")

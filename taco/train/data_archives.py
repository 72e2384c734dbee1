"""Files inside packages and archives as one text: a corpus from what distributions offer, without keeping a copy of it.

    .deb                     ar archive of a data.tar.xz or .gz
    .tar.xz, .tar.gz, .tgz   on disk or inside another archive
    .gz, .dz                 inside an archive: one compressed file; its name loses the suffix

The text is a function of the chosen files and their names alone: files come in the order of their names' sha256, so
that a slice of the text has something of everything; `<|endoftext|>` lines part them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from taco.train.data_format import DataError, check
from taco.train.tokenizer import EOD

AR_MAGIC, AR_HEADER = b"!<arch>\n", 60
TARS = (".tar.xz", ".tar.gz", ".tgz")
XZ_MAGIC = b"\xfd7zXZ"


def _deb(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    """Files of a Debian package's data archive."""
    check(file.read(len(AR_MAGIC)) == AR_MAGIC, f"{name} that is no ar archive", "a .deb", "its name says so")
    while len(header := file.read(AR_HEADER)) == AR_HEADER:
        member, size = header[:16].decode().strip(" /"), int(header[48:58])
        if member.startswith("data.tar"):
            yield from _tar(io.BytesIO(file.read(size)), f"{name}/{member}")
            return
        file.seek(size + size % 2, os.SEEK_CUR)
    raise DataError(f"got {name} without data.tar; need a whole package; because its files are in there")


def _tar(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    head = io.BufferedReader(file)
    opener = lzma.open if head.peek(len(XZ_MAGIC)).startswith(XZ_MAGIC) else gzip.open
    try:
        # tarfile's own decompression takes a truncated stream for a short one
        with opener(head) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield from _unpacked(member.name.removeprefix("./"), content)
            while plain.read(1 << 20):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise DataError(f"got {name} ({error}); need a whole archive of xz or gzip; because a part is lost") from error


def _unpacked(name: str, content: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """The file itself, or what it holds if it is an archive or compressed."""
    if name.endswith(TARS):
        yield from _tar(content, name)
    elif name.endswith((".gz", ".dz")):
        yield name[:-3], gzip.decompress(content.read())
    else:
        yield name, content.read()


def files(path: Path) -> Iterator[tuple[str, bytes]]:
    """(name inside, content) of every file of an archive. Raises DataError for one that is absent or damaged."""
    check(path.is_file(), f"no file {path}", "an existing archive", "it is the input")
    known = path.name.endswith((".deb", *TARS))
    check(known, f"{path}", f"a name that ends in .deb, {', '.join(TARS)}", "the name says how to read it")
    with path.open("rb") as file:
        yield from _deb(file, str(path)) if path.suffix == ".deb" else _tar(file, str(path))


def documents(archives: Iterable[Path], members: Sequence[str], without: Sequence[str] = ()) -> list[str]:
    """The text files whose names match one of `members` and none of `without` (shell patterns; * also matches /).

    In the order of the sha256 of their names. A content that was there before and a file with a NUL byte are left out;
    bytes that are no UTF-8 become U+FFFD.
    """
    found: dict[str, tuple[str, str]] = {}
    for archive in archives:
        for name, content in files(archive):
            wanted = any(fnmatchcase(name, pattern) for pattern in members)
            if wanted and not any(fnmatchcase(name, pattern) for pattern in without) and b"\0" not in content:
                text = content.decode(errors="replace").strip("\n")
                place = hashlib.sha256(name.encode()).hexdigest(), name
                same = hashlib.sha256(content).hexdigest()
                if text.strip() and (same not in found or place < found[same][0]):
                    found[same] = (place, text)
    return [text for _, text in sorted(found.values())]


def write_text(texts: Sequence[str], out: Path) -> dict:
    """Write documents to the .txt.xz `out`, whole or not at all. Returns the raw text's documents, bytes and sha256."""
    check(out.name.endswith(".txt.xz"), f"--out {out}", "a name that ends in .txt.xz", "it is a compressed text")
    check(bool(texts), "no file that matches", "at least one text file", "nothing could be learned from it")
    out.parent.mkdir(parents=True, exist_ok=True)
    part, digest, size = out.with_name(out.name + ".part"), hashlib.sha256(), 0
    with lzma.open(part, "wb") as file:
        for text in texts:
            raw = f"{text}\n{EOD}\n".encode()
            digest.update(raw)
            size += len(raw)
            file.write(raw)
    os.replace(part, out)
    return {"documents": len(texts), "bytes": size, "sha256": digest.hexdigest()}

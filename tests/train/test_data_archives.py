"""Text from packages: the same files give the same text, whatever holds them; damage is an error."""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import tarfile
from pathlib import Path

import pytest

from taco import cli
from taco.train.data import DataError
from taco.train.data_archives import documents, files, write_text
from taco.train.data_sources import pieces

FILES = {
    "src/kernel/a.c": b"int a;\n",
    "src/kernel/deep/b.c": b"int b;\n\nint bb;\n",
    "src/kernel/copy.c": b"int a;\n",
    "src/kernel/binary.c": b"\0int\n",
    "src/kernel/empty.c": b"\n\n",
    "src/docs/c.txt": "caf\u00e9\n".encode(),
    "src/docs/latin.txt": b"caf\xe9\n",
}


def tar(path: Path, content: dict[str, bytes], mode: str = "w:xz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def deb(path: Path, data: bytes, name: str = "data.tar.xz") -> Path:
    def member(title: str, body: bytes) -> bytes:
        return (
            f"{title:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n".encode() + body + b"\n" * (len(body) % 2)
        )

    path.write_bytes(b"!<arch>\n" + member("debian-binary", b"2.0") + member(name, data))
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tar(tmp_path / "src.tar.xz", FILES)


def test_chosen_files_come_in_an_order_of_their_names_alone(tmp_path: Path, archive: Path):
    found = documents([archive], ["*.c", "*.txt"], ["*/latin.txt"])
    assert sorted(found) == ["caf\u00e9", "int a;", "int b;\n\nint bb;"]
    backwards = tar(tmp_path / "other.tar.gz", dict(reversed(FILES.items())), "w:gz")
    assert documents([backwards], ["*.c", "*.txt"], ["*/latin.txt"]) == found
    names = ["src/docs/c.txt", "src/kernel/deep/b.c"]
    expected = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert documents([archive], names) == [FILES[name].decode().strip("\n") for name in expected]
    assert documents([archive], ["src/docs/latin.txt"]) == ["caf\ufffd"]


def test_a_package_and_what_is_packed_inside_it(tmp_path: Path, archive: Path):
    inner = {"./usr/src/src.tar.xz": archive.read_bytes(), "./usr/doc/d.txt.gz": gzip.compress(b"text\n")}
    package = deb(tmp_path / "src_1_all.deb", tar(tmp_path / "data.tar.xz", inner).read_bytes())
    assert dict(files(package)) == FILES | {"usr/doc/d.txt": b"text\n"}


def test_the_text_is_read_back_as_its_documents(tmp_path: Path, archive: Path):
    out = tmp_path / "raw" / "code.txt.xz"
    assert cli.main(["data", "archive", str(archive), "--member", "*.c", "--out", str(out)]) == 0
    raw = lzma.decompress(out.read_bytes())
    found = documents([archive], ["*.c"])
    assert raw.decode() == "".join(f"{text}\n<|endoftext|>\n" for text in found)
    assert [piece.text for piece in pieces(out)] == [f"{text}\n" for text in found]
    made = write_text(found, out)
    assert made == {"documents": 2, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


@pytest.mark.parametrize("name", ["src.tar.xz", "src.deb"])
def test_damage_is_named(tmp_path: Path, archive: Path, name: str):
    whole = archive if name == "src.tar.xz" else deb(tmp_path / name, archive.read_bytes())
    whole.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises(DataError, match=name):
        documents([whole], ["*"])


def test_what_cannot_be_read_is_refused(tmp_path: Path, archive: Path):
    with pytest.raises(DataError, match="no file"):
        documents([tmp_path / "none.deb"], ["*"])
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"ends in \.deb"):
        documents([tmp_path / "x.zip"], ["*"])
    with pytest.raises(DataError, match=r"without data\.tar"):
        documents([deb(tmp_path / "x.deb", b"", "control.tar")], ["*"])
    (tmp_path / "y.deb").write_bytes(b"no package")
    with pytest.raises(DataError, match="no ar archive"):
        documents([tmp_path / "y.deb"], ["*"])
    with pytest.raises(DataError, match="matches"):
        write_text([], tmp_path / "x.txt.xz")
    with pytest.raises(DataError, match=r"ends in \.txt\.xz"):
        write_text(["text"], tmp_path / "x.txt")

"""The CSV between tables, figures and claims: exact text, whole files, clear errors."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from taco.paper.table import cell, number, read_table, write_table


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""), (math.nan, ""), (math.inf, "inf"), (True, "true"), (False, "false"), (3, "3"), (2.0, "2"),
        (-0.0, "0"), (1 / 3, "0.333333"), (1e-6, "1e-06"), (2.389899, "2.3899"),
        (123456789.0, "1.23457e+08"), ("a,b", "a,b"),
    ],
)  # fmt: skip
def test_a_cell_has_one_text(value, text):
    assert cell(value) == text


def test_words_and_empty_cells_are_not_numbers():
    assert number("31.5") == 31.5
    assert number("inf") == math.inf
    assert all(math.isnan(number(v)) for v in ("", None, "missing", "nan"))


def test_rows_survive_the_round_trip(tmp_path: Path):
    path = write_table(tmp_path / "new" / "t.csv", ("a", "b"), [{"a": 'x,"y"\nz', "b": 1.5}, {"b": None}])
    assert read_table(path) == [{"a": 'x,"y"\nz', "b": "1.5"}, {"a": "", "b": ""}]
    assert path.read_bytes() == b'a,b\n"x,""y""\nz",1.5\n,\n'
    assert [p.name for p in path.parent.iterdir()] == ["t.csv"]


def test_an_undeclared_column_is_refused_and_keeps_the_old_file(tmp_path: Path):
    path = write_table(tmp_path / "t.csv", ("a",), [{"a": 1}])
    with pytest.raises(ValueError, match=r"got a row of t\.csv with b; need columns among a"):
        write_table(path, ("a",), [{"a": 2, "b": 3}])
    assert path.read_text() == "a\n1\n"


def test_a_missing_table_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match="got no file"):
        read_table(tmp_path / "absent.csv")


@pytest.mark.parametrize("content", [b"a,b\n1,2\n3", b"a,b\n1,2,3\n", b"\xff\xfe\x00"])
def test_a_truncated_or_foreign_table_is_an_error(tmp_path: Path, content: bytes):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ValueError, match=r"got .*t\.csv.*; need a .*table; because"):
        read_table(tmp_path / "t.csv")


def test_an_empty_table_is_an_error(tmp_path: Path):
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ValueError, match="need a header line"):
        read_table(tmp_path / "empty.csv")

"""Which text is held out: near the share that was asked for, from all parts, and the same as ever where that works."""

import argparse
import json
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taco.train import data_cli, tokenizer
from taco.train.data_format import DataError
from taco.train.data_prepare import prepare
from taco.train.data_sources import PLACES, pieces
from taco.train.data_split import SMALLEST, _distance, _nearest, assign, is_far

LINES = "".join(f"Line {i} says that {i} and {i + 1} make {2 * i + 1}.\n" for i in range(5400))
TEXTS = {
    "lines": LINES[:232_000],
    "short": LINES[:12_000],
    "lines that end in a space": LINES.replace("\n", " \n")[:187_000],
    "one line": LINES.replace("\n", " ")[:500_000],
    "no space": "é" * 100_000,
}


def split(files, held_out, **options):
    """{split: texts of its pieces}."""
    found = {"train": [], "val": []}
    for name, piece in assign(files, held_out, "text", "strict")():
        found[name].append(piece.text)
    return found


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_one_text_gives_near_the_share_from_all_parts(tmp_path, text, share):
    (tmp_path / "a.txt").write_text(text)
    made = prepare([tmp_path / "a.txt"], tmp_path / "out", held_out=share)["splits"]
    total = sum(info["text_bytes"] for info in made.values())
    assert total == len(text.encode())
    assert made["val"]["text_bytes"] / total == pytest.approx(share, rel=0.35)
    assigned = list(assign([tmp_path / "a.txt"], share, "text", "strict")())
    assert "".join(piece.text for _, piece in assigned) == text
    held = [i for i, (name, _) in enumerate(assigned) if name == "val"]
    assert held[0] <= max(1, len(assigned) / 4)
    assert len(assigned) < 20 or held[-1] > len(assigned) / 2


def test_the_same_pieces_come_each_time(tmp_path):
    for name, text in (("few.txt", LINES[:100_000]), ("many.txt", LINES * 20)):
        (tmp_path / name).write_text(text)
        assigned = assign([tmp_path / name], 0.05, "text", "strict")
        assert list(assigned()) == list(assigned()) != []


# what these gave before small texts were cut finer
UNCHANGED = {0.1: ("b3dbe81074ec9f01", "3451284c903354b2"), 0.3: ("edffd9b6df8fa47a", "d387a73507ae5b96")}


@pytest.mark.parametrize("share", UNCHANGED)
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_documents_that_give_the_share_are_held_out_as_ever(tmp_path, kind, share):
    """Documents of 0 to 90 KB, of which long ones are cut."""
    documents = ["".join(f"Document {n} says {i}.\n" for i in range(n * n % 97 * 40 + 1)) for n in range(80)]
    lines = [json.dumps({"text": text}) + "\n" for text in documents]
    (tmp_path / f"a.{kind}").write_text("<|endoftext|>\n".join(documents) if kind == "txt" else "".join(lines))
    made = prepare([tmp_path / f"a.{kind}"], tmp_path / "out", held_out=share)["splits"]
    assert tuple(made[name]["sha256"][:16] for name in ("train", "val")) == UNCHANGED[share]


@pytest.mark.parametrize("order", [1, -1])
def test_a_text_beside_records_does_not_fill_the_validation_split(tmp_path, order):
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": f"record {i} " * 40}) + "\n" for i in range(30)))
    (tmp_path / "d.txt.xz").write_bytes(lzma.compress(LINES[:60_000].encode()))
    found = split([tmp_path / name for name in ("d.jsonl", "d.txt.xz")[::order]], 0.01)
    held = sum(map(len, found["val"]))
    assert not is_far(held / (held + sum(map(len, found["train"]))), 0.01)


def test_records_and_parted_documents_are_held_out_whole(tmp_path):
    texts = ["ab " * 300, "cd " * 10_000]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert split([tmp_path / "a.jsonl"], 0.03) == {"train": texts[1:], "val": texts[:1]}
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(texts))
    assert split([tmp_path / "a.txt"], 0.03) == {"train": texts[1:], "val": [texts[0] + "\n"]}


def test_of_long_documents_what_follows_a_piece_is_cut_finer(tmp_path):
    books = ["".join(f"Book {n}, line {i}.\n" for i in range(10_000)) for n in range(3)]
    (tmp_path / "a.txt").write_text("<|endoftext|>\n".join(books))
    found = split([tmp_path / "a.txt"], 0.01)
    assert sum(map(len, found["val"])) / sum(map(len, books)) == pytest.approx(0.01, rel=0.3)
    assert all(text.endswith("\n") and text.startswith("Book") for text in found["val"])


@settings(max_examples=300)
@given(st.lists(st.integers(1, 3000), min_size=2, max_size=60), st.floats(0.001, 0.9))
def test_no_single_piece_would_have_been_nearer(lengths, share):
    chosen = _nearest(lengths, share)
    real = sum(lengths[i] for i in chosen) / sum(lengths)
    assert 0 < len(chosen) < len(lengths)
    best = min(_distance(length / sum(lengths), share) for length in lengths)
    assert not is_far(real, share) or _distance(real, share) <= best + 1e-9


def test_far_is_a_factor_of_two_at_both_ends():
    assert [is_far(real, 0.01) for real in (0, 0.004, 0.006, 0.019, 0.021, 1)] == [True, True, False, False, True, True]
    assert [is_far(real, 0.9) for real in (0.81, 0.83, 0.94, 0.96)] == [True, False, False, True]


@given(st.text(st.sampled_from("ab \n\t\ré.\u2028"), max_size=400), st.integers(1, 40), st.integers(0, 80))
def test_fine_pieces_are_the_text_in_parts_of_the_size_asked_for(tmp_path_factory, text, fine, whole):
    path = tmp_path_factory.mktemp("fine") / "a.txt"
    path.write_text(text + "x", newline="")
    found = list(pieces(path, fine=fine, whole=whole))
    assert "".join(piece.text for piece in found) == text + "x"
    assert [piece.last for piece in found] == [False] * (len(found) - 1) + [True]
    least = [max(fine, whole)] + [fine] * len(found)
    assert all(len(piece.text) >= least[i] for i, piece in enumerate(found[:-1]))
    blank = len(text) - len(text.lstrip())  # white space alone is no piece
    assert all(len(piece.text) <= least[i] + fine + blank for i, piece in enumerate(found[:-1]))
    assert len(found) == 1 or fine // 2 <= len(found[-1].text) < 2.5 * fine + blank


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("aaaa b \n c\ndd ee ff", "aaaa b \n c\n"),  # between printable characters, beyond another end of a line
        ("aaaa bb c \ndd ee", "aaaa bb c \n"),  # after a line, beyond the end of a word
        ("aaaabbb cc dd ee", "aaaabbb"),  # before a word
        ("aaaabbbbccccddddeeee", "aaaabb"),
    ],
)
def test_a_cut_is_at_the_best_place_in_reach(tmp_path, text, first):
    (tmp_path / "a.txt").write_text(text)
    assert next(pieces(tmp_path / "a.txt", fine=6)).text == first  # a place is in reach up to 12


def test_what_is_white_is_as_white_to_a_pattern():
    """`_pieces` asks str.isspace, fine pieces ask a pattern: for the same characters."""
    for code in range(0x3100):
        assert bool(PLACES[0].search(f"a\n{chr(code)}")) is not chr(code).isspace()


@pytest.mark.parametrize("tokens", ["bytes", "bpe:300"])
def test_too_short_a_text_says_how_short(tmp_path, tokens):
    (tmp_path / "a.txt").write_text("The quick brown fox jumps over it.")
    with pytest.raises(DataError, match=f"got 34 characters of text in one document; need {5 * SMALLEST // 2} or more"):
        prepare([tmp_path / "a.txt"], tmp_path / "out", tokens)
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_on_both_sides_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").symlink_to("a.txt")
    for other in ("a.txt", "b.txt", f"../{tmp_path.name}/a.txt"):
        with pytest.raises(DataError, match=r"a\.txt as input and as held-out file; need other files"):
            prepare([tmp_path / "a.txt"], tmp_path / "out", held_out=[tmp_path / other])


def taco_data(*arguments):
    parser = argparse.ArgumentParser()
    data_cli.add_parser(parser.add_subparsers())
    return data_cli.run(parser.parse_args(["data", *map(str, arguments)]))


def test_command_line_prints_the_real_share_and_warns_where_it_is_far(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(LINES[:50_000])
    taco_data("prepare", tmp_path / "a.txt", "--out", tmp_path / "out", "--threads", 1)
    near = capsys.readouterr()
    count = len(tokenizer.Bytes().encode(LINES[:50_000])) + 1
    val = int(next(line for line in near.out.splitlines() if " val " in line).split()[1].replace(",", ""))
    assert f"held out: {val / count:.2%} of the tokens (1.00% asked for)" in near.out
    assert near.err == ""
    (tmp_path / "b.txt").write_text(LINES[:300])
    taco_data("prepare", tmp_path / "b.txt", "--out", tmp_path / "out", "--threads", 1, "--overwrite")
    assert "of the tokens are held out where 1.00% was asked for" in capsys.readouterr().err
    options = ("--overwrite", "--held-out-files", tmp_path / "b.txt")
    taco_data("prepare", tmp_path / "a.txt", "--out", tmp_path / "out", "--threads", 1, *options)
    files = capsys.readouterr()
    assert "held out: 0.60% of the tokens\n" in files.out
    assert files.err == ""


def test_help_says_what_parts_documents_and_where_validation_comes_from(capsys):
    with pytest.raises(SystemExit):
        taco_data("prepare", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "several that a line <|endoftext|> separates" in text
    assert "--held-out-files FILE [FILE ...] files for validation" in text

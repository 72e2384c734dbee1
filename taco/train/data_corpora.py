"""The corpus that comes with the repository."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from taco.train.data_format import DataError
from taco.train.data_prepare import prepare

SOTU_TOKENIZER = "bpe:1024"
SOTU_FILES = ("train.txt.xz", "held-out.txt.xz")


def corpus_folder(name: str) -> Path:
    """corpora/<name> of the clone that this package belongs to, or of an installed package (<prefix>/share/taco).

    Raises DataError if neither is there.
    """
    places = (
        Path(__file__).parents[2] / "corpora" / name,
        Path(sysconfig.get_path("data")) / "share/taco/corpora" / name,
    )
    for place in places:
        if place.is_dir():
            return place
    raise DataError(f"got no folder {' or '.join(map(str, places))}; need corpus {name!r}; because it holds the text")


def sotu_mini(out: str | Path, *, overwrite: bool = True, progress: bool = False) -> dict:
    """Prepare the mini corpus, State of the Union addresses 1920-2021 with a BPE of 1024, and return its meta."""
    folder = corpus_folder("sotu")
    train, held = (folder / name for name in SOTU_FILES)
    return prepare([train], out, SOTU_TOKENIZER, held_out=[held], overwrite=overwrite, progress=progress)

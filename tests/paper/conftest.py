"""One folder of invented logs and their tables for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import collective_logs
import paper_logs
import pytest

from taco.paper import tables
from taco.recipes import EXPERIMENTS


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with every log and table of `mini`, and of `fresh` what needs a GPU. Read only."""
    folder = tmp_path_factory.mktemp("results")
    paper_logs.all_logs(folder / "mini")
    paper_logs.write(folder / "fresh" / "codec_speed.jsonl", paper_logs.speed_rows(), **paper_logs.GPU)
    collective_logs.all_logs(folder / "fresh")
    for name in EXPERIMENTS:
        tables.make(name, paper_logs.source_of(name), folder)
    return folder

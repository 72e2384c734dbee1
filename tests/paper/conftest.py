"""One folder of invented logs and their tables for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import paper_logs
import pytest

from taco.paper import tables
from taco.recipes import EXPERIMENTS


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with every log and table of the source `mini`. Read only."""
    folder = tmp_path_factory.mktemp("results")
    paper_logs.all_logs(folder / "mini")
    for name in EXPERIMENTS:
        tables.make(name, "mini", folder)
    return folder

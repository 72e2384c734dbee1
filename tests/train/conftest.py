"""Fixtures of the training tests."""

from __future__ import annotations

import pytest
from train_cases import corpus


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with a small prepared corpus."""
    return corpus(tmp_path_factory.mktemp("corpus"))

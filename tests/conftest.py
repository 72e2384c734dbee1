"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from distributed import close_pools


@pytest.fixture(scope="session", autouse=True)
def _stop_rank_pools() -> Iterator[None]:
    """Stop the rank pools with the last test, so that their coverage is written before it is reported."""
    yield
    close_pools()

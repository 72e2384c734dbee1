"""What every test shares."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from distributed import close_pools


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests marked gpu where there is no CUDA GPU, with a reason that the report shows."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _stop_rank_pools() -> Iterator[None]:
    """Stop the rank pools with the last test, so that their coverage is written before it is reported."""
    yield
    close_pools()


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Ranks run with one thread; a matmul split over threads may add in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

"""How a flat tensor is cut into one chunk per rank, and how packets of unequal chunks share one slot size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from taco.codec.base import Coder


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def chunk_sizes(numel: int, parts: int, align: int) -> tuple[int, ...]:
    """Cut `numel` elements into `parts` consecutive chunks whose boundaries are multiples of `align`.

    All chunks have the size of the first but the last non-empty one, which may be shorter; those after it are
    empty. The sizes sum to `numel`. Every group of the codec lies in one chunk, so the chunking changes no bit.
    """
    size = ceil_div(ceil_div(numel, parts), align) * align
    return tuple(max(0, min(size, numel - i * size)) for i in range(parts))


def slot_bytes(coder: Coder, sizes: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that hold the packet of any chunk: all_to_all and all_gather need equal slots."""
    return max((coder.nbytes(size, dtype) for size in set(sizes)), default=0)

"""How a flat tensor is cut into one chunk per rank, and how packets of unequal chunks share one slot size."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from taco.codec.base import Coder

# slices are multiples of this many groups: their sections then fill whole 16-byte units, scales of one byte included,
# and slices together send exactly the bytes of the whole
SLICE_GROUPS = 16
MAX_SLICES = 8
# a GPU's codec takes a few percent of a transfer over NCCL: shorter slices cost more than they hide (two H200s, through
# host memory; over loopback TCP they change little)
SLICE_BYTES = 64 << 20


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


def slice_count(coder: Coder, nbytes: int, slice_bytes: int) -> int:
    """How many slices a message of `nbytes` (before compression) travels in, 1 to MAX_SLICES; 1 where it stays whole.

    slice_bytes: at least so much a slice; 0: never slice.
    """
    if not slice_bytes or not coder.sliceable:
        return 1
    return max(1, min(MAX_SLICES, nbytes // slice_bytes))


def slice_cuts(coder: Coder, sizes: Sequence[int], slices: int) -> list[slice]:
    """At most `slices` ranges of elements that cover the largest of `sizes`; each cuts every chunk at that place."""
    lengths = chunk_sizes(max(sizes), slices, SLICE_GROUPS * coder.align)
    return [slice(i * lengths[0], i * lengths[0] + length) for i, length in enumerate(lengths) if length]


def cut_sizes(sizes: Sequence[int], cut: slice) -> list[int]:
    """Elements that `cut` takes out of each chunk: fewer or none out of shorter ones."""
    return [len(range(size)[cut]) for size in sizes]

"""Slices of one message in a pipeline: while one is on its way, the next is encoded and the one before is decoded."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from torch import Tensor

# issues a transfer, yields, and goes on with what has arrived; returns this slice of every chunk
Piece = Generator[None, None, list[Tensor]]


def in_slices(
    cuts: Sequence[slice], sizes: Sequence[int], piece: Callable[[slice], Piece], like: Tensor
) -> list[Tensor]:
    """Run `piece` for every cut -> the whole chunks, flat [sizes[i]] of like's dtype and device.

    One cut: the piece's own tensors. Several: chunks that lie one behind another, filled slice by slice.
    """
    if len(cuts) == 1:
        return _whole(piece(cuts[0]))
    chunks = like.new_empty(sum(sizes)).split(list(sizes))

    def placed(cut: slice) -> Piece:
        values = yield from piece(cut)
        for chunk, value in zip(chunks, values, strict=True):
            chunk[cut].copy_(value)
        return []

    _run([placed(cut) for cut in cuts])
    return list(chunks)


def _whole(piece: Piece) -> list[Tensor]:
    while True:
        try:
            next(piece)
        except StopIteration as end:
            return end.value


def _run(pieces: Sequence[Piece]) -> list[list[Tensor]]:
    """Advance every piece to its end. In each round one more starts first, so that its transfer is queued before the
    host (or the current stream) waits for an older one."""
    results: list[list[Tensor]] = [[] for _ in pieces]
    upcoming, running = list(enumerate(pieces)), []
    while upcoming or running:
        if upcoming:
            running.insert(0, upcoming.pop(0))
        for entry in list(running):
            place, each = entry
            try:
                next(each)
            except StopIteration as end:
                results[place] = end.value
                running.remove(entry)
    return results

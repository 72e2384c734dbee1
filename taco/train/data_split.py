"""Which pieces of the text are held out for validation: near a share of it, and from all parts of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from taco.train.data_format import check
from taco.train.data_sources import PIECE, Piece, pieces

FAR = 2.0  # the odds of held-out text may differ from those asked for by this factor
SMALLEST = 64  # characters of a piece

Assigned = Callable[[], Iterator[tuple[str, Piece]]]


def is_far(real: float, asked: float) -> bool:
    """Whether a share of the text is far from the one that was asked for."""
    return _distance(real, asked) > math.log(FAR)


def _distance(real: float, asked: float) -> float:
    """Of the odds, as a logarithm: 0 for the same share, infinite where a split has nothing."""
    if not 0 < real < 1:
        return math.inf
    return abs(math.log(real / (1 - real)) - math.log(asked / (1 - asked)))


def assign(inputs: Sequence[Path], held_out: float | Sequence[Path], field: str, errors: str) -> Assigned:
    """A function that gives (split, piece) in the order of the inputs, each time anew. held_out, field, errors: as of
    `prepare`. The split depends on the text alone. A share takes one reading of the inputs here, two if they are small.

    Raises DataError for what `pieces` raises, for a file on both sides, and for text too short for two splits.
    """
    read = partial(pieces, field=field, errors=errors)
    if isinstance(held_out, float):
        return _by_share(inputs, held_out, read)
    both = {path.resolve() for path in inputs} & {path.resolve() for path in held_out}
    names = ", ".join(sorted(map(str, both)))
    check(not both, f"{names} as input and as held-out file", "other files", "training would see the validation text")
    named = [("train", path) for path in inputs] + [("val", path) for path in held_out]
    return lambda: ((split, piece) for split, path in named for piece in read(path))


class _Rule:
    """Holds out a piece whenever the held-out characters are fewer than `share` of all so far, so that they come from
    all parts of the text; never more than `most` of them."""

    def __init__(self, share: float, most: float = math.inf) -> None:
        self.share, self.most = share, most
        self.total = self.held = 0

    def holds_out(self, length: int) -> bool:
        held = self.held < self.share * self.total and self.held + length <= self.most
        self.total += length
        self.held += length if held else 0
        return held


def _by_share(files: Sequence[Path], share: float, read: Callable[..., Iterator[Piece]]) -> Assigned:
    """Usual pieces by the rule; where that ends far from the share, finer ones, chosen by their lengths."""
    rule, alone = _Rule(share), []
    for file in files:
        documents = 0
        for piece in read(file):
            rule.holds_out(len(piece.text))
            documents += piece.last
        alone.append(documents == 1)
    total = rule.total
    if not is_far(rule.held / total, share):
        return lambda: _usual(files, share, read)
    size = min(PIECE, max(SMALLEST, int(share * total / 4)))

    def fine() -> Iterator[Piece]:
        for file, single in zip(files, alone, strict=True):
            yield from read(file, fine=size, whole=0 if single else PIECE)

    lengths = [len(piece.text) for piece in fine()]
    check(
        len(lengths) > 1,
        f"{total} characters of text in one document",
        f"{5 * SMALLEST // 2} or more, several documents, or other files for validation (--held-out-files)",
        f"pieces of about {SMALLEST} characters are the smallest, and each split needs one",
    )
    chosen = _nearest(lengths, share)
    return lambda: (("val" if i in chosen else "train", piece) for i, piece in enumerate(fine()))


def _usual(files: Sequence[Path], share: float, read: Callable[..., Iterator[Piece]]) -> Iterator[tuple[str, Piece]]:
    rule = _Rule(share)
    for file in files:
        for piece in read(file):
            yield "val" if rule.holds_out(len(piece.text)) else "train", piece


def _nearest(lengths: Sequence[int], share: float) -> set[int]:
    """The places of the pieces to hold out: the first of these choices that is not far from the share, or the nearest.

    By the rule without pieces that would exceed the share by a quarter; by the rule; those that fit in, the longest
    first; the shortest one that does not fit.
    """
    total = sum(lengths)
    target = share * total
    choices = []
    for most in (1.25 * target, math.inf):
        rule = _Rule(share, most)
        choices.append({i for i, length in enumerate(lengths) if rule.holds_out(length)})
    fitting: set[int] = set()
    left = target
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i] <= left:
            fitting.add(i)
            left -= lengths[i]
    longer = [i for i, length in enumerate(lengths) if length > target]
    choices += [fitting, {min(longer, key=lambda i: lengths[i])} if longer else set()]
    real = [sum(lengths[i] for i in chosen) / total for chosen in choices]
    near = (i for i in range(len(choices)) if not is_far(real[i], share))
    return choices[next(near, min(range(len(choices)), key=lambda i: _distance(real[i], share)))]

"""A stand-in for a GPU's timer, and short ways to name a case: for the tests of codec_speed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from taco.bench import speed_timer
from taco.bench.speed_timer import Timing, Work
from taco.recipes import SpeedCase

MIB = 2**20
TACO = 524288 + 4096 * 8
"""Packet of 2^19 elements: a byte each, and two fp32 for each of 4096 groups."""


class StandIn:
    """Runs every call once on the CPU, and gives each work a time of its own: 1 us for 1 MB, twice that for a copy."""

    def __init__(self, l2_bytes: int = MIB) -> None:
        self.device, self.l2_bytes, self.sets = torch.device("cpu"), l2_bytes, []

    def interleaved(self, works: Sequence[Work], replays: int) -> list[Timing]:
        for work, call in ((w, c) for w in works for c in w.sets):
            assert list(speed_timer.tensors_of(call())), work
        self.sets.append([len(w.sets) for w in works])
        return [
            Timing(us=(2 if i else 1) * w.nbytes / 1e6, us_iqr=0.1, timing="graph", calls=3, replays=replays)
            for i, w in enumerate(works)
        ]

    def host(self, call) -> Timing:
        call()
        return Timing(us=9.0, us_iqr=1.0, timing="host", calls=100, replays=20)


def case(op: str, codec: str = "taco", dtype: str = "bfloat16", mib: float = 1, parts: int = 1) -> SpeedCase:
    return SpeedCase(op=op, codec=codec, dtype=dtype, mib=mib, parts=parts)

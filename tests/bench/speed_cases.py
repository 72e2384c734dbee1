"""A stand-in for a GPU's timer, and short ways to name a case: for the tests of codec_speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
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


class FakeCuda:
    """torch.cuda with a clock of its own: calls that advance `now` (us) in place of kernels.

    A graph keeps the calls made inside its context, and makes them again when replayed; `refuses` makes it raise as the
    driver does for work that it cannot capture.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.made, self.capturing, self.refuses, self.stream = 0.0, [], None, False, "main"
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = fake.now

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) / 1e3

        class CUDAGraph:
            def replay(self) -> None:
                fake.made.append("replay")
                for call in self.calls:
                    call()

        @contextmanager
        def graph(made: CUDAGraph, capture_error_mode: str = "global") -> Iterator[None]:
            made.calls = fake.capturing = []
            fake.stream = "capture"
            yield
            fake.capturing = None
            if fake.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
            fake.stream = "main"

        for name, value in {
            "Event": Event, "CUDAGraph": CUDAGraph, "graph": graph, "synchronize": lambda device=None: None,
            "current_stream": lambda: fake.stream, "set_stream": lambda stream: setattr(fake, "stream", stream),
            "get_sync_debug_mode": lambda: 0, "set_sync_debug_mode": lambda mode: None,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(speed_timer, "_end_capture", lambda: None)
        self.timer = object.__new__(speed_timer.GpuTimer)
        self.timer.device, self.timer.l2_bytes = torch.device("cpu"), 0

    def kernel(self, us: float, name: str) -> Callable[[], torch.Tensor]:
        """A call that takes `us` on the fake device and writes ones."""

        def call() -> torch.Tensor:
            out = torch.empty(4)
            self._launch(us, name, out)
            return out

        return call

    def _launch(self, us: float, name: str, out: torch.Tensor) -> None:
        if self.capturing is not None:
            self.capturing.append(lambda: self._launch(us, name, out))
            return
        self.now += us
        self.made.append(name)
        out.fill_(1.0)

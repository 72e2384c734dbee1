"""Bytes on the wire: counted (`Meter`) and predicted (`wire_phases`, `wire_bytes`).

Both count what one rank hands to the transport for other ranks; what it sends to itself is free. Slots are equal,
so every rank counts the same.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch

from taco.codec import coder as make_coder
from taco.comm.layout import ceil_div, chunk_sizes, slot_bytes
from taco.comm.numerics import inner_codec
from taco.comm.select import resolve
from taco.comm.streams import current_stream
from taco.config import Codec, NoCodec

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send")


LIMIT = 256  # operations whose events may wait to be read

# when an operation began, for `Meter.stop`: the host's clock, or (event before, event after, stream); None: not timed
Mark = float | tuple[torch.cuda.Event, torch.cuda.Event, torch.cuda.Stream] | None


class Meter:
    """Sums what this rank sent, per role (tp_forward, ..).

    wire: bytes sent. raw: bytes that the same operation sends uncompressed (a ring, where it is a collective).
    messages: operations. `seconds` is the time inside them: on CUDA between events of the current stream, which waits
    for the transfer, else on the host. Inside a CUDA graph capture no time is counted.
    times: whether to measure it. On CUDA two events cost a small operation a good part of its time on the host; without
    them `seconds` raises ValueError.
    """

    def __init__(self, *, times: bool = True) -> None:
        self._times = times
        self.reset()

    def reset(self) -> None:
        """Forget everything counted so far."""
        self._totals: dict[str, dict[str, int]] = {}
        self._host: dict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event, torch.cuda.Stream]] = []
        self._room = LIMIT  # how many may be there before some are read
        self._free: list[torch.cuda.Event] = []  # to be recorded again: one costs more to make than to record

    @contextmanager
    def timed(self, role: str, device: torch.device) -> Iterator[None]:
        """Count the time of the operations inside, which work on tensors of `device`, towards `role`."""
        mark = self.start(device)
        yield
        self.stop(role, mark)

    def start(self, device: torch.device) -> Mark:
        """Begin to measure an operation on tensors of `device`; `stop` takes the result. One that fails needs none."""
        if not self._times:
            return None
        if device.type != "cuda":
            return time.perf_counter()
        if torch.cuda.is_current_stream_capturing():  # a replay has no time of its own
            return None
        if len(self._events) >= self._room:
            self._read_older()
        free, stream = self._free, current_stream(device)
        first = free.pop() if free else torch.cuda.Event(enable_timing=True)
        last = free.pop() if free else torch.cuda.Event(enable_timing=True)
        first.record(stream)
        return first, last, stream

    def stop(self, role: str, mark: Mark) -> None:
        """Count the time since `mark` towards `role`."""
        if mark is None:
            return
        if isinstance(mark, float):
            self._host[role] += time.perf_counter() - mark
            return
        first, last, stream = mark
        last.record(stream)
        self._events.append((role, first, last, stream))

    @property
    def seconds(self) -> dict[str, float]:
        """{role: seconds} so far. Waits for the last CUDA operation that was counted."""
        if not self._times:
            raise ValueError("got no times; need Meter(times=True); because this one was told not to measure them")
        over: object = self  # the stream of an operation that is over; of none so far
        for operation in reversed(self._events):
            if operation[3] is not over:
                operation[2].synchronize()
                over = operation[3]
            self._take_time(operation)
        self._events, self._room = [], LIMIT
        return dict(self._host)

    def _read_older(self) -> None:
        """Add up operations that are over, of the older half: the newer ones often are not.

        A stream runs in order, so what lies before an operation that is over is over too, without asking.
        """
        count, waiting = len(self._events) // 2, []
        while count and not self._events[count - 1][2].query():
            count //= 2
        over: object = self._events[count - 1][3] if count else self
        for operation in reversed(self._events[:count]):
            if operation[3] is over or operation[2].query():
                over = operation[3]
                self._take_time(operation)
            else:
                waiting.append(operation)
        self._events = [*reversed(waiting), *self._events[count:]]
        # the more another stream lags behind, the less often it is asked
        self._room = len(self._events) + max(LIMIT // 2, len(waiting))

    def _take_time(self, operation: tuple[str, torch.cuda.Event, torch.cuda.Event, torch.cuda.Stream]) -> None:
        role, first, last, _ = operation
        self._host[role] += first.elapsed_time(last) / 1000
        self._free += (first, last)

    def add(self, role: str, compressed: int, uncompressed: int) -> None:
        """Count one operation that sent `compressed` bytes where a plain one would send `uncompressed`."""
        total = self._totals.get(role)
        if total is None:
            total = self._totals[role] = {"wire": 0, "raw": 0, "messages": 0}
        total["wire"] += compressed
        total["raw"] += uncompressed
        total["messages"] += 1

    def merge(self, totals: dict[str, dict[str, int]]) -> None:
        """Count what `totals` says (as of `totals`)."""
        for role, counts in totals.items():
            total = self._totals.setdefault(role, {"wire": 0, "raw": 0, "messages": 0})
            for key, count in counts.items():
                total[key] += count

    def totals(self) -> dict[str, dict[str, int]]:
        """{role: {"wire": bytes, "raw": bytes, "messages": count}}, a copy."""
        return {role: dict(total) for role, total in self._totals.items()}

    def take(self) -> dict[str, dict[str, int]]:
        """`totals`, then `reset`: what was sent since the last call."""
        totals = self.totals()
        self.reset()
        return totals


def raw_bytes(collective: str, numel: int, dtype: torch.dtype, world_size: int) -> int:
    """Bytes one rank sends for the uncompressed operation.

    numel: elements of the full tensor (the input of all_reduce, reduce_scatter and all_to_all, the output of
    all_gather), or of the message for send. A ring all_reduce sends 2(N-1)/N of it, the others (N-1)/N, rounded up.
    """
    full = numel * dtype.itemsize
    if collective == "send":
        return full
    rounds = 2 if collective == "all_reduce" else 1
    return ceil_div(rounds * (world_size - 1) * full, world_size)


def wire_phases(
    collective: str, algorithm: str, numel: int, dtype: torch.dtype, world_size: int, codec: Codec, node_size: int = 0
) -> dict[str, int]:
    """Bytes one rank sends, by phase; the keys of a hierarchical operation start with 'intra' or 'inter'.

    numel: as in `raw_bytes`. algorithm: 'auto', 'one_shot', 'two_shot', 'hierarchical' or 'uncompressed'; it decides
    for all_reduce, and 'hierarchical' for reduce_scatter; the others have one way.
    With P the packet (slot) bytes of one chunk, n = N / node_size the nodes and g = node_size:

        one-shot all_reduce   (N-1) P(numel)             two-shot  2 (N-1) P(chunk)
        hierarchical          intra (g-1) n Pi(chunk), inter (n-1) P(chunk); all_reduce sends inter (n-1) P and
                              intra (g-1) n P again to gather     (Pi: with codec.intra_payload)
        reduce_scatter, all_gather, all_to_all   (N-1) P(numel / N)           send  P(numel)

    Raises ValueError for an unknown collective or an algorithm that cannot run.
    """
    if collective not in COLLECTIVES:
        raise ValueError(
            f"got collective {collective!r}; need one of {', '.join(COLLECTIVES)}; because others move no bytes"
        )
    if numel == 0 or (world_size == 1 and collective != "send"):
        return {}
    if isinstance(codec, NoCodec) or algorithm == "uncompressed":
        return {"uncompressed": raw_bytes(collective, numel, dtype, world_size)}
    coder, others = make_coder(codec), world_size - 1
    path = resolve(collective, algorithm, numel, dtype, world_size, codec, node_size)
    if collective == "send":
        return {"send": coder.nbytes(numel, dtype)}
    if path == "one_shot" and collective == "all_reduce":
        return {"all_gather": others * coder.nbytes(numel, dtype)}
    if collective == "all_reduce":
        sizes: tuple[int, ...] = chunk_sizes(numel, world_size, coder.align)
    else:
        sizes = (ceil_div(numel, world_size),)
    slot = slot_bytes(coder, sizes, dtype)
    if path == "hierarchical":
        nodes = world_size // node_size
        inner = slot_bytes(make_coder(inner_codec(codec)), sizes, dtype)
        phases = {"intra_all_to_all": (node_size - 1) * nodes * inner, "inter_all_to_all": (nodes - 1) * slot}
        if collective == "all_reduce":
            phases |= {"inter_all_gather": (nodes - 1) * slot, "intra_all_gather": (node_size - 1) * nodes * slot}
        return phases
    if collective == "all_reduce":
        return {"all_to_all": others * slot, "all_gather": others * slot}
    return {"all_gather" if collective == "all_gather" else "all_to_all": others * slot}


@lru_cache(maxsize=1024)
def wire_bytes(
    collective: str, algorithm: str, numel: int, dtype: torch.dtype, world_size: int, codec: Codec, node_size: int = 0
) -> int:
    """Bytes one rank sends: the sum of `wire_phases`."""
    return sum(wire_phases(collective, algorithm, numel, dtype, world_size, codec, node_size).values())

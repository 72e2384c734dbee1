"""Times of collectives: arms in turns, every rank making the same decisions, the slowest rank's times.

A turn is a replay of a CUDA graph that holds a call on every set of operands; where a graph cannot hold the calls, or a
transport waits for the host anyway, it is some calls from Python.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from taco.bench.collective_case import agreed, largest
from taco.bench.peer_files import failure
from taco.bench.speed_timer import Call, Timing, captured, summarised, waits
from taco.recipes import CollectiveGrid
from taco.train.launch import World

# a turn of calls from Python lasts about this long, many times what the start of a call takes
EAGER_US = 10_000.0
WARM_ROUNDS = 2
ESTIMATED_CALLS = 4


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An arm on the operands of a case.

    calls: one for each set of operands, which returns this rank's result. reset: makes operands that calls have
    overwritten new again; runs before every turn, untimed. check: raises if a call has gone wrong since.
    """

    calls: tuple[Call, ...]
    reset: Call = lambda: None
    check: Call = lambda: None


class Clock(Protocol):
    """What the timing needs of a machine. l2_bytes: of the cache that must not help; graphs: whether there are any."""

    l2_bytes: int
    graphs: bool

    def mark(self) -> Any:
        """This moment, on the device's time line."""

    def between(self, start: Any, end: Any) -> float:
        """Microseconds from one mark to another."""

    def wait(self) -> None:
        """Until the device has done everything."""


class EventClock:
    """The time line of a GPU's current stream. graphs: whether work may be captured."""

    def __init__(self, device: torch.device, *, graphs: bool) -> None:
        self.device, self.graphs = device, graphs
        self.l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return 1e3 * start.elapsed_time(end)

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)


class HostClock:
    """The host's time, for ranks on CPUs."""

    l2_bytes, graphs = 0, False

    def mark(self) -> float:
        return time.perf_counter()

    def between(self, start: float, end: float) -> float:
        return 1e6 * (end - start)

    def wait(self) -> None:
        return


class _Eager:
    """Some calls from Python; each turn goes on with the next sets of operands."""

    timing = "eager"

    def __init__(self, ready: Ready, calls: int) -> None:
        self.ready, self.calls = ready, calls
        self._order = itertools.cycle(ready.calls)

    def align(self, here: World) -> None:
        here.barrier()

    def run(self) -> None:
        for call in itertools.islice(self._order, self.calls):
            call()

    def answer(self) -> Tensor:
        """The result on set 0."""
        self.ready.reset()
        return self.ready.calls[0]()


class _Graph:
    """Every call once, as a CUDA graph. Results stay alive, so that each has memory of its own."""

    timing = "graph"

    def __init__(self, ready: Ready, graph: torch.cuda.CUDAGraph, results: list[Tensor]) -> None:
        self.ready, self.calls = ready, len(results)
        self._graph, self._results = graph, results
        # a launch that has escaped the graph will not write it again
        results[0].zero_()
        self._token = torch.zeros(1, device=results[0].device)

    def align(self, here: World) -> None:
        """The ranks' devices wait for each other; their hosts go on."""
        dist.all_reduce(self._token)

    def run(self) -> None:
        self._graph.replay()

    def answer(self) -> Tensor:
        """The result on set 0 in the last turn."""
        return self._results[0]


Batch = _Eager | _Graph


def batch(ready: Ready, clock: Clock, here: World, *, graph: bool) -> Batch:
    """The turns of an arm that has run once: a graph where the arm and the clock allow it and every rank can."""
    if graph and clock.graphs:
        made = _captured(ready)
        if not any(largest([made is None], here)):
            return _Graph(ready, *made)
    ready.reset()
    few = ready.calls[:ESTIMATED_CALLS]
    here.barrier()
    start = clock.mark()
    for call in few:
        call()
    end = clock.mark()
    clock.wait()
    (us,) = largest([clock.between(start, end) / len(few)], here)
    return _Eager(ready, max(1, min(len(ready.calls), int(EAGER_US / max(us, 1.0)))))


def _captured(ready: Ready) -> tuple[torch.cuda.CUDAGraph, list] | None:
    try:
        ready.reset()
        # the backend's own threads ask the device about earlier work
        return None if waits(ready.calls[0]) else captured(ready.calls, "thread_local")
    except Exception:  # whatever others' code raises in a capture, it runs from Python instead
        return None


def _turns(batches: Sequence[Batch], clock: Clock, here: World, rounds: int) -> list[list[float]]:
    """Microseconds of every turn of every batch."""
    marks = []
    for _, each in itertools.product(range(rounds), batches):
        each.ready.reset()
        each.align(here)
        start = clock.mark()
        each.run()
        marks.append((start, clock.mark()))
    clock.wait()
    times = [clock.between(*pair) for pair in marks]
    return [times[i :: len(batches)] for i in range(len(batches))]


def timed(batches: Sequence[Batch], clock: Clock, here: World, grid: CollectiveGrid) -> list[Timing]:
    """A Timing for each batch, the same on every rank: of the rank whose median is largest."""
    if not batches:
        return []
    warm = _turns(batches, clock, here, WARM_ROUNDS)
    round_us = sum(largest([us[-1] for us in warm], here))
    fitting = int(1e6 * grid.budget_s / max(round_us, 1.0))
    rounds = max(grid.least_rounds, min(grid.most_rounds, fitting))
    samples = _turns(batches, clock, here, rounds)
    own = [summarised(us, b.calls, b.timing) for us, b in zip(samples, batches, strict=True)]
    every: list[list[tuple[float, float]]] = [[]] * here.size
    dist.all_gather_object(every, [(timing.us, timing.us_iqr) for timing in own])
    slowest = [max(of_ranks) for of_ranks in zip(*every, strict=True)]
    return [replace(timing, us=us, us_iqr=iqr) for timing, (us, iqr) in zip(own, slowest, strict=True)]


def tried(make: Callable[[], Ready], clock: Clock, here: World) -> tuple[Ready | None, str]:
    """The arm that `make` returns, after its first call; or None and the reason of a rank where it raised."""
    made, reason = None, ""
    try:
        made = make()
        made.reset()
        made.calls[0]()
        clock.wait()
        made.check()
    except Exception as error:  # whatever an arm raises, it is the answer for it
        reason = failure(error)
    reason = agreed(reason, here)
    return (None, reason) if reason else (made, "")


def still_sound(ready: Ready, here: World) -> str:
    """Why an arm that has been timed cannot be believed on some rank; empty where it can."""
    reason = ""
    try:
        ready.check()
    except Exception as error:  # as above
        reason = failure(error)
    return agreed(reason, here)

"""Times of GPU work: CUDA graphs of many calls on data that is not in the L2 cache, timed with CUDA events."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from taco.config import require

# between two uses of a set so many times the L2 cache are read and written
CLEAR = 3
# a replay lasts about a millisecond on an H200, against which the microseconds from one graph to the next do not count
GRAPH_BYTES = 4 << 30
MAX_CALLS = 256
# work that is slow per byte gets fewer calls: a replay of at most this long, if a set for each fits in it
GRAPH_US = 20_000.0
WARM_REPLAYS = 3
# back-to-back calls of a batch: fewer kernels than the driver queues before it lets the host wait
BATCHES, BATCH_CALLS = 20, 100

Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class Work:
    """One operation on several sets of operands. sets: a call for each, which returns its outputs. nbytes: bytes that
    one call reads and writes."""

    sets: tuple[Call, ...]
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Microseconds of one call: median and interquartile range over `replays` of `calls` calls each.

    timing: 'graph' (replays of a CUDA graph), 'eager' (calls from Python, which may wait for the host) or 'host'
    (the host's time to issue a call).
    """

    us: float
    us_iqr: float
    timing: str
    calls: int
    replays: int


class Timer(Protocol):
    """What the measurement needs of a machine. device: where tensors are made; l2_bytes: what must not help."""

    device: torch.device
    l2_bytes: int

    def interleaved(self, works: Sequence[Work], replays: int) -> list[Timing]:
        """A Timing for each work; replays of the works take turns, so that a drifting clock meets all of them."""

    def host(self, call: Call) -> Timing:
        """The host's time of one call, issued back to back with others."""


def gpu() -> torch.device:
    """The current CUDA device. Raises `ConfigError` without one."""
    require(torch.cuda.is_available(), "no CUDA GPU", "one", "codec_speed times kernels, which run on a GPU")
    return torch.device("cuda", torch.cuda.current_device())


def sets_for(nbytes: int, l2_bytes: int) -> int:
    """How many sets of operands of `nbytes` each exceed CLEAR times the L2 cache; at least two."""
    return max(2, CLEAR * l2_bytes // nbytes + 1)


def calls_for(nbytes: int, sets: int, eager_us: float) -> int:
    """Calls of one replay: enough bytes to make its start negligible, not too long, and every set at least once."""
    return max(sets, min(MAX_CALLS, GRAPH_BYTES // nbytes, int(GRAPH_US / max(eager_us, 1.0))))


def summarised(samples_us: Sequence[float], calls: int, timing: str) -> Timing:
    """The Timing of a call from times in us of `calls` calls each."""
    low, middle, high = statistics.quantiles([us / calls for us in samples_us], n=4, method="inclusive")
    return Timing(us=middle, us_iqr=high - low, timing=timing, calls=calls, replays=len(samples_us))


def host_time(call: Call, wait: Call, clock: Callable[[], float] = time.perf_counter) -> Timing:
    """The host's time of `call`, in batches; `wait` empties the queue of the device between them, untimed.

    clock: seconds.
    """
    samples = []
    for _ in range(BATCHES + 1):
        start = clock()
        for _ in range(BATCH_CALLS):
            call()
        samples.append((clock() - start) * 1e6)
        wait()
    return summarised(samples[1:], BATCH_CALLS, "host")


def tensors_of(outputs: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, dict):
        yield from tensors_of(tuple(outputs.values()))
    elif isinstance(outputs, (list, tuple)):
        for each in outputs:
            yield from tensors_of(each)


class GpuTimer:
    """Times work on the current CUDA device. Raises `ConfigError` without one."""

    def __init__(self) -> None:
        self.device = gpu()
        self.l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size

    def interleaved(self, works: Sequence[Work], replays: int) -> list[Timing]:
        """See `Timer`. Work that a CUDA graph cannot hold is called from Python.

        Nothing waits between replays: the device always has the next one queued.
        """
        rounds = [self._prepared(work) for work in works]
        for _, each in itertools.product(range(WARM_REPLAYS), rounds):
            each.run()
        marks = [self._mark()]
        for _, each in itertools.product(range(replays), rounds):
            each.run()
            marks.append(self._mark())
        torch.cuda.synchronize(self.device)
        gaps = [1e3 * a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
        return [summarised(gaps[i :: len(rounds)], r.calls, r.timing) for i, r in enumerate(rounds)]

    def host(self, call: Call) -> Timing:
        """See `Timer`."""
        return host_time(call, lambda: torch.cuda.synchronize(self.device))

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _prepared(self, work: Work) -> _Round:
        # the first pass compiles and fills caches
        for call in work.sets:
            call()
        start = self._mark()
        for call in work.sets:
            call()
        end = self._mark()
        torch.cuda.synchronize(self.device)
        calls = calls_for(work.nbytes, len(work.sets), 1e3 * start.elapsed_time(end) / len(work.sets))
        order = tuple(itertools.islice(itertools.cycle(work.sets), calls))
        found = None if waits(order[0]) else captured(order)
        graph = _Graph(order, *found) if found else None
        return graph if graph and graph.works() else _Round(order, "eager")


class _Round:
    """Some calls as one unit: from Python, with every output alive until the last call."""

    def __init__(self, order: Sequence[Call], timing: str) -> None:
        self.order, self.timing, self.calls = order, timing, len(order)

    def run(self) -> None:
        kept = [call() for call in self.order]
        del kept


class _Graph(_Round):
    """The same as a CUDA graph. outputs stay alive, so that every call has memory of its own."""

    def __init__(self, order: Sequence[Call], graph: torch.cuda.CUDAGraph, outputs: list) -> None:
        super().__init__(order, "graph")
        self._graph, self._outputs = graph, outputs

    def run(self) -> None:
        self._graph.replay()

    def works(self) -> bool:
        """Whether a replay writes the last outputs: a launch on a stream of its own is not in the graph."""
        last = [t.detach().reshape(-1) for t in tensors_of(self._outputs[-1])]
        torch.cuda.synchronize()
        for t in last:
            t.zero_()
        self.run()
        return any(bool(t.view(torch.uint8).any()) for t in last)


def waits(call: Call) -> bool:
    """Whether the call waits for the device. To find out by a capture would leave that capture broken."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return False


def _end_capture() -> None:
    """After a failed capture torch refuses random numbers on the GPU until another one ends."""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def captured(order: Sequence[Call], mode: str = "global") -> tuple[torch.cuda.CUDAGraph, list] | None:
    """The calls as a graph, and their outputs; None where the driver refuses to capture them.

    mode: whose unsafe calls end a capture: 'global', or 'thread_local' where other threads talk to the device.
    """
    stream = torch.cuda.current_stream()
    graph, outputs = torch.cuda.CUDAGraph(), []
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            outputs.extend(call() for call in order)
    except RuntimeError:
        # a capture that fails leaves its own stream the current one
        torch.cuda.set_stream(stream)
        _end_capture()
        return None
    return graph, outputs

"""Collectives that run beside the caller's work: on CUDA on a stream of the communicator's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from taco.comm.errors import check_local
from taco.comm.links import Journal


def capturing() -> bool:
    """Whether the current CUDA stream is being captured into a graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class Pending:
    """The result of a collective under way. done: the event after it, None where it has already run."""

    def __init__(self, result: Tensor, done: torch.cuda.Event | None, lane: Lane) -> None:
        self._result, self._done, self._lane = result, done, lane
        self._operation = lane.journal.operation

    def wait(self) -> Tensor:
        """The result, for the current stream, which waits for it (the host does not); again if called again.

        Raises `CommError` when the backend reports a failure.
        """
        if self._done is not None:
            self._lane.journal.operation = self._operation
            with self._lane.journal.phase("waiting"):
                stream = torch.cuda.current_stream(self._result.device)
                stream.wait_event(self._done)
                self._result.record_stream(stream)
            self._lane.waited(self._done)
        return self._result


class Lane:
    """The side stream of one communicator, and the order of its calls there and on the caller's streams.

    last: the event after the last call that was started, and whether in a capture; None where nothing has to wait.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self.last: tuple[torch.cuda.Event, bool] | None = None

    def start(self, call: Callable[[], Tensor], x: Tensor) -> Pending:
        """Run `call` on x's side stream, after the current stream's work so far; on the CPU at once."""
        check_local(x)
        if not x.is_cuda:
            return Pending(call(), None, self)
        if x.device not in self._streams:
            self._streams[x.device] = torch.cuda.Stream(x.device)
        side = self._streams[x.device]
        side.wait_stream(torch.cuda.current_stream(x.device))
        try:
            with torch.cuda.stream(side):
                result = call()
                done = side.record_event()
                self.last = (done, capturing())
        finally:
            x.record_stream(side)  # a call that fails may have queued work on it
        return Pending(result, done, self)

    def join(self, device: torch.device) -> None:
        """Let the current stream wait for the last call that was started. A capture begins after a device-wide wait
        and refuses events from outside, so the two do not wait for each other."""
        if self.last is not None and self.last[1] == capturing():
            torch.cuda.current_stream(device).wait_event(self.last[0])

    def waited(self, done: torch.cuda.Event) -> None:
        """A stream waits for `done`: nothing later has to, if it is of a capture, which ends with all streams joined
        and whose events the next capture refuses."""
        if self.last is not None and self.last == (done, True):
            self.last = None


class Asynchronous:
    """Mixin of `Communicator`: each collective in a form that returns at once.

    On CUDA it runs on the communicator's side stream, after what the current stream holds at the call, and beside what
    comes next; `Pending.wait()` orders the current stream after it. On the CPU it has run when the call returns. Calls
    of one communicator, of both forms, run in the order in which they are issued. The input must keep its values until
    then. Errors surface at the call or at `wait`.
    """

    _lane: Lane
    all_reduce: Callable[..., Tensor]
    reduce_scatter: Callable[..., Tensor]
    all_gather: Callable[..., Tensor]

    def all_reduce_async(self, x: Tensor, **options: Any) -> Pending:
        """`all_reduce` with the same arguments."""
        return self._lane.start(lambda: self.all_reduce(x, **options), x)

    def reduce_scatter_async(self, x: Tensor, dim: int = 0, **options: Any) -> Pending:
        """`reduce_scatter` with the same arguments."""
        return self._lane.start(lambda: self.reduce_scatter(x, dim, **options), x)

    def all_gather_async(self, x: Tensor, dim: int = 0, **options: Any) -> Pending:
        """`all_gather` with the same arguments."""
        return self._lane.start(lambda: self.all_gather(x, dim, **options), x)

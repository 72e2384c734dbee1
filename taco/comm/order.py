"""The order of kernels that wait for other ranks, over the streams of a GPU."""

from __future__ import annotations

from functools import cache

import torch

from taco.comm.streams import capturing, current_stream


class Order:
    """Calls on several streams of `device`, one after another as they are issued: `follow` before each, `passed` after.

    A call waits for the one before and not for what else its stream has since been given; only the first change of
    streams, and calls within a CUDA graph capture, wait for all that the other stream holds.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # of the last call, eager and captured: a graph does not wait for what was issued before its capture
        self._last: dict[bool, torch.cuda.Stream | None] = {False: None, True: None}
        self._done: torch.cuda.Event | None = None  # after the last eager call, once there are several streams

    def follow(self) -> None:
        """Let the current stream wait for the last call, if that was on another one."""
        stream, captured = current_stream(self.device), capturing(self.device)
        last, self._last[captured] = self._last[captured], stream
        if last is stream or last is None or last == stream:
            return
        if captured:
            with torch.cuda.stream(last):
                if not capturing(self.device):  # of an earlier capture
                    return
        if captured or self._done is None:
            stream.wait_stream(last)
        else:
            stream.wait_event(self._done)
        if not captured and self._done is None:
            self._done = torch.cuda.Event()

    def passed(self) -> None:
        """Note that the call has been issued to the current stream."""
        if self._done is not None and not capturing(self.device):
            self._done.record(current_stream(self.device))


@cache
def order_of(device: torch.device) -> Order:
    """The order that all communicators of this process share on a GPU."""
    return Order(device)

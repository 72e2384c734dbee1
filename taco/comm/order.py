"""The order of kernels that wait for other ranks, over the streams of a GPU."""

from __future__ import annotations

from functools import cache

import torch


class Order:
    """Calls on several streams of `device`, one after another as they are issued."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        # of the last call, eager and captured: a graph does not wait for what was issued before its capture
        self._last: dict[bool, torch.cuda.Stream | None] = {False: None, True: None}

    def follow(self) -> None:
        """Let the current stream wait for the last call, if that was on another one."""
        stream = torch.cuda.current_stream(self.device)
        captured = _capturing(stream)
        last, self._last[captured] = self._last[captured], stream
        if last is not None and last != stream and _capturing(last) == captured:
            stream.wait_stream(last)


def _capturing(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()


@cache
def order_of(device: torch.device) -> Order:
    """The order that all communicators of this process share on a GPU."""
    return Order(device)

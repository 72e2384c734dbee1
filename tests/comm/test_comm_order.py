"""The order of fused calls over streams, with streams that only note whom they wait for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from taco.comm import order
from taco.comm.order import Order, order_of


class Stream:
    """waits: the streams, or the streams of events, that it was told to wait for."""

    def __init__(self) -> None:
        self.capturing, self.waits = False, []

    def wait_stream(self, other: Stream) -> None:
        self.waits.append(other)

    def wait_event(self, event: Event) -> None:
        self.waits.append(("event", event.recorded))


class Event:
    def record(self, stream: Stream) -> None:
        self.recorded = stream


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> list[Stream]:
    """A list whose only element is the current stream of every device."""
    now = [Stream()]

    @contextmanager
    def stream(other: Stream) -> Iterator[None]:
        before, now[0] = now[0], other
        yield
        now[0] = before

    monkeypatch.setattr(order, "current_stream", lambda device: now[0])
    monkeypatch.setattr(order, "capturing", lambda device: now[0].capturing)
    monkeypatch.setattr(order.torch.cuda, "stream", stream)
    monkeypatch.setattr(order.torch.cuda, "Event", Event)
    return now


def _call(calls: Order, current: list[Stream], stream: Stream) -> None:
    current[0] = stream
    calls.follow()
    calls.passed()


def test_a_call_waits_for_the_last_one_on_another_stream(current: list[Stream]) -> None:
    calls, first, second = Order(torch.device("cuda", 0)), Stream(), Stream()
    for stream in (first, first, second, second, first, second):
        _call(calls, current, stream)
    # from the second change on for the call alone, not for what its stream holds besides
    assert (first.waits, second.waits) == ([("event", second)], [first, ("event", first)])


def test_a_capture_neither_waits_for_eager_calls_nor_hides_them(current: list[Stream]) -> None:
    calls, first, captured, third = Order(torch.device("cuda", 0)), Stream(), Stream(), Stream()
    _call(calls, current, first)
    captured.capturing = True
    _call(calls, current, captured)
    captured.capturing = False
    _call(calls, current, third)
    assert (captured.waits, third.waits) == ([], [first])


def test_two_streams_of_one_capture_are_in_order_and_two_captures_are_not(current: list[Stream]) -> None:
    calls, one, two, later = Order(torch.device("cuda", 0)), Stream(), Stream(), Stream()
    one.capturing = two.capturing = True
    _call(calls, current, one)
    _call(calls, current, two)
    assert two.waits == [one]
    one.capturing = two.capturing = False
    later.capturing = True
    _call(calls, current, later)
    assert later.waits == []


def test_communicators_of_a_gpu_share_an_order() -> None:
    assert order_of(torch.device("cuda", 0)) is order_of(torch.device("cuda", 0))
    assert order_of(torch.device("cuda", 0)) is not order_of(torch.device("cuda", 1))

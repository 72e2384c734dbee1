"""Current streams, and captures, as CUDA's bindings would report them."""

from __future__ import annotations

import pytest
import torch

from taco.comm import streams


def test_the_current_stream_is_asked_for_once_and_seen_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    here, asked = [7], []
    monkeypatch.setattr(streams, "_raw_stream", lambda index: here[0] + index)
    monkeypatch.setattr(streams, "_streams", {})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: asked.append(device) or object())
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    stream = streams.current_stream(first)
    assert streams.current_stream(first) is stream
    assert streams.current_stream(second) is not stream
    here[0] = 9
    assert streams.current_stream(first) is not stream
    here[0] = 7
    assert streams.current_stream(first) is stream
    assert asked == [first, second, first]
    for here[0] in range(3 * streams.LIMIT):
        streams.current_stream(first)
        assert len(streams._streams) <= streams.LIMIT


def test_a_capture_is_looked_for_on_the_device_of_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.index = device.index

        def __enter__(self) -> None:
            self.before, now[0] = now[0], self.index

        def __exit__(self, *error: object) -> None:
            now[0] = self.before

    monkeypatch.setattr(streams, "_current_device", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: now[0] == 1)
    assert not streams.capturing(torch.device("cuda", 0))
    assert streams.capturing(torch.device("cuda", 1))
    assert now == [0]

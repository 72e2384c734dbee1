"""The formulas, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from taco.codec import coder
from taco.comm import Meter, VirtualCommunicator, wire_bytes, wire_phases
from taco.comm.meter import LIMIT
from taco.recipes import PRESETS, preset

MIB = 1 << 20
BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("collective", "world_size", "expected"),
    [
        ("all_reduce", 2, 2 * MIB),
        ("all_reduce", 4, 3 * MIB),
        ("reduce_scatter", 4, 3 * MIB // 2),
        ("all_gather", 8, 7 * MIB // 4),
        ("all_to_all", 2, MIB),
        ("send", 2, 2 * MIB),
        ("all_reduce", 1, 0),
    ],
)
def test_uncompressed_bytes_are_the_rings(collective: str, world_size: int, expected: int) -> None:
    for codec, algorithm in ((preset("none"), "auto"), (preset("int8"), "uncompressed")):
        assert wire_bytes(collective, algorithm, MIB, BF16, world_size, codec) == expected


def test_a_two_shot_of_the_papers_codec_moves_1_88_times_fewer_bytes() -> None:
    for world_size in (2, 4, 8):
        raw = wire_bytes("all_reduce", "uncompressed", 8 * MIB, BF16, world_size, preset("taco"))
        assert raw / wire_bytes("all_reduce", "two_shot", 8 * MIB, BF16, world_size, preset("taco")) == 2 / 1.0625
        assert raw / wire_bytes("all_reduce", "two_shot", 8 * MIB, BF16, world_size, preset("int8")) == 2 / 1.015625


def test_one_shot_equals_two_shot_at_two_ranks_and_costs_half_the_world_more() -> None:
    for world_size, ratio in ((2, 1), (4, 2), (8, 4)):
        one, two = (
            wire_bytes("all_reduce", algorithm, MIB, BF16, world_size, preset("int8"))
            for algorithm in ("one_shot", "two_shot")
        )
        assert one == ratio * two


def test_a_hierarchy_crosses_nodes_with_the_share_of_one_rank() -> None:
    codec = preset("sdp4bit-gradient")  # int8 within a node, int4 between nodes, fp32 scales of 128
    chunk = MIB // 8
    inner, outer = chunk + chunk // 32, chunk // 2 + chunk // 32
    assert wire_phases("all_reduce", "auto", MIB, torch.float32, 8, codec, 4) == {
        "intra_all_to_all": 3 * 2 * inner,
        "inter_all_to_all": outer,
        "inter_all_gather": outer,
        "intra_all_gather": 3 * 2 * outer,
    }
    assert wire_phases("reduce_scatter", "hierarchical", MIB, torch.float32, 8, codec, 4) == {
        "intra_all_to_all": 3 * 2 * inner,
        "inter_all_to_all": outer,
    }


def test_a_tail_costs_whole_slots_on_every_rank() -> None:
    slot = coder(preset("int8")).nbytes(128, BF16)  # 300 elements on 4 ranks: 128, 128, 44, 0
    assert wire_phases("all_reduce", "two_shot", 300, BF16, 4, preset("int8")) == {
        "all_to_all": 3 * slot,
        "all_gather": 3 * slot,
    }


def test_one_element_and_none() -> None:
    assert wire_bytes("all_reduce", "auto", 0, BF16, 4, preset("int8")) == 0
    assert wire_bytes("send", "auto", 1, BF16, 1, preset("fp8-cast")) == 16
    assert wire_bytes("all_reduce", "uncompressed", 1, BF16, 4, preset("none")) == 3


@pytest.mark.parametrize("name", PRESETS)
def test_hierarchical_bytes_of_eight_virtual_ranks_equal_the_formula(name: str) -> None:
    codec = preset(name)
    for numel in (8, 1000, 8 * 128 + 24):
        comm = VirtualCommunicator(8, codec, role="r", node_size=2)
        for op in ("all_reduce", "reduce_scatter"):
            getattr(comm, op)([torch.ones(numel)] * 8)
            assert comm.meter.take()["r"]["wire"] == wire_bytes(op, "auto", numel, torch.float32, 8, codec, 2)


# --- time on a GPU, with events that only count ------------------------------------------------------


class _Event:
    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        type(self).made += 1
        self.over = True

    def record(self, stream: object) -> None:
        pass

    def synchronize(self) -> None:
        self.over = True

    def query(self) -> bool:
        return self.over

    def elapsed_time(self, other: _Event) -> float:
        return 2.0


def test_events_are_used_again_and_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr("taco.comm.meter.current_stream", lambda device: "a stream")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_Event, "made", 0)
    meter = Meter()
    for _ in range(10 * LIMIT):
        with meter.timed("tp_forward", torch.device("cuda", 0)):
            pass
    assert _Event.made <= 2 * (LIMIT + 1)
    assert meter.seconds == {"tp_forward": pytest.approx(10 * LIMIT * 0.002)}
    assert meter.seconds == {"tp_forward": pytest.approx(10 * LIMIT * 0.002)}


def test_operations_that_are_not_over_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr("taco.comm.meter.current_stream", lambda device: "a stream")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(_Event, "query", lambda self: False)
    meter = Meter()
    for _ in range(LIMIT + 5):
        with meter.timed("tp_forward", torch.device("cuda", 0)):
            pass
    assert meter.seconds == {"tp_forward": pytest.approx((LIMIT + 5) * 0.002)}


def test_of_a_stream_only_the_last_operation_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, now = [], ["a"]

    class Event(_Event):
        def query(self) -> bool:
            asked.append(self)
            return True

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("taco.comm.meter.current_stream", lambda device: now[0])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    meter = Meter()
    for i in range(LIMIT + 1):
        now[0] = "a" if i < 50 else "b"
        with meter.timed("tp_forward", torch.device("cuda", 0)):
            pass
    assert len(asked) == 2  # one of each stream
    assert meter.seconds == {"tp_forward": pytest.approx((LIMIT + 1) * 0.002)}


def test_a_device_that_lags_behind_is_rarely_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = [], [False]

    class Event(_Event):
        def query(self) -> bool:
            asked.append(self)
            return over[0]

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr("taco.comm.meter.current_stream", lambda device: "a stream")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    meter = Meter()

    def run(count: int) -> None:
        for _ in range(count):
            with meter.timed("tp_forward", torch.device("cuda", 0)):
                pass

    run(20 * LIMIT)
    assert len(asked) <= 2 * LIMIT
    over[0] = True
    run(40 * LIMIT)
    assert len(meter._events) <= LIMIT + 1
    assert meter.seconds == {"tp_forward": pytest.approx(60 * LIMIT * 0.002)}


def test_no_time_is_counted_in_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    meter = Meter()
    with meter.timed("tp_forward", torch.device("cuda", 0)):
        pass
    assert meter.seconds == {}


def test_a_meter_without_times_counts_bytes_alone() -> None:
    meter = Meter(times=False)
    comm = VirtualCommunicator(2, preset("int8"), role="r", meter=meter)
    comm.all_reduce([torch.ones(256)] * 2)
    assert meter.start(torch.device("cuda", 0)) is None  # without a look at the device
    assert meter.totals()["r"]["messages"] == 1
    with pytest.raises(ValueError, match=r"got no times; need Meter\(times=True\); because"):
        _ = meter.seconds
    assert meter.take()["r"]["messages"] == 1
    assert meter.totals() == {}

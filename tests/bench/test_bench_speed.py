"""codec_speed: its grid, its bytes against numbers made by hand, and its times by a clock of our own."""

from __future__ import annotations

import itertools

import pytest
import torch
from speed_cases import MIB, TACO, FakeCuda, StandIn, case

from taco.bench import speed_case, speed_timer
from taco.bench.speed_timer import Work, calls_for, host_time, sets_for, summarised
from taco.config import ConfigError
from taco.recipes import PRESETS, SPEED, SpeedCase

# --- grid ------------------------------------------------------------------------------------------


def test_the_grid_is_every_codec_and_size_it_says():
    cases = list(SPEED.cases())
    assert len(cases) == len(set(cases)) == 368
    assert {c.codec for c in cases} <= set(PRESETS)
    assert {c.dtype for c in cases if c.codec == "int6"} == {"bfloat16"}
    assert {c.op for c in cases if c.codec == "flash-int8"} == {"encode", "decode"}
    assert {(c.op, c.parts) for c in cases if c.codec == "int4" and c.parts > 1} == set(
        itertools.product(("decode_sum", "decode_sum_encode"), (2, 4, 8))
    )
    assert {c.op for c in cases if c.dtype != "bfloat16"} == {"encode", "decode", "decode_sum"}


def test_a_quick_look_is_a_part_of_the_grid():
    small = SPEED.narrowed(codecs=["int8", "tahquant"], ops=["decode"], mib=[8])
    assert [(c.codec, c.dtype) for c in small.cases()] == [
        ("int8", "bfloat16"), ("int8", "float16"), ("int8", "float32"), ("tahquant", "bfloat16"),
    ]  # fmt: skip
    assert (small.compiled_codecs, small.launch_codecs) == (("int8",), ("int8",))
    assert SPEED.narrowed() == SPEED


@pytest.mark.parametrize("asked", [{"codecs": ["fp8-cast"]}, {"ops": ["roundtrip"]}, {"mib": [0]}])
def test_what_the_grid_does_not_have_is_refused(asked: dict):
    with pytest.raises(ConfigError, match=r"got .*; need .*; because"):
        SPEED.narrowed(**asked)


# --- bytes and sets --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "packet", "moved"),
    [
        (case("encode"), TACO, MIB + TACO),
        (case("decode"), TACO, TACO + MIB),
        (case("decode_sum", parts=4), TACO, 4 * TACO + MIB),
        (case("decode_sum_encode", parts=8), TACO, 9 * TACO),
        (case("encode", dtype="float32"), 262144 + 2048 * 8, MIB + 262144 + 2048 * 8),
        (case("encode", "int4"), 262144 + 16384 * 2, MIB + 262144 + 16384 * 2),
        (case("decode", "int8", mib=4 / 1024), 2048 + 16 * 2, 4096 + 2048 + 16 * 2),
    ],
)
def test_bytes_by_hand(what: SpeedCase, packet: int, moved: int):
    assert speed_case.packet_bytes(what) == packet
    assert speed_case.bytes_moved(what, packet) == moved


def test_sets_exceed_the_cache_and_are_two_at_least():
    assert sets_for(10, 100) == 31
    assert sets_for(1000, 100) == 2
    assert 3 * 50 * MIB < sets_for(1605632, 50 * MIB) * 1605632 <= 3 * 50 * MIB + 1605632


def test_a_replay_is_long_enough_and_not_too_long():
    assert calls_for(64 * MIB, 2, 30.0) == 64
    assert calls_for(MIB, 120, 10.0) == 256
    assert calls_for(1024 * MIB, 7, 400.0) == 7
    assert calls_for(64 * MIB, 3, 10_000.0) == 3
    assert calls_for(64 * MIB, 3, 0.0) == 64


def test_copies_read_half_of_the_bytes_and_write_half():
    made = speed_case.copies(4096, StandIn(), 0)
    assert (len(made.sets), made.nbytes) == (769, 4096)
    first, second = made.sets[0](), made.sets[1]()
    assert first.numel() == 2048
    assert not torch.equal(first, second)


def test_operands_are_distinct_and_the_same_every_time():
    again = [speed_case.work(case("encode", "int8"), StandIn(), 3) for _ in range(2)]
    packets = [[call() for call in made.sets] for made in again]
    assert len(packets[0]) == 3 * MIB // again[0].nbytes + 1
    assert not torch.equal(packets[0][0], packets[0][1])
    assert torch.equal(packets[0][1], packets[1][1])


# --- times -----------------------------------------------------------------------------------------


def test_times_are_the_median_and_the_quartiles_of_a_call():
    found = summarised([100.0, 140.0, 120.0, 110.0, 900.0], 10, "graph")
    assert (found.us, found.us_iqr, found.calls, found.replays) == (12.0, pytest.approx(3.0), 10, 5)


def test_host_time_leaves_out_the_waits_and_the_first_batch():
    now = [0.0]
    cost = iter([1.0] * 100 + [5e-6] * 10_000)

    def call():
        now[0] += next(cost)

    def wait():
        now[0] += 1000.0

    found = host_time(call, wait, lambda: now[0])
    assert found.us == pytest.approx(5.0)
    assert found.us_iqr == pytest.approx(0.0, abs=1e-6)
    assert found.calls * found.replays >= 1000


def test_outputs_of_any_form_are_found():
    a, b = torch.zeros(1), torch.zeros(2)
    assert [t.numel() for t in speed_timer.tensors_of({"x": (a, None), "y": [b, 3]})] == [1, 2]


def test_replays_of_two_works_take_turns_and_each_has_its_own_times(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    works = [
        Work(sets=(cuda.kernel(us, a), cuda.kernel(us, b)), nbytes=1 << 30)
        for us, a, b in ((7, "a", "b"), (3, "c", "d"))
    ]
    slow, fast = cuda.timer.interleaved(works, 5)
    assert (slow.us, fast.us, slow.us_iqr) == (7.0, 3.0, 0.0)
    assert (slow.timing, slow.calls, slow.replays) == ("graph", 4, 5)
    turn = ["replay", *"abab", "replay", *"cdcd"]
    assert cuda.made[-8 * len(turn) :] == 8 * turn


def test_what_the_driver_does_not_capture_is_called_from_python(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    cuda.refuses = True
    (found,) = cuda.timer.interleaved([Work(sets=(cuda.kernel(5, "a"), cuda.kernel(5, "b")), nbytes=1 << 30)], 4)
    assert (found.us, found.timing, cuda.stream) == (5.0, "eager", "main")
    assert "replay" not in cuda.made


def test_a_launch_that_escapes_the_graph_is_noticed(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    out = torch.ones(4)
    (found,) = cuda.timer.interleaved([Work(sets=(lambda: out, lambda: out), nbytes=1 << 30)], 4)
    assert found.timing == "eager"


def test_work_that_waits_for_the_device_is_never_captured(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    strict = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", strict.append)
    kernel = cuda.kernel(5, "a")

    def waits():
        if strict and strict[-1] == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return kernel()

    (found,) = cuda.timer.interleaved([Work(sets=(waits, waits), nbytes=1 << 30)], 4)
    assert (found.timing, strict) == ("eager", ["error", 0])

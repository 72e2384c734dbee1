"""What a communicator keeps of a message's form must not show: other forms, options, seeds and errors in between."""

from __future__ import annotations

import pytest
import torch
from comm_cases import STOCHASTIC, equal, parts_of
from distributed import run_ranks
from fake_kernels import kernels

from taco.codec import coder
from taco.codec.base import Coder
from taco.comm import CommError, Communicator, VirtualCommunicator, collectives, links, peers, pending
from taco.comm.plan import without_autograd
from taco.config import Codec
from taco.recipes import PRESETS, preset

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32)


def _forms(rank: int, world_size: int, codec: Codec) -> None:
    """Each call gives what the same call of a communicator without a past gives."""
    options = {"role": "r", "min_bytes": 1000, "seed": 4}
    comm = Communicator(None, codec, **options)
    wire = raw = 0

    def new() -> tuple[Communicator, VirtualCommunicator]:
        return Communicator(None, codec, **options), VirtualCommunicator(world_size, codec, **options)

    for again in range(2):
        for dtype in DTYPES:
            for shape in ((2 * world_size, 40), (world_size * 384,), (4, 4 * world_size, 9), (world_size, 3)):
                parts = [part.to(dtype) for part in parts_of(world_size, shape)]
                for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"):
                    where = () if op == "all_reduce" or len(shape) == 1 else (1 if len(shape) == 3 else 0,)
                    fresh, virtual = new()
                    fresh.calls = virtual.calls = comm.calls
                    got = getattr(comm, op)(parts[rank], *where)
                    assert equal(got, getattr(fresh, op)(parts[rank], *where)), (again, op, shape, dtype)
                    getattr(virtual, op)(parts, *where)
                    assert fresh.paths == virtual.paths
                    wire += virtual.meter.totals()["r"]["wire"]
                    raw += virtual.meter.totals()["r"]["raw"]
    assert comm.meter.totals() == {"r": {"wire": wire, "raw": raw, "messages": comm.calls}}


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("codec", [preset("int8"), preset("flash-int4"), STOCHASTIC], ids=lambda codec: codec.name)
def test_messages_of_other_forms_in_between_change_nothing(codec: Codec, world_size: int) -> None:
    run_ranks(world_size, _forms, codec)


def _options(rank: int, world_size: int) -> None:
    with kernels():
        comm = Communicator(None, preset("int8"), role="r")
        x = torch.ones(world_size * 256)
        for option, value, path in (
            ("min_bytes", 1 << 20, "uncompressed"),
            ("min_bytes", 0, "one_shot"),
            ("algorithm", "two_shot", "two_shot"),
            ("fused", "auto", "fused"),
            ("fused", "off", "two_shot"),
        ):
            setattr(comm, option, value)
            assert getattr(comm, option) == value
            comm.paths.clear()
            comm.all_reduce(x)
            assert comm.paths == {path: 1}, (option, value)


def test_an_option_that_is_set_later_counts_from_the_next_call_on() -> None:
    run_ranks(2, _options)


def test_the_codec_is_no_option() -> None:
    comm = VirtualCommunicator(2, preset("int8"), role="r")
    with pytest.raises(AttributeError, match="no setter"):
        comm.codec = preset("int4")
    assert comm.codec == preset("int8")


def test_options_of_one_communicator_are_not_those_of_another() -> None:
    one, other = (VirtualCommunicator(2, preset("int8"), role="r") for _ in range(2))
    one.min_bytes = 1 << 20
    for comm in (one, other):
        comm.all_reduce([torch.ones(256)] * 2)
    assert (one.paths, other.paths) == ({"uncompressed": 1}, {"one_shot": 1})
    assert not hasattr(one, "fused")


def test_seeds_that_are_set_later_count_and_are_those_of_a_new_communicator() -> None:
    parts = parts_of(2, (512,))
    comm = VirtualCommunicator(2, STOCHASTIC, role="r", seed=1)
    first, second = comm.all_reduce(parts), comm.all_reduce(parts)
    assert not equal(first, second)
    comm.calls = 0
    assert equal(comm.all_reduce(parts), first)
    comm.seed, comm.calls = 2, 0
    assert equal(comm.all_reduce(parts), VirtualCommunicator(2, STOCHASTIC, role="r", seed=2).all_reduce(parts))


@pytest.mark.parametrize("name", PRESETS)
def test_a_coder_without_seeds_ignores_them(name: str) -> None:
    packer, x = coder(preset(name)), torch.randn(2, 4096)
    if not packer.seeded:
        assert equal(packer.encode_rows(x, [0, 0]), packer.encode_rows(x, [1, 2]))


def test_stochastic_coders_have_seeds_and_coders_of_others_may() -> None:
    assert coder(STOCHASTIC).seeded
    assert not coder(preset("int8")).seeded
    assert not any(coder(codec).seeded for codec in PRESETS.values())
    assert Coder.seeded  # unless a coder says so


def test_few_plans_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "LIMIT", 4)
    comm = VirtualCommunicator(2, preset("int8"), role="r")
    for numel in range(1, 20):
        comm.all_reduce([torch.ones(numel)] * 2)
        assert len(comm._plans) <= 4
    assert comm.paths == {"one_shot": 19}


# --- errors -----------------------------------------------------------------------------------------


def _broken(*args, **options) -> None:
    raise RuntimeError("the cable is out")


def _errors(rank: int, world_size: int) -> None:
    comm = Communicator(None, preset("int8"), role="r")
    x = torch.ones(world_size * 128)
    comm.all_reduce(x)
    head = f"rank {rank} of {world_size}, role r: "
    for op, name, phase in (
        ("all_reduce", "wte", "all-gather"),
        ("all_reduce", "", "all-gather"),
        ("all_gather", "h.0", "all-gather"),
        ("reduce_scatter", "h.1", "all-to-all"),
        ("all_to_all", "", "all-to-all"),
    ):
        before = comm.calls, comm.meter.totals(), dict(comm.paths)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(links, "all_gather_single", _broken)
            patch.setattr(links.dist, "all_to_all_single", _broken)
            with pytest.raises(CommError) as info:
                getattr(comm, op)(x, name=name)
        said = f"{op}{f' of {name}' if name else ''}, call {before[0] + 1},"
        assert str(info.value) == f"{head}{said} failed in {phase}; the backend said: the cable is out"
        assert isinstance(info.value.__cause__, RuntimeError)
        # what has failed is a call, and neither time nor bytes
        assert (comm.calls, comm.meter.totals(), dict(comm.paths)) == (before[0] + 1, *before[1:])
    assert comm.all_reduce(x)[0] == pytest.approx(world_size, rel=0.01)


def test_errors_name_the_call_that_failed() -> None:
    run_ranks(2, _errors)


class _Lost:
    """A stream that cannot wait."""

    def wait_event(self, event: object) -> None:
        raise RuntimeError("the device is lost")


def test_a_pending_call_is_named_after_others_have_been_made(monkeypatch: pytest.MonkeyPatch) -> None:
    lane = pending.Lane(links.Journal(0, 2, "r"))
    lane.journal.begin(("all_reduce", "wte", 1))
    started = pending.Pending(torch.ones(1), object(), lane)
    lane.journal.begin(("all_gather", "", 2))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: _Lost())
    with pytest.raises(CommError, match="role r: all_reduce of wte, call 1, failed in waiting; the backend said: the "):
        started.wait()


def _kernel_errors(rank: int, world_size: int) -> None:
    with kernels():
        comm = Communicator(None, preset("int8"), role="r", fused="require")
        comm.all_reduce(torch.ones(300))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peers.Fused, "all_reduce", _broken)
            with pytest.raises(CommError, match=r"all_reduce, call 2, failed in fused; the backend said: the cable"):
                comm.all_reduce(torch.ones(300))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(peers, "capturing", lambda: True)
            comm.all_reduce(torch.ones(301))  # another form, whose kernels are there
        assert comm.paths == {"fused": 2}


def test_errors_of_kernels_name_the_call_and_forms_may_be_new_in_a_capture() -> None:
    run_ranks(2, _kernel_errors)


# --- autograd ---------------------------------------------------------------------------------------


class _Doubles:
    @without_autograd
    def double(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
        """Twice x."""
        if fails:
            raise KeyError("x")
        assert not torch.is_grad_enabled()
        return x * 2


def test_methods_without_autograd_leave_its_mode_as_it_was() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not _Doubles().double(x).requires_grad
    assert torch.is_grad_enabled()
    with pytest.raises(KeyError):
        _Doubles().double(x, fails=True)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        _Doubles().double(x)
        assert not torch.is_grad_enabled()
    assert _Doubles.double.__doc__ == "Twice x."

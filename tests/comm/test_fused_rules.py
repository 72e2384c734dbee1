"""What fused collectives refuse and say, how large a workspace is, and what the operator tells a compiler."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from fused_ranks import PRESETS, Ranks, inputs
from torch import Tensor

from taco import kernels
from taco.codec import cuda
from taco.comm import CommError, fused, workspace
from taco.comm.fused import ALL_GATHER, ONE_SHOT, REDUCE_SCATTER, TWO_SHOT, Fused
from taco.comm.workspace import Workspace
from taco.config import CastCodec, GroupCodec
from taco.recipes import preset

built = pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")
CPU = torch.device("cpu")
CLIPPED = GroupCodec(name="clipped", payload="int4", clip=0.95)


def _space(rank: int = 0, world_size: int = 2) -> Workspace:
    """One that no kernel uses."""
    size, slot = workspace.nbytes(world_size, 1, 5120), 5120
    buffer, addresses = torch.zeros(size, dtype=torch.uint8), torch.zeros(world_size, dtype=torch.int64)
    state, token = torch.zeros(workspace.HEADER + workspace.PIPES, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    report = torch.zeros(workspace.REPORT, dtype=torch.int64)
    return Workspace(buffer, addresses, state, token, report, rank, world_size, 1, slot, 0.5)


# --- sizes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        # 4 tiles of 1024 codes, room for scales and alphas, and for the trailer
        ("int8", 4 * (1024 + 256) + 128),
        ("taco", 4 * (1024 + 256) + 128),
        ("int6", 4 * (768 + 256) + 128),
        ("int4", 4 * (512 + 256) + 128),
        ("sdp4bit-weight", 4 * (1024 + 256) + 128),  # groups of 2048: tiles of 2048 codes
        ("none", 4096 * 2 + 128),
    ],
)
def test_a_slot_holds_the_packet_of_a_chunk(name: str, nbytes: int) -> None:
    assert workspace.slot_bytes(preset(name)) == nbytes


def test_size_of_a_workspace() -> None:
    places = 2 * (4 * 132) * 4 * 1  # phases, pipelines, slots, peers
    assert workspace.nbytes(2, 132, 5120) == 5120 * places == 21_626_880
    assert workspace.nbytes(3, 1, 5120) == 5120 * 64
    space = _space(rank=1)
    addresses = [tensor.data_ptr() for tensor in (space.addresses, space.state, space.report)]
    pause = workspace.HOST_PAUSE_NS  # the CPU's memory here
    assert space.numbers == [*addresses, 1, 2, 4, 5120, pause, 500_000_000, 1, space.buffer.numel()]
    assert space.numbers[workspace.WORLD_SIZE] == 2


def test_constants_are_those_of_the_kernels() -> None:
    text = (Path(kernels.SOURCES) / "mesh.cuh").read_text() + (Path(kernels.SOURCES) / "stage.cuh").read_text()
    found = {name: int(value) for name, value in re.findall(r"\b(k\w+) = (\d+)[,;]", text)}
    assert (found["kHeader"], found["kPhases"], found["kSlots"], found["kMaxPipes"], found["kReport"]) == (
        workspace.HEADER, workspace.PHASES, workspace.SLOTS, workspace.PIPES, workspace.REPORT,
    )  # fmt: skip
    assert (found["kTrailer"], found["kRepeats"]) == (workspace.TRAILER, workspace.REPEATS)
    assert found["kThreads"] == 32 * workspace.WARPS


@pytest.mark.parametrize("codec", PRESETS, ids=lambda c: c.name)
def test_number_of_a_codec(codec) -> None:
    number = workspace.number_of(codec)
    assert number == (0 if codec.name == "none" else cuda.number(codec))


KIB = 1024


@built
@pytest.mark.parametrize(
    ("name", "collective", "algorithm", "world_size", "numel", "dtype", "want"),
    [
        # a chunk of 4096 elements: codes, scales of 8 groups a tile, a trailer
        ("int8", "all_reduce", "auto", 2, 4096, torch.bfloat16, 4096 + 4 * 8 * 2 + 32),
        ("int8", "all_reduce", "one_shot", 3, 4097, torch.bfloat16, 2 * 2 * 4192),
        ("int8", "all_reduce", "two_shot", 2, 8192, torch.bfloat16, 2 * 4192),
        ("int8", "all_reduce", "auto", 4, 16 * KIB, torch.bfloat16, 2 * 3 * 4192),
        ("int8", "reduce_scatter", "auto", 4, 16 * KIB, torch.bfloat16, 3 * 4192),
        ("int8", "all_gather", "auto", 2, 16 * KIB, torch.bfloat16, 2 * 4192),
        # room for all scales and alphas that a codec can have
        ("int8", "all_reduce", "auto", 2, 4096, torch.float32, 4096 + 4 * 256 + 32),
        ("taco", "all_reduce", "auto", 2, 4096, torch.bfloat16, 4096 + 4 * 8 * (4 + 4) + 32),
        ("sdp4bit-weight", "all_gather", "auto", 2, 16 * KIB, torch.bfloat16, 4096 + 4 * 256 + 32),
        ("none", "all_reduce", "auto", 2, 4096, torch.bfloat16, 8192 + 32),
        ("none", "all_reduce", "auto", 2, 4096, torch.float32, 2 * (8192 + 32)),
    ],
)
def test_bytes_that_kernels_write_for_others(
    name: str, collective: str, algorithm: str, world_size: int, numel: int, dtype: torch.dtype, want: int
) -> None:
    assert fused.sent_bytes(collective, algorithm, numel, dtype, world_size, preset(name)) == want


@built
def test_packets_fit_their_slots() -> None:
    for codec in PRESETS:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            packet = fused.sent_bytes("all_reduce", "one_shot", 1, dtype, 2, codec)
            assert packet <= workspace.slot_bytes(codec)


# --- refusals -----------------------------------------------------------------------------------------


def test_why_not() -> None:
    for name in ("tahquant", "flash-int4", "fp8-cast", "int8-tensor"):
        assert fused.why_not(preset(name), None, CPU) == (
            f"codec {name!r} has no fused kernel (group codecs and none have)"
        )
        with pytest.raises(ValueError, match=f"got codec '{name}'; need a group codec or none"):
            workspace.number_of(preset(name))
    assert fused.why_not(preset("int8"), None, CPU) == "tensors are on cpu, not on a GPU"
    reason = "clip=0.95 has no kernel (kernels scale by the whole absmax)"
    assert fused.why_not(CLIPPED, None, CPU) == f"codec 'clipped' has no fused kernel: {reason}"
    with pytest.raises(
        ValueError, match=re.escape(f"got codec 'clipped'; need one that the kernels can run; because {reason}")
    ):
        workspace.number_of(CLIPPED)


@pytest.mark.parametrize("codec", [preset("int8"), CastCodec(name="cast"), CLIPPED])
def test_the_constructor_says_why_not(codec) -> None:
    reason = re.escape(fused.why_not(codec, None, CPU))
    with pytest.raises(ValueError, match=f"got fused collectives where {reason}; need an unfused path"):
        Fused(None, codec, device=CPU)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", [None, torch.device("cuda"), torch.device("cuda", 1)])
def test_without_a_gpu_the_constructor_says_so(device: torch.device | None) -> None:
    with pytest.raises(ValueError, match="got fused collectives where torch finds no CUDA GPU; need an unfused path"):
        Fused(None, preset("int8"), device=device)


@pytest.mark.gpu
@built
def test_one_rank_has_no_peers() -> None:
    if torch.cuda.get_device_capability() < fused.MIN_CAPABILITY:
        pytest.skip("needs a GPU of compute capability 9.0")
    with pytest.raises(ValueError, match="there are no peers"):
        Fused(None, preset("int8"))


@built
def test_bad_calls_are_refused_before_anything_is_launched() -> None:
    rank = Fused.of(preset("int8"), _space())
    assert repr(rank) == "Fused(codec=int8, rank 0 of 2, 1 SMs, memory of the host)"
    for dtype in (torch.float64, torch.int32):
        with pytest.raises(ValueError, match=f"got a tensor of {dtype}; need float32, bfloat16 or float16"):
            rank.all_reduce(torch.ones(10).to(dtype))
    with pytest.raises(ValueError, match="got a tensor on meta; need cpu; because its kernels share memory"):
        rank.all_gather(torch.ones(10, device="meta"))
    with pytest.raises(ValueError, match="got 7 elements; need a multiple of 2"):
        rank.reduce_scatter(torch.ones(7))
    with pytest.raises(ValueError, match="got algorithm='hierarchical'; need one of auto, one_shot, two_shot"):
        rank.all_reduce(torch.ones(10), algorithm="hierarchical")


@built
def test_a_report_becomes_an_error_that_names_rank_phase_and_call() -> None:
    space = _space(rank=2, world_size=4)
    rank = Fused.of(preset("taco"), space)
    rank.check()
    space.report.copy_(torch.tensor([1, 3, 1, 41, TWO_SHOT]))
    said = (
        "rank 2 of 4: all_reduce, call 42, failed in the gathering of sums: rank 3 sent nothing for 0.5 s; "
        "results since are NaN"
    )
    with pytest.raises(CommError) as caught:
        rank.check()
    assert str(caught.value) == said
    with pytest.raises(CommError, match="rank 3 sent nothing"):
        rank.all_gather(torch.ones(10))
    space.report[4] = REDUCE_SCATTER
    space.report[2] = 0
    with pytest.raises(CommError, match="reduce_scatter, call 42, failed in the exchange of packets"):
        rank.check()


@pytest.mark.gpu
@built
def test_the_operator_refuses_what_would_write_elsewhere() -> None:
    ranks = Ranks(2, preset("int8"))
    space, number, [x, _] = ranks.fused[0].workspace, cuda.number(preset("int8")), inputs(2, 1000, torch.float32)

    def call(
        x: Tensor = x, token: Tensor = space.token, number: int = number, kind: int = ONE_SHOT, seeds=(), **changed
    ) -> Tensor:
        numbers = [changed.get(f"n{i}", n) for i, n in enumerate(space.numbers)]
        return torch.ops.taco.collective(x, token, numbers, number, kind, list(seeds))

    with pytest.raises(RuntimeError, match="got other numbers of a workspace"):
        call(n3=2)  # a rank that there is not
    with pytest.raises(RuntimeError, match="got other numbers of a workspace"):
        call(n9=space.sms + 1)  # more SMs than there are pipelines for
    with pytest.raises(RuntimeError, match="got a workspace of"):
        call(n10=space.buffer.numel() - 1)
    with pytest.raises(RuntimeError, match="got slots of"):
        call(token=space.token.cpu())
    with pytest.raises(RuntimeError, match="got slots of"):
        call(number=0)  # elements need larger slots
    with pytest.raises(RuntimeError, match="got collective 4; need 0 to 3"):
        call(kind=4)
    with pytest.raises(RuntimeError, match="got 999 elements to scatter; need a multiple of 2"):
        call(x=x[:999], kind=REDUCE_SCATTER)
    with pytest.raises(RuntimeError, match="not a contiguous CUDA tensor"):
        call(x=x[::2])
    with pytest.raises(RuntimeError, match="need float32, bfloat16 or float16"):
        call(x=x.double())
    stochastic = cuda.number(GroupCodec(name="stochastic", rounding="stochastic"))
    for kind, seeds, wanted in ((ONE_SHOT, [1, 2], 1), (TWO_SHOT, [1, 2], 3), (REDUCE_SCATTER, [1], 2)):
        with pytest.raises(RuntimeError, match=f"got {len(seeds)} seeds; need {wanted}"):
            call(number=stochastic, kind=kind, seeds=seeds)
    ranks.finish()


# --- what a compiler sees -----------------------------------------------------------------------------


@built
def test_the_schema_says_that_a_token_is_written() -> None:
    fused.load()
    schema = torch.ops.taco.collective.default._schema
    written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    assert written == {"token"}
    assert schema.is_mutable
    assert [r.alias_info for r in schema.returns] == [None]


@built
@pytest.mark.parametrize(
    ("kind", "shape"), [(ONE_SHOT, (12,)), (TWO_SHOT, (12,)), (REDUCE_SCATTER, (4,)), (ALL_GATHER, (3, 12))]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_fake_has_the_shape_of_the_result(kind: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fused.load()
    x, token = torch.empty(2, 6, dtype=dtype, device="meta"), torch.empty(1, dtype=torch.int32, device="meta")
    numbers = [1, 1, 1, 0, 3, 4, 5120, 32, 10, 1, 100]

    def call(x: Tensor, token: Tensor) -> Tensor:
        return torch.ops.taco.collective(x, token, numbers, 2, kind, []) + 1

    for f in (call, torch.compile(call, fullgraph=True, dynamic=False, backend="eager")):
        y = f(x, token)
        assert (y.shape, y.dtype, y.device.type) == (shape, dtype, "meta")


# --- memory of the host ---------------------------------------------------------------------------------


@pytest.mark.skipif(not workspace.SHARED.is_dir(), reason="needs /dev/shm")
def test_a_file_of_the_host_is_zero_and_there_in_full_or_not_at_all() -> None:
    before = set(workspace.SHARED.glob("taco-*"))
    name = workspace._shared_file(10_000)
    assert isinstance(name, str)
    path = workspace.SHARED / name
    try:
        assert path.read_bytes() == bytes(10_000)
    finally:
        path.unlink()
    assert isinstance(workspace._shared_file(1 << 60), OSError)
    assert set(workspace.SHARED.glob("taco-*")) == before

"""The kernels equal the reference bit for bit: on a GPU, and without one the same source compiled for the host."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from taco.codec import cuda
from taco.codec.group import GroupCoder
from taco.config import GroupCodec

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PAYLOADS = ("e4m3", "e5m2", "int8", "int6", "int4")
GROUPS = (16, 32, 64, 128, 256, 512, 1024, 2048)
ROTATIONS = ("none", "hadamard", "signed")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")


def assert_bits_equal(got: Tensor, want: Tensor, what: str) -> None:
    """Equal bits, NaN equal to NaN; else the failure names the first element that differs."""
    got, want = got.cpu(), want.cpu()
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.is_floating_point():
        assert torch.equal(got.isnan(), want.isnan()), f"{what}: NaN at other places"
        got, want = (t.nan_to_num(0.0).view(torch.int16 if t.element_size() == 2 else torch.int32) for t in (got, want))
    if torch.equal(got, want):
        return
    places = (got != want).nonzero()
    first = tuple(places[0].tolist())
    pytest.fail(
        f"{what}: {len(places)} of {want.numel()} differ, first at {first}: got {got[first]}, need {want[first]}"
    )


def message(numel: int, dtype: torch.dtype, *, scale: float, content: str, seed: int) -> Tensor:
    """[numel] on the CPU: noise around `scale`, with outliers, zeros, subnormals or values that are not finite."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator) * scale
    place = torch.randint(max(numel, 1), (1 + numel // 97,), generator=generator)
    if content == "outliers":
        x[place] *= 1000.0
    if content == "zeros":
        x[: numel // 2] = 0.0
    if content == "subnormal":
        x = x / scale * 2.0**-140
    if content in ("nan", "inf", "-inf"):
        x[place[:1]] = float(content)
    if content == "offset":
        x += 3 * scale
    return x.to(dtype)


def check(config: GroupCodec, x: Tensor, device: str, seed: int) -> None:
    """All four operations of `config` on x against the reference on the CPU."""
    reference = GroupCoder(config, "reference")
    numel, dtype, what = x.numel(), x.dtype, f"{config} {x.dtype} [{x.numel()}]"
    packet = reference.encode(x, seed=seed)
    before = x.clone()
    assert_bits_equal(cuda.encode(x.to(device), config, seed), packet, f"encode {what}")
    assert_bits_equal(x, before, f"input of encode {what}")
    assert_bits_equal(
        cuda.decode(packet.to(device), config, numel, dtype), reference.decode(packet, numel, dtype), f"decode {what}"
    )
    packets = torch.stack([packet, reference.encode(x.flip(0), seed=seed + 1), reference.encode(2 * x, seed=seed)])
    assert_bits_equal(
        cuda.decode_sum(packets.to(device), config, numel, dtype),
        reference.decode_sum(packets, numel, dtype),
        f"decode_sum {what}",
    )
    assert_bits_equal(
        cuda.decode_sum_encode(packets.to(device), config, numel, seed),
        reference.decode_sum_encode(packets, numel, dtype, seed=seed),
        f"decode_sum_encode {what}",
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("rotation", ROTATIONS)
def test_grid_equals_the_reference(device: str, payload: str, rotation: str) -> None:
    grid = itertools.product(GROUPS, ("fp32", "bf16", "e8m0"), (False, True), ("nearest", "stochastic"))
    for case, (group, scale, adaptive, rounding) in enumerate(grid):
        config = GroupCodec(
            name="grid", payload=payload, group=group, rotation=rotation, scale=scale, adaptive_scale=adaptive,
            rotation_size=(0, 16, max(16, group // 2))[case % 3], rounding=rounding,
        )  # fmt: skip
        x = message(3 * group + 5, DTYPES[case % 3], scale=2.0 ** (case % 9 - 4), content="outliers", seed=case)
        check(config, x, device, seed=case)


configs = st.builds(
    lambda group, **rest: GroupCodec(name="any", group=group, rotation_size=0, **rest),
    group=st.sampled_from(GROUPS),
    payload=st.sampled_from(PAYLOADS),
    rotation=st.sampled_from(ROTATIONS),
    scale=st.sampled_from(("fp32", "bf16", "e8m0")),
    adaptive_scale=st.booleans(),
    rounding=st.sampled_from(("nearest", "stochastic")),
)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(
    config=configs,
    numel=st.integers(1, 5000),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-30, 30),
    content=st.sampled_from(("noise", "outliers", "zeros", "subnormal", "nan", "inf", "-inf", "offset")),
    seed=st.integers(-(2**70), 2**70),
)
def test_any_message_equals_the_reference(device, config, numel, dtype, exponent, content, seed) -> None:
    x = message(numel, dtype, scale=2.0**exponent, content=content, seed=seed % 2**32)
    check(config, x, device, seed)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("payload", ["e4m3", "e5m2"])
def test_fp8_conversion_of_every_half(device: str, payload: str) -> None:
    """Every finite fp16 value, as the y that is rounded: a group whose absmax is T has scale 1."""
    top = 448.0 if payload == "e4m3" else 57344.0
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).float()
    every = every[every.abs() <= top]
    group = 16
    x = torch.full((-(-every.numel() // (group - 1)), group), top)
    x.view(-1)[torch.arange(x.numel()) % group != 0] = torch.cat(
        [every, every.new_zeros(len(x) * (group - 1) - every.numel())]
    )
    config = GroupCodec(name="every", payload=payload, group=group, rotation="none", scale="fp32")
    fp8 = torch.float8_e4m3fn if payload == "e4m3" else torch.float8_e5m2
    want = x.view(-1).to(fp8).view(torch.uint8)
    assert_bits_equal(cuda.encode(x.view(-1).to(device), config)[: x.numel()], want, "FP8 codes")


@pytest.mark.parametrize("device", DEVICES)
def test_empty_message(device: str) -> None:
    config = GroupCodec(name="empty")
    packet = cuda.encode(torch.empty(0, device=device), config)
    assert packet.numel() == 0
    assert cuda.decode(packet, config, 0, torch.float32).numel() == 0


@pytest.mark.parametrize("device", DEVICES)
def test_every_second_element_of_a_tensor(device: str) -> None:
    config = GroupCodec(name="strided")
    x = torch.randn(2000, device=device)
    assert_bits_equal(cuda.encode(x[::2], config), cuda.encode(x[::2].clone(), config), "encode of a strided view")


@pytest.mark.parametrize("device", DEVICES)
def test_operators_pass_opcheck(device: str) -> None:
    config = GroupCodec(name="check", rotation_size=64)
    x = torch.randn(1000, device=device)
    packet = cuda.encode(x, config)
    rotation, sections = ("int8", 128, 64, True), cuda._sections(config, 1000)
    ops = torch.ops.taco
    torch.library.opcheck(ops.encode, (x, *rotation, "bf16", False, False, 0, sections))
    torch.library.opcheck(ops.decode, (packet, 1000, torch.bfloat16, *rotation, "bf16", False, sections))
    packets = torch.stack([packet, packet])
    torch.library.opcheck(ops.decode_sum, (packets, 1000, torch.float32, *rotation, "bf16", False, sections))
    torch.library.opcheck(ops.decode_sum_encode, (packets, 1000, "int8", 128, "bf16", False, False, 0, sections))


@pytest.mark.parametrize("device", DEVICES)
def test_packets_of_another_size_are_refused(device: str) -> None:
    config = GroupCodec(name="short")
    packet = cuda.encode(torch.randn(1000, device=device), config)
    with pytest.raises(RuntimeError, match="got packets of another dtype, layout or size"):
        cuda.decode(packet, config, 2000, torch.float32)


@pytest.mark.gpu
def test_coder_runs_the_kernels_on_cuda() -> None:
    coder = GroupCoder(GroupCodec(name="auto"))
    x = torch.randn(33, 65, device="cuda", dtype=torch.bfloat16).t()
    packet = coder.encode(x)
    assert coder.path == "cuda"
    assert_bits_equal(packet, GroupCoder(coder.config, "reference").encode(x.cpu()), "encode of a transposed view")


@pytest.mark.gpu
def test_runs_on_the_current_stream_and_in_a_graph() -> None:
    config = GroupCodec(name="graph", rotation="hadamard", payload="e4m3", scale="fp32", adaptive_scale=True)
    x = torch.zeros(100_000, device="cuda")
    cuda.decode(cuda.encode(x, config), config, x.numel(), x.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = cuda.decode(cuda.encode(x, config), config, x.numel(), x.dtype)
    x.copy_(torch.randn(100_000))
    graph.replay()
    reference = GroupCoder(config, "reference")
    want = reference.decode(reference.encode(x.cpu()), x.numel(), x.dtype)
    assert_bits_equal(y, want, "replayed graph")


@pytest.mark.gpu
def test_runs_on_the_tensors_device_and_leaves_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    config = GroupCodec(name="second")
    x = torch.randn(5000, device="cuda:1")
    with torch.cuda.device(0):
        packet = cuda.encode(x, config)
        assert torch.cuda.current_device() == 0
    assert packet.device == x.device
    assert_bits_equal(packet, GroupCoder(config, "reference").encode(x.cpu()), "encode on the second GPU")


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_two_to_the_31_elements() -> None:
    """The last group of a 4 GiB message equals the same group alone; offsets beyond int32 would corrupt it."""
    config = GroupCodec(name="large", rotation="signed")
    numel = 2**31 + 128
    x = torch.zeros(numel, device="cuda", dtype=torch.bfloat16)
    x[-128:] = torch.randn(128, device="cuda", dtype=torch.bfloat16)
    packet = cuda.encode(x, config)
    alone = cuda.encode(x[-128:].clone(), config)
    assert_bits_equal(packet[numel - 128 : numel], alone[:128], "codes of the last group")
    y = cuda.decode(packet, config, numel, torch.bfloat16)
    assert_bits_equal(y[-128:], cuda.decode(alone, config, 128, torch.bfloat16), "values of the last group")
    assert not y[:-128].any()

"""The asymmetric codec's kernels equal asymmetric.py bit for bit, on a GPU and compiled for the host."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import DEVICES, DTYPES, assert_bits_equal, check_coder, message
from torch import Tensor

from taco.codec import cuda, minmax_cuda
from taco.codec.asymmetric import AsymmetricCoder
from taco.config import AsymmetricCodec

BITS = (4, 6, 8)
GROUPS = (16, 32, 64, 128, 256, 512)
METADATA = ("fp16", "bf16", "fp32")
CONTENTS = ("noise", "outliers", "zeros", "subnormal", "nan", "inf", "-inf", "offset", "constant", "signed zeros")

pytestmark = pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")


def content_rows(count: int, numel: int, dtype: torch.dtype, *, scale: float, content: str, seed: int) -> Tensor:
    """[count, numel] on the CPU of messages of one kind."""
    if content == "signed zeros":
        generator = torch.Generator().manual_seed(seed)
        return (0.0 * (torch.rand(count, numel, generator=generator) - 0.5)).to(dtype)
    x = torch.stack([message(numel, dtype, scale=scale, content=content, seed=seed + 7 * i) for i in range(count)])
    return x[:, :1].expand(-1, numel).clone() if content == "constant" else x


def at_offset(x: Tensor, device: str, offset: int) -> Tensor:
    """x on `device`, contiguous, `offset` elements behind an aligned address."""
    room = torch.empty(x.numel() + offset, dtype=x.dtype, device=device)
    room[offset:] = x.to(device).reshape(-1)
    return room[offset:].view(x.shape)


def check(config: AsymmetricCodec, rows: Tensor, device: str, offset: int = 0) -> None:
    """Encode, decode and both sums of `rows` [P, numel] against the reference on the CPU."""
    reference = AsymmetricCoder(config, "reference")
    (count, numel), dtype, what = rows.shape, rows.dtype, f"{config} {rows.dtype} {list(rows.shape)}"
    packets = reference.encode_rows(rows, [0] * count)
    there, before = at_offset(rows, device, offset), rows.clone()
    assert_bits_equal(minmax_cuda.encode(there, config), packets, f"encode {what}")
    assert_bits_equal(there, before, f"input of encode {what}")
    assert_bits_equal(
        minmax_cuda.decode_sum(packets[:, None].to(device), config, numel, dtype),
        reference.decode_rows(packets, numel, dtype),
        f"decode {what}",
    )
    others = (reference.encode_rows(y, [0] * count) for y in (rows.flip(1), 2 * rows))
    stacks = torch.stack([packets, *others], 1)
    assert_bits_equal(
        minmax_cuda.decode_sum(stacks.to(device), config, numel, dtype),
        torch.stack([reference.decode_sum(stack, numel, dtype) for stack in stacks]),
        f"decode_sum {what}",
    )
    assert_bits_equal(
        minmax_cuda.decode_sum_encode(stacks.to(device), config, numel),
        reference.decode_sum_encode_rows(stacks, numel, dtype, [0] * count),
        f"decode_sum_encode {what}",
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("metadata", METADATA)
def test_grid_equals_the_reference(device: str, bits: int, metadata: str) -> None:
    for case, (group, dtype, content) in enumerate(itertools.product(GROUPS, DTYPES, CONTENTS)):
        config = AsymmetricCodec(name="grid", bits=bits, group=group, metadata=metadata)
        numel = (3 * group, 2 * group + 1 + case % (group - 1), 17 * group + 8)[case % 3]
        x = content_rows(1 + case % 2, numel, dtype, scale=2.0 ** (case % 9 - 4), content=content, seed=case)
        check(config, x, device, offset=(0, 0, 1, 4)[case % 4])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("group", [16, 128])
def test_every_tail_equals_the_reference(device: str, group: int) -> None:
    config = AsymmetricCodec(name="tails", bits=6, group=group)
    for short in range(1, group):
        check(config, content_rows(2, group + short, torch.bfloat16, scale=1.0, content="offset", seed=short), device)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(
    config=st.builds(
        lambda **settings: AsymmetricCodec(name="any", **settings),
        bits=st.sampled_from(BITS), group=st.sampled_from(GROUPS), metadata=st.sampled_from(METADATA),
    ),
    count=st.integers(1, 4),
    numel=st.integers(1, 3000),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-140, 120),
    content=st.sampled_from(CONTENTS),
    offset=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_any_rows_equal_the_reference(device, config, count, numel, dtype, exponent, content, offset, seed) -> None:
    x = content_rows(count, numel, dtype, scale=2.0**exponent, content=content, seed=seed)
    check(config, x, device, offset)


@pytest.mark.parametrize("device", DEVICES)
def test_a_range_that_the_metadata_cannot_hold_is_nan(device: str) -> None:
    x = torch.tensor([[-1e6, 1.0] * 16 + [1.0, 2.0] * 16, [1e6, 1e6] * 16 + [-3e38, 3e38] * 16])
    for metadata in METADATA:
        check(AsymmetricCodec(name="wide", group=32, metadata=metadata), x, device)


@pytest.mark.parametrize("device", DEVICES)
def test_packets_may_lie_apart(device: str) -> None:
    config = AsymmetricCodec(name="apart", group=64)
    nbytes = AsymmetricCoder(config).nbytes(300, torch.float32)
    packets = minmax_cuda.encode(torch.randn(6, 300, device=device), config).view(2, 3, nbytes)
    want = minmax_cuda.decode_sum(packets, config, 300, torch.float32)
    for room, start in ((32, 16), (7, 3)):
        slots = torch.full((3, 2, nbytes + room), 255, dtype=torch.uint8, device=device).transpose(0, 1)
        slots[..., start : start + nbytes] = packets
        got = minmax_cuda.decode_sum(slots[..., start : start + nbytes], config, 300, torch.float32)
        assert_bits_equal(got, want, f"packets {nbytes + room} bytes apart")


@pytest.mark.parametrize("device", DEVICES)
def test_empty_messages(device: str) -> None:
    config = AsymmetricCodec(name="empty")
    packets = minmax_cuda.encode(torch.empty(2, 0, device=device), config)
    assert packets.shape == (2, 0)
    assert minmax_cuda.decode_sum(packets[:, None], config, 0, torch.float16).shape == (2, 0)
    assert minmax_cuda.encode(torch.empty(0, 5, device=device), config).shape[0] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_operators_pass_opcheck(device: str) -> None:
    rows = torch.randn(2, 1000, device=device)
    config = AsymmetricCodec(name="check", bits=6, group=32)
    packets = minmax_cuda.encode(rows, config)[:, None]
    ops, how = torch.ops.taco, (6, 32, minmax_cuda.METADATA["bf16"])
    torch.library.opcheck(ops.minmax_encode, (rows, *how))
    torch.library.opcheck(ops.minmax_decode_sum, (packets, 1000, torch.bfloat16, *how))
    torch.library.opcheck(ops.minmax_decode_sum_encode, (packets, 1000, *how))


@pytest.mark.parametrize("device", DEVICES)
def test_packets_of_another_size_are_refused(device: str) -> None:
    config = AsymmetricCodec(name="short")
    packets = minmax_cuda.encode(torch.randn(1, 1000, device=device), config)[:, None]
    with pytest.raises(RuntimeError, match="got packets of another dtype or size"):
        minmax_cuda.decode_sum(packets, config, 2000, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_coder_runs_the_kernels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: True)  # the host's build in place of a GPU's
    check_coder(AsymmetricCodec(name="auto"), device)


@pytest.mark.gpu
def test_runs_on_the_current_stream_and_in_a_graph() -> None:
    config = AsymmetricCodec(name="graph", bits=6, group=32, metadata="fp16")
    x = torch.zeros(2, 100_001, device="cuda", dtype=torch.bfloat16)
    minmax_cuda.decode_sum(minmax_cuda.encode(x, config)[None], config, x.shape[1], x.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packets = minmax_cuda.encode(x, config)[None]
        total = minmax_cuda.decode_sum(packets, config, x.shape[1], x.dtype)[0]
        again = minmax_cuda.decode_sum_encode(packets, config, x.shape[1])[0]
    x.copy_(torch.randn(x.shape))
    graph.replay()
    reference = AsymmetricCoder(config, "reference")
    want = reference.encode_rows(x.cpu(), [0, 0])
    assert_bits_equal(packets[0], want, "encode in a graph")
    assert_bits_equal(total, reference.decode_sum(want, x.shape[1], x.dtype), "decode_sum in a graph")
    assert_bits_equal(again, reference.decode_sum_encode(want, x.shape[1], x.dtype), "decode_sum_encode in a graph")


@pytest.mark.gpu
@pytest.mark.slow
def test_more_than_two_to_the_31_elements_and_many_rows() -> None:
    """The last group of a 4 GiB message equals the same group alone, and row 70000 of as many is like any other."""
    config = AsymmetricCodec(name="large", bits=8, group=128)
    numel = 2**31 + 128
    x = torch.zeros(1, numel, device="cuda", dtype=torch.bfloat16)
    x[:, -128:] = torch.randn(128, device="cuda", dtype=torch.bfloat16)
    packets, alone = minmax_cuda.encode(x, config), minmax_cuda.encode(x[:, -128:].clone(), config)
    assert_bits_equal(packets[:, numel - 128 : numel], alone[:, :128], "codes of the last group")
    y = minmax_cuda.decode_sum(packets[:, None], config, numel, torch.bfloat16)
    last = minmax_cuda.decode_sum(alone[:, None], config, 128, torch.bfloat16)
    assert_bits_equal(y[:, -128:], last, "values of the last group")
    assert not y[:, :-128].any()
    rows = torch.randn(70_001, 130, device="cuda")
    packets = minmax_cuda.encode(rows, config)
    assert_bits_equal(packets[-1:], minmax_cuda.encode(rows[-1:], config), "the last of many rows")

"""TAH-Quant's kernels equal tahquant.py bit for bit, on a GPU and compiled for the host."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import DEVICES, DTYPES, assert_bits_equal, check_coder
from test_minmax_cuda import CONTENTS, at_offset, content_rows
from torch import Tensor

from taco.codec import cuda, minmax_cuda, tahquant
from taco.codec.tahquant import TahQuantCoder
from taco.config import TahQuantCodec

TILES = (32, 64)
FRACTIONS = (0.0, 0.2, 0.5, 1.0)
KINDS = (*CONTENTS, "equal tiles", "spikes")

pytestmark = pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")


def tile_rows(count: int, numel: int, dtype: torch.dtype, *, scale: float, content: str, seed: int) -> Tensor:
    """[count, numel] on the CPU; 'equal tiles' have equal entropies, every other tile of 'spikes' has a pivot."""
    if content not in ("equal tiles", "spikes"):
        return content_rows(count, numel, dtype, scale=scale, content=content, seed=seed)
    x = content_rows(count, numel, torch.float32, scale=scale, content="noise", seed=seed)
    if content == "equal tiles":
        x = x[:, :64].repeat(1, -(-numel // 64))[:, :numel]
    else:
        x[:, seed % 32 :: 128] = -50 * scale
    return x.to(dtype)


def check(config: TahQuantCodec, rows: Tensor, device: str, offset: int = 0) -> None:
    """Encode, decode and both sums of `rows` [P, numel] against the reference on the CPU."""
    reference = TahQuantCoder(config, "reference")
    (count, numel), dtype, what = rows.shape, rows.dtype, f"{config} {rows.dtype} {list(rows.shape)}"
    low = reference._counts(numel)[1]
    packets = reference.encode_rows(rows, [0] * count)
    there, before = at_offset(rows, device, offset), rows.clone()
    assert_bits_equal(minmax_cuda.tahquant_encode(there, config, low), packets, f"encode {what}")
    assert_bits_equal(there, before, f"input of encode {what}")
    assert_bits_equal(
        minmax_cuda.tahquant_decode_sum(packets[:, None].to(device), config, low, numel, dtype),
        reference.decode_rows(packets, numel, dtype),
        f"decode {what}",
    )
    others = (reference.encode_rows(y, [0] * count) for y in (rows.flip(1), 2 * rows))
    stacks = torch.stack([packets, *others], 1)
    assert_bits_equal(
        minmax_cuda.tahquant_decode_sum(stacks.to(device), config, low, numel, dtype),
        torch.stack([reference.decode_sum(stack, numel, dtype) for stack in stacks]),
        f"decode_sum {what}",
    )
    assert_bits_equal(
        minmax_cuda.tahquant_decode_sum_encode(stacks.to(device), config, low, numel),
        reference.decode_sum_encode_rows(stacks, numel, dtype, [0] * count),
        f"decode_sum_encode {what}",
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("fraction", FRACTIONS)
def test_grid_equals_the_reference(device: str, tile: int, fraction: float) -> None:
    for case, (dtype, content, ratio) in enumerate(itertools.product(DTYPES, KINDS, (0.9, 1.0, 2.0))):
        config = TahQuantCodec(name="grid", tile=tile, low_fraction=fraction, pivot_ratio=ratio)
        numel = (30 * tile, 2 * tile + 1 + case % (tile - 1), 1000 * tile + 8)[case % 3]
        x = tile_rows(1 + case % 2, numel, dtype, scale=2.0 ** (case % 9 - 4), content=content, seed=case)
        check(config, x, device, offset=(0, 0, 1, 4)[case % 4])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("tile", TILES)
def test_every_tail_equals_the_reference(device: str, tile: int) -> None:
    config = TahQuantCodec(name="tails", tile=tile, low_fraction=0.5)
    for short in range(1, tile):
        check(config, tile_rows(2, tile + short, torch.bfloat16, scale=1.0, content="offset", seed=short), device)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None)
@given(
    config=st.builds(
        lambda **settings: TahQuantCodec(name="any", **settings),
        tile=st.sampled_from(TILES), low_fraction=st.floats(0, 1), pivot_ratio=st.sampled_from((0.5, 1.0, 1.3, 2.0)),
    ),
    count=st.integers(1, 4),
    numel=st.integers(1, 5000),
    dtype=st.sampled_from(DTYPES),
    exponent=st.integers(-140, 120),
    content=st.sampled_from(KINDS),
    offset=st.integers(0, 8),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_any_rows_equal_the_reference(device, config, count, numel, dtype, exponent, content, offset, seed) -> None:
    x = tile_rows(count, numel, dtype, scale=2.0**exponent, content=content, seed=seed)
    check(config, x, device, offset)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("content", ["noise", "equal tiles"])
def test_messages_of_many_blocks_equal_the_reference(device: str, content: str) -> None:
    config = TahQuantCodec(name="long")
    for count, numel in ((1, 3_000_001), (3, 500_000), (700, 333)):
        check(config, tile_rows(count, numel, torch.bfloat16, scale=1.0, content=content, seed=count), device)


@pytest.mark.parametrize("device", DEVICES)
def test_both_signs_and_all_exponents_of_a_share(device: str) -> None:
    """A tile of one number and 63 of another: their ratio takes every exponent, so the logarithm's range is covered."""
    x = torch.ones(250, 64)
    x[:, 0] = -(2.0 ** torch.arange(-125.0, 125.0)) * 1.3
    check(TahQuantCodec(name="shares", low_fraction=0.5), x.view(1, -1), device)


def test_the_logarithm_is_as_accurate_as_it_says() -> None:
    x = torch.arange(0x00800000, 0x3F800100, 1009, dtype=torch.int32).view(torch.float32)
    got, want = tahquant.logarithm(x).double(), x.double().log()
    assert ((got - want).abs() <= 1e-6 * want.abs()).all()


@pytest.mark.parametrize("device", DEVICES)
def test_empty_messages(device: str) -> None:
    config = TahQuantCodec(name="empty")
    packets = minmax_cuda.tahquant_encode(torch.empty(2, 0, device=device), config, 0)
    assert packets.shape == (2, 0)
    assert minmax_cuda.tahquant_decode_sum(packets[:, None], config, 0, 0, torch.float16).shape == (2, 0)
    assert minmax_cuda.tahquant_encode(torch.empty(0, 5, device=device), config, 0).shape[0] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_operators_pass_opcheck(device: str) -> None:
    rows = torch.randn(2, 1000, device=device)
    packets = minmax_cuda.tahquant_encode(rows, TahQuantCodec(name="check"), 3)[:, None]
    ops = torch.ops.taco
    torch.library.opcheck(ops.tahquant_encode, (rows, 64, 3, 2.0))
    torch.library.opcheck(ops.tahquant_decode_sum, (packets, 1000, torch.bfloat16, 64, 3))
    torch.library.opcheck(ops.tahquant_decode_sum_encode, (packets, 1000, 64, 3, 2.0))


@pytest.mark.parametrize("device", DEVICES)
def test_a_damaged_head_is_decoded_within_the_packet(device: str) -> None:
    config = TahQuantCodec(name="damaged")
    packets = minmax_cuda.tahquant_encode(torch.randn(1, 6400, device=device), config, 20)[:, None]
    for value in (0, 255):
        damaged = torch.full_like(packets, value)
        assert minmax_cuda.tahquant_decode_sum(damaged, config, 20, 6400, torch.float32).shape == (1, 6400)


@pytest.mark.parametrize("device", DEVICES)
def test_more_packets_than_a_sum_takes_are_refused(device: str) -> None:
    config = TahQuantCodec(name="many")
    packet = minmax_cuda.tahquant_encode(torch.randn(1, 64, device=device), config, 0)
    with pytest.raises(RuntimeError, match="got sums of 513 packets; need at most 512"):
        minmax_cuda.tahquant_decode_sum(packet.expand(1, 513, -1), config, 0, 64, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_coder_runs_the_kernels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: True)  # the host's build in place of a GPU's
    check_coder(TahQuantCodec(name="auto"), device)


@pytest.mark.gpu
def test_runs_on_the_current_stream_and_in_a_graph() -> None:
    config, numel = TahQuantCodec(name="graph"), 300_001
    coder = TahQuantCoder(config, "cuda")
    x = torch.zeros(2, numel, device="cuda", dtype=torch.bfloat16)
    coder.decode_sum(coder.encode_rows(x, [0, 0]), numel, x.dtype)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packets = coder.encode_rows(x, [0, 0])
        total = coder.decode_sum(packets, numel, x.dtype)
        again = coder.decode_sum_encode(packets, numel, x.dtype)
    reference = TahQuantCoder(config, "reference")
    for seed in range(3):
        x.copy_(tile_rows(2, numel, x.dtype, scale=1.0, content="noise", seed=seed))
        graph.replay()
        want = reference.encode_rows(x.cpu(), [0, 0])
        assert_bits_equal(packets, want, "encode in a graph")
        assert_bits_equal(total, reference.decode_sum(want, numel, x.dtype), "decode_sum in a graph")
        assert_bits_equal(again, reference.decode_sum_encode(want, numel, x.dtype), "decode_sum_encode in a graph")


@pytest.mark.gpu
def test_streams_do_not_share_scratch() -> None:
    config, numel = TahQuantCodec(name="streams"), 1_000_000
    low, streams = numel // 64 // 5, [torch.cuda.Stream() for _ in range(4)]
    x = torch.randn(4, numel, device="cuda", dtype=torch.bfloat16)
    want = minmax_cuda.tahquant_encode(x, config, low)
    torch.cuda.synchronize()
    got = []
    for i in range(20):
        with torch.cuda.stream(streams[i % 4]):
            got.append(minmax_cuda.tahquant_encode(x[i % 4 : i % 4 + 1], config, low))
    torch.cuda.synchronize()
    for i, packet in enumerate(got):
        assert_bits_equal(packet, want[i % 4 : i % 4 + 1], f"encode {i} on one of four streams")

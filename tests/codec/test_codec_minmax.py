"""Min/max coders: rounding directions, fp16 range, TAH-Quant's allocation and pivots."""

from __future__ import annotations

import math

import pytest
import torch

from taco.codec import asymmetric, coder, tahquant, wire
from taco.config import AsymmetricCodec, TahQuantCodec
from taco.recipes import PRESETS


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_toward_a_side_is_the_nearest_value_there(dtype):
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    every = every[every.isfinite()].float().unique()
    between = every[1:] / 2 + every[:-1] / 2
    assert torch.equal(asymmetric.toward(between, dtype, up=True).float(), every[1:])
    assert torch.equal(asymmetric.toward(between, dtype, up=False).float(), every[:-1])
    for up in (True, False):
        assert torch.equal(asymmetric.toward(every, dtype, up=up).float(), every)


def test_the_least_of_both_zeros_is_stored_as_plus_zero():
    for metadata in ("fp16", "bf16", "fp32"):
        codec = AsymmetricCodec(name="x", group=16, metadata=metadata)
        packets = coder(codec).encode_rows(torch.tensor([[0.0, -0.0] * 8, [-0.0, 0.0] * 8, [-0.0] * 16]), [0] * 3)
        assert not packets.any()


def test_fp32_metadata_is_kept():
    x = randn(10)
    assert torch.equal(asymmetric.toward(x, torch.float32, up=True), x)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_grid_values_are_exact(bits):
    codec = AsymmetricCodec(name="x", bits=bits, group=512, metadata="bf16")
    x = torch.arange(512).remainder(2**bits).float() * 0.5 - 4
    assert torch.equal(coder(codec).roundtrip(x), x)


def test_a_constant_is_kept_through_the_step():
    x = torch.full((128,), 1.2345)
    torch.testing.assert_close(coder(PRESETS["flash-int8"]).roundtrip(x), x, rtol=1e-4, atol=0)


def test_a_short_last_group_keeps_its_own_range():
    x = 100 + randn(5)
    y = coder(AsymmetricCodec(name="x", metadata="fp32")).roundtrip(x)
    # zeros as filling would stretch the range to 100 and the step to 0.4
    assert (x - y).abs().max() <= 0.5 * (x.max() - x.min()) / 255 + 1e-5


def test_a_range_beyond_the_metadata_is_nan_not_clipped():
    y = coder(PRESETS["tahquant-backward"]).roundtrip(torch.tensor([-1e6, 1.0] * 16 + [1.0, 2.0] * 16))
    assert y[:32].isnan().all()
    assert y[32:].isfinite().all()
    wide = coder(PRESETS["flash-int8"]).roundtrip(torch.tensor([3e38, -3e38]))
    assert wide.isnan().all()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_planes_hold_every_value(width):
    values = (torch.arange(256) % 2**width).to(torch.uint8)
    packed = wire.pack(values, width)
    assert packed.numel() == 256 * width // 8
    assert torch.equal(wire.unpack(packed, width), values)


def test_plane_bytes():
    values = torch.tensor([1, 2, 3, 0, 3, 2, 1, 0], dtype=torch.uint8)
    assert wire.pack(values, 2).tolist() == [1 | 2 << 2 | 3 << 4, 3 | 2 << 2 | 1 << 4]
    assert wire.pack(values, 4).tolist() == [0x21, 0x03, 0x23, 0x01]
    assert wire.pack(values & 1, 1).tolist() == [0b01010101]


@pytest.mark.parametrize("name", ["flash-int8", "tahquant"])
def test_kernels_that_cannot_run_are_not_replaced(name):
    with pytest.raises(RuntimeError, match=r"need a CUDA tensor.*`taco kernels build`.*backend='reference'"):
        coder(PRESETS[name], "cuda").encode(randn(64))


# --- TAH-Quant -------------------------------------------------------------------------------------


def test_entropy_is_that_of_magnitude_shares():
    tile = torch.tensor([[1.0, 5.0, 0.0, math.nan], [-1.0, 0.0, 0.0, 1.0]])
    assert tahquant.entropies(tile).tolist() == pytest.approx([math.log(2), 0.0, 0.0, -1.0])


def _head(x: torch.Tensor, codec: TahQuantCodec) -> torch.Tensor:
    form = coder(codec)._layout(x.numel())
    return form.section(coder(codec).encode(x), "head")


def test_the_tiles_of_lowest_entropy_get_three_bits():
    codec = TahQuantCodec(name="x")
    x = randn(10, 64)
    x[3, 4:], x[7, 10:] = 0.0, 0.0
    low = (_head(x, codec) & tahquant.INT3) != 0
    assert low.tolist() == [i in (3, 7) for i in range(10)]


def test_equal_entropies_go_to_the_earlier_tile():
    x = randn(64).repeat(5000)
    low = (_head(x, TahQuantCodec(name="x")) & tahquant.INT3) != 0
    assert low[:1000].all()
    assert not low[1000:].any()


@pytest.mark.parametrize(("fraction", "low"), [(0.0, 0), (0.19, 1), (0.5, 5), (1.0, 10)])
def test_the_share_of_three_bit_tiles_is_rounded_down(fraction, low):
    head = _head(randn(640), TahQuantCodec(name="x", low_fraction=fraction))
    assert int(((head & tahquant.INT3) != 0).sum()) == low


def test_a_pivot_is_sent_with_its_index_and_rotated():
    x = torch.full((2, 64), 1.0) + 0.1 * randn(2, 64)
    x[0, 37] = -3.0
    x[1, 5] = 1.9 * float(x[1].abs().max())
    head = _head(x, TahQuantCodec(name="x"))
    assert head[0] & tahquant.ROTATED
    assert head[0] & tahquant.INDEX == 37
    assert not head[1] & (tahquant.ROTATED | tahquant.INDEX)


def test_the_rotation_rescues_the_elements_beside_a_pivot():
    x = 0.1 * randn(64)
    x[20] = 10.0
    on = coder(TahQuantCodec(name="on")).roundtrip(x)
    off = coder(TahQuantCodec(name="off", pivot_ratio=1e9)).roundtrip(x)
    keep = torch.arange(64) != 20
    assert (on - x)[keep].norm() < 0.7 * (off - x)[keep].norm()
    assert on[20] == pytest.approx(10.0, rel=0.05)


def test_swapping_twice_changes_nothing():
    x, index = randn(8, 5), torch.tensor([0, 3, 7, 1, 0])
    swapped = tahquant.swap_first(x, index)
    assert torch.equal(swapped[0], x.gather(0, index[None])[0])
    assert torch.equal(tahquant.swap_first(swapped, index), x)


def test_a_tile_that_is_not_finite_takes_three_bits_and_leaves_others_alone():
    x = randn(10, 64)
    x[4, 9] = math.inf
    head = _head(x, TahQuantCodec(name="x", low_fraction=0.1))
    assert ((head & tahquant.INT3) != 0).nonzero().flatten().tolist() == [4]
    y = coder(TahQuantCodec(name="x", low_fraction=0.1)).roundtrip(x)
    assert y[4].isnan().all()
    assert y.isfinite().all(1).sum() == 9

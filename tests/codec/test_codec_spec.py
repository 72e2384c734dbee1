"""The reference gives the bits of an independent, scalar statement of the group codec."""

from __future__ import annotations

import itertools
import math

import codec_spec as spec
import numpy as np
import pytest
import torch

from taco.codec import coder, reference, wire
from taco.config import GroupCodec
from taco.recipes import PRESETS

AXES = {
    "payload": ("e4m3", "e5m2", "int8", "int6", "int4"),
    "scale": ("fp32", "bf16", "e8m0"),
    "rotation": ("none", "hadamard", "signed"),
    "rounding": ("nearest", "stochastic"),
}


def _data(seed: int, numel: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator) * torch.randn(numel, generator=generator).exp()
    x[3], x[7:9] = 0.0, -0.0
    return x


@pytest.mark.parametrize(("payload", "scale", "rotation", "rounding"), list(itertools.product(*AXES.values())))
def test_packets_equal_the_scalar_statement_bit_for_bit(payload, scale, rotation, rounding):
    for adaptive, rotation_size, numel in ((False, 0, 75), (True, 16, 64), (True, 0, 40)):
        config = GroupCodec(
            name="x", payload=payload, group=32, rotation=rotation, rotation_size=rotation_size, scale=scale,
            adaptive_scale=adaptive, rounding=rounding,
        )  # fmt: skip
        # rms above 0.45, so that alpha is not at its clamp
        x = 4 * _data(numel, numel)
        packet = coder(config).encode(x, seed=12345)
        assert packet.numpy().tobytes() == spec.encode(x.numpy(), config, 12345)


@pytest.mark.parametrize(("scale", "rotation", "rounding"), list(itertools.product(*list(AXES.values())[1:])))
@pytest.mark.parametrize("payload", ["int8", "int6", "int4"])
def test_clipped_packets_equal_the_scalar_statement_bit_for_bit(payload, scale, rotation, rounding):
    for clip, adaptive, rotation_size, numel in ((0.8, False, 0, 75), (0.45, True, 16, 64), (0.95, True, 0, 40)):
        config = GroupCodec(
            name="x", payload=payload, group=32, rotation=rotation, rotation_size=rotation_size, scale=scale,
            adaptive_scale=adaptive, rounding=rounding, clip=clip,
        )  # fmt: skip
        x = 4 * _data(numel, numel)
        packet = coder(config).encode(x, seed=12345)
        assert packet.numpy().tobytes() == spec.encode(x.numpy(), config, 12345)


@pytest.mark.parametrize("rounding", AXES["rounding"])
@pytest.mark.parametrize(("payload", "top"), [("int8", 127), ("int6", 31), ("int4", 7)])
def test_elements_beyond_the_clipped_range_become_its_ends(payload, top, rounding):
    config = GroupCodec(name="x", payload=payload, group=32, rotation="none", scale="fp32", rounding=rounding, clip=0.5)
    x = torch.zeros(96)
    # a step is 1: half of the absmax is the last code
    x[:6] = torch.tensor([2 * top, -2 * top, top + 0.6, -top - 0.6, top, -top])
    x[32:64], x[65] = -2.0, math.nan
    packet = coder(config).encode(x, seed=3)
    y = coder(config).decode(packet, 96, x.dtype)
    assert torch.equal(y[:6], top * torch.tensor([1.0, -1.0] * 3))
    assert not y[6:32].any()
    torch.testing.assert_close(y[32:64], torch.full((32,), -1.0))
    assert y[64:].isnan().all()
    summed = coder(config).decode_sum_encode(torch.stack([packet, packet]), 96, x.dtype)
    # the sum of two, clipped once more
    assert torch.equal(coder(config).decode(summed, 96, x.dtype)[:6], y[:6])


@pytest.mark.parametrize("rounding", AXES["rounding"])
def test_a_range_of_almost_nothing_leaves_signs(rounding):
    x = 1e30 * _data(5, 64)
    config = GroupCodec(name="x", group=32, rotation="none", rounding=rounding, clip=1e-30)
    packet = coder(config).encode(x)
    values = reference.load_payload(packet[:64], "int8")
    assert torch.equal(values, 127 * x.sign())
    assert coder(config).decode(packet, 64, x.dtype).isfinite().all()


def test_a_clip_of_1_gives_the_bits_of_none():
    for payload in AXES["payload"]:
        config = GroupCodec(name="x", payload=payload, group=32, clip=1)
        x = _data(3, 300)
        x[40], x[70] = math.nan, -math.inf
        assert torch.equal(coder(config).encode(x), coder(GroupCodec(name="x", payload=payload, group=32)).encode(x))


@pytest.mark.parametrize("name", ["taco", "taco-e5m2", "int8", "int6", "int4", "fp8", "mxfp8", "sdp4bit-gradient"])
def test_presets_equal_the_scalar_statement_for_gradients_of_1e_minus_6(name):
    x = 1e-6 * _data(1, 300)
    assert coder(PRESETS[name]).encode(x).numpy().tobytes() == spec.encode(x.numpy(), PRESETS[name], 0)


def test_zero_groups_between_others_equal_the_scalar_statement():
    x = _data(2, 128)
    x[32:64] = 0.0
    for scale in AXES["scale"]:
        config = GroupCodec(name="x", group=32, scale=scale)
        assert coder(config).encode(x).numpy().tobytes() == spec.encode(x.numpy(), config, 0)


@pytest.mark.parametrize(("scale", "nan"), [("fp32", "0000c07f"), ("bf16", "c07f"), ("e8m0", "ff")])
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [1.0, 0.7])
def test_a_group_that_is_not_finite_has_codes_0_scale_nan_and_alpha_1(scale, nan, bad, clip):
    x = _data(4, 96)
    x[40] = bad
    config = GroupCodec(name="x", group=32, scale=scale, adaptive_scale=True, clip=clip)
    form = wire.group_layout(config, 96)
    sections = {n: form.section(coder(config).encode(x), n).numpy().tobytes() for n in form.names}
    assert sections["payload8"][32:64] == bytes(32)
    width = len(sections["scale"]) // 3
    assert sections["scale"][width : 2 * width] == bytes.fromhex(nan)
    assert sections["alpha"][4:8] == np.float32(1).tobytes()


@pytest.mark.parametrize("payload", ["e4m3", "e5m2"])
def test_every_float8_value_survives(payload):
    codes = [
        c
        for c in range(256)
        if np.isfinite(spec.float8_value(c, payload)) and (c & 127) <= (0x7E if payload == "e4m3" else 0x7B)
    ]
    values = torch.tensor([spec.float8_value(c, payload) for c in codes])
    assert reference.round_payload(values, payload, None).tolist() == codes
    assert torch.equal(reference.load_payload(torch.tensor(codes, dtype=torch.uint8), payload), values)


@pytest.mark.parametrize("size", [16, 64, 256])
def test_the_transform_is_the_sylvester_matrix(size):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    z = torch.randn(size, 5, generator=torch.Generator().manual_seed(0))
    # fp32 butterflies lose about one rounding a stage
    torch.testing.assert_close(reference.fwht(z, size).double(), matrix @ z.double() / size**0.5, rtol=0, atol=4e-6)


def test_signs_spread_a_constant():
    for size in (16, 32, 64, 128, 256, 512, 1024, 2048):
        signs = reference.signs(size, torch.device("cpu"))
        # a constant becomes one spike of sqrt(size) without signs; random signs leave about sqrt(2 ln size)
        assert reference.fwht(signs, size).abs().max() < 1.4 * (2 * np.log(size)) ** 0.5


def test_uniform_numbers_depend_on_index_and_seed_beyond_32_bits():
    device = torch.device("cpu")
    start = 2**32 - 2
    u = reference.uniform(7, start, 4, device)
    assert u.tolist() == [float(spec.uniform(7, start + i)) for i in range(4)]
    assert not torch.equal(reference.uniform(7, 0, 4, device), reference.uniform(7, 2**32, 4, device))
    many = reference.uniform(3, 0, 1 << 16, device)
    assert many.min() >= 0
    assert many.max() < 1
    # mean of n uniforms: standard deviation 1/sqrt(12 n) = 0.0011
    assert abs(float(many.mean()) - 0.5) < 0.005

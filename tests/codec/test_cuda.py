"""The kernels equal the reference bit for bit: on a GPU, and without one the same source compiled for the host."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernel_cases import DEVICES, DTYPES, GROUPS, PAYLOADS, ROTATIONS, assert_bits_equal, check, configs, message
from torch import library

from taco.codec import cuda
from taco.codec.group import GroupCoder
from taco.config import GroupCodec
from taco.recipes import PRESETS

pytestmark = pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("rotation", ROTATIONS)
def test_grid_equals_the_reference(device: str, payload: str, rotation: str) -> None:
    grid = itertools.product(GROUPS, ("fp32", "bf16", "e8m0"), (False, True), ("nearest", "stochastic"))
    for case, (group, scale, adaptive, rounding) in enumerate(grid):
        config = GroupCodec(
            name="grid", payload=payload, group=group, rotation=rotation, scale=scale, adaptive_scale=adaptive,
            rotation_size=(0, 16, max(16, group // 2))[case // 3 % 3], rounding=rounding,
        )  # fmt: skip
        x = message(3 * group + 5, DTYPES[case % 3], scale=2.0 ** (case % 9 - 4), content="outliers", seed=case)
        check(config, x, device, seed=case)


PRESET_GRID = [
    PRESETS[name] for name in ("taco", "taco-e5m2", "int8", "int6", "int4", "fp8", "mxfp8", "sdp4bit-gradient")
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config", PRESET_GRID, ids=lambda c: c.name)
@pytest.mark.parametrize("numel", [1, 4096, 4097, 12_288, 70_001])
def test_presets_equal_the_reference(device: str, config: GroupCodec, numel: int) -> None:
    """Presets on bf16 have kernels of their own, which take whole steps and their remainder by different paths."""
    for dtype in DTYPES:
        x = message(numel, dtype, scale=0.02, content="outliers", seed=numel)
        check(config, x, device, seed=0)
        check(config, message(numel, dtype, scale=2.0, content="nan", seed=numel), device, seed=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config", PRESET_GRID, ids=lambda c: c.name)
def test_sums_of_the_largest_numbers_equal_the_reference(device: str, config: GroupCodec) -> None:
    """Products of codes and scales overflow, sums with what is there before need not."""
    reference, codec = GroupCoder(config, "reference"), cuda.number(config)
    x = torch.zeros(3000, dtype=torch.bfloat16)
    x[::128], x[1::128], x[5::97] = -1e38, 3.38e38, 2.6e36
    packets = torch.stack([reference.encode(sign * x) for sign in (1, -1, 1)] + [reference.encode(0.5 * x)])
    on_device = packets.to(device)
    want = reference.decode_sum(packets, 3000, x.dtype)
    assert_bits_equal(cuda.decode_sum(on_device, codec, 3000, x.dtype), want, f"decode_sum {config.name}")
    want = reference.decode_sum_encode(packets, 3000, x.dtype)
    assert_bits_equal(cuda.decode_sum_encode(on_device, codec, codec, 3000), want, f"decode_sum_encode {config.name}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("config", [PRESETS["taco"], PRESETS["int6"], PRESETS["int4"]], ids=lambda c: c.name)
def test_every_tail(device: str, config: GroupCodec) -> None:
    for tail in range(1, config.group):
        check(config, message(config.group + tail, torch.bfloat16, scale=1.0, content="noise", seed=tail), device, 0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_unaligned_storage(device: str, dtype: torch.dtype) -> None:
    for config in (PRESETS["taco"], PRESETS["int8"], PRESETS["mxfp8"]):
        for offset in range(1, 9):
            whole = message(9000 + offset, dtype, scale=1.0, content="outliers", seed=offset)
            x = whole.to(device)[offset:]
            want = GroupCoder(config, "reference").encode(whole[offset:])
            assert_bits_equal(cuda.encode(x, cuda.number(config)), want, f"encode at offset {offset}")


@pytest.mark.parametrize("device", DEVICES)
def test_packets_that_lie_apart(device: str) -> None:
    config = PRESETS["int8"]
    coder, codec = GroupCoder(config, "reference"), cuda.number(config)
    packets = coder.encode_rows(torch.randn(6, 1000), [0] * 6).view(3, 2, -1)
    slots = torch.zeros(3, 4, packets.shape[2] + 48, dtype=torch.uint8)
    slots[:, 1:3, 16:-32] = packets
    apart = slots.to(device)[:, 1:3, 16:-32]
    want = torch.stack([coder.decode_sum(each, 1000, torch.float32) for each in packets])
    assert_bits_equal(cuda.decode_sum(apart, codec, 1000, torch.float32), want, "decode_sum of slots")
    unaligned = torch.cat([torch.zeros(8, dtype=torch.uint8), packets[0].view(-1)]).to(device)[8:].view(2, -1)
    assert_bits_equal(cuda.decode_sum(unaligned, codec, 1000, torch.float32), want[0], "decode_sum off a word")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", ["int8", "int6", "int4"])
def test_sums_into_fewer_bits(device: str, target: str) -> None:
    source = GroupCodec(name="in", payload="int8", rotation="hadamard", rotation_size=32, scale="fp32")
    result = GroupCodec(name="out", payload=target, rotation="hadamard", rotation_size=32, scale="bf16")
    reference = GroupCoder(source, "reference")
    packets = reference.encode_rows(torch.randn(4, 3001), [0] * 4)
    want = reference.sum_into(GroupCoder(result, "reference"), packets, 3001)
    got = cuda.decode_sum_encode(packets.to(device), cuda.number(source), cuda.number(result), 3001)
    assert_bits_equal(got, want, f"sum into {target}")


@pytest.mark.parametrize("device", DEVICES)
def test_pairs_without_a_kernel_are_refused(device: str) -> None:
    source, result = GroupCodec(name="in", payload="int6"), GroupCodec(name="out", payload="int4")
    packets = cuda.encode_rows(torch.randn(1, 256, device=device), cuda.number(source))
    with pytest.raises(RuntimeError, match="other pairs have no kernel"):
        cuda.decode_sum_encode(packets, cuda.number(source), cuda.number(result), 256)


@pytest.mark.parametrize("device", DEVICES)
def test_more_rows_than_seeds_or_a_grid_hold(device: str) -> None:
    config = GroupCodec(name="rows", group=32, rounding="stochastic")
    rows, seeds = torch.randn(70, 40), list(range(70))
    want = GroupCoder(config, "reference").encode_rows(rows, seeds)
    assert_bits_equal(cuda.encode_rows(rows.to(device), cuda.number(config), seeds), want, "encode of 70 rows")
    nearest = GroupCodec(name="rows", group=32)
    rows = torch.randn(70_001, 33)
    want = GroupCoder(nearest, "reference").encode_rows(rows, [0] * len(rows))
    got = cuda.encode_rows(rows.to(device), cuda.number(nearest))
    assert_bits_equal(got, want, "encode of 70001 rows")
    back = cuda.decode_sum(got.unsqueeze(1), cuda.number(nearest), 33, torch.float32)
    assert_bits_equal(
        back, GroupCoder(nearest, "reference").decode_rows(want, 33, torch.float32), "decode of 70001 rows"
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_scales_of_every_kind_of_absmax(device: str, payload: str) -> None:
    """absmax / T is a product and a correction: mantissas all over, exponents to both ends."""
    config = GroupCodec(name="scales", payload=payload, group=32, rotation="none", scale="fp32")
    mantissa = torch.arange(0, 2**23, 2039, dtype=torch.int32)
    x = torch.cat([(mantissa | (e << 23)).view(torch.float32) for e in (0, 1, 30, 37, 38, 127, 200, 254)])
    rows = torch.zeros(len(x), 32)
    rows[:, 5] = x
    flat = rows.view(-1)
    want = GroupCoder(config, "reference").encode(flat)
    assert_bits_equal(cuda.encode(flat.to(device), cuda.number(config)), want, "scales")


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
    group = 32
    x = torch.full((-(-every.numel() // (group - 1)), group), top)
    x.view(-1)[torch.arange(x.numel()) % group != 0] = torch.cat(
        [every, every.new_zeros(len(x) * (group - 1) - every.numel())]
    )
    config = GroupCodec(name="every", payload=payload, group=group, rotation="none", scale="fp32")
    fp8 = torch.float8_e4m3fn if payload == "e4m3" else torch.float8_e5m2
    want = x.view(-1).to(fp8).view(torch.uint8)
    got = cuda.encode(x.to(device), cuda.number(config))
    assert_bits_equal(got[: x.numel()], want, "FP8 codes")


@pytest.mark.parametrize("device", DEVICES)
def test_empty_messages(device: str) -> None:
    codec = cuda.number(GroupCodec(name="empty"))
    packets = cuda.encode_rows(torch.empty(3, 0, device=device), codec)
    assert packets.shape == (3, 0)
    assert cuda.decode_sum(packets.unsqueeze(1), codec, 0, torch.float32).shape == (3, 0)
    assert cuda.encode_rows(torch.empty(0, 100, device=device), codec).shape[0] == 0
    assert cuda.encode(torch.empty(0, device=device), codec).shape == (0,)


@pytest.mark.parametrize("device", DEVICES)
def test_every_second_element_of_a_tensor(device: str) -> None:
    codec = cuda.number(GroupCodec(name="strided"))
    x = torch.randn(1, 2000, device=device)
    assert_bits_equal(cuda.encode(x[:, ::2], codec), cuda.encode(x[:, ::2].clone(), codec), "encode of a strided view")


@given(config=configs)
def test_a_codec_number_holds_the_codec(config) -> None:
    codec = cuda.number(config)
    assert cuda.number(cuda.config_of(codec)) == codec
    assert cuda.config_of(codec).payload == config.payload


@pytest.mark.parametrize("device", DEVICES)
def test_operators_pass_opcheck(device: str) -> None:
    codec = cuda.number(GroupCodec(name="check", rotation_size=64))
    rows = torch.randn(2, 1000, device=device)
    packets = cuda.encode_rows(rows, codec)
    ops = torch.ops.taco
    library.opcheck(ops.encode, (rows, True, codec, []))
    library.opcheck(ops.encode, (rows, False, codec, []))
    library.opcheck(ops.decode_sum, (packets.unsqueeze(1), 1000, torch.bfloat16, codec))
    library.opcheck(ops.decode_sum, (packets, 1000, torch.float32, codec))
    library.opcheck(ops.decode_sum_encode, (packets.unsqueeze(0), 1000, codec, codec, []))
    library.opcheck(ops.decode_sum_encode, (packets, 1000, codec, codec, []))


@pytest.mark.parametrize("device", DEVICES)
def test_packets_of_another_size_are_refused(device: str) -> None:
    codec = cuda.number(GroupCodec(name="short"))
    packets = cuda.encode_rows(torch.randn(1, 1000, device=device), codec)
    with pytest.raises(RuntimeError, match="got packets of another dtype or size"):
        cuda.decode_sum(packets.unsqueeze(1), codec, 2000, torch.float32)


@pytest.mark.parametrize("device", DEVICES)
def test_another_number_is_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match="got another codec number"):
        torch.ops.taco.encode(torch.randn(64, device=device), False, 7, [])

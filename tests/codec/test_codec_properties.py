"""Properties of the codecs over shape, type and content."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taco.codec import coder
from taco.config import AsymmetricCodec, GroupCodec, TahQuantCodec

TOP = {"e4m3": 448, "e5m2": 57344, "int8": 127, "int6": 31, "int4": 7}
# largest growth of a scale by rounding it up
ROUND_UP = {"fp32": 1.0, "bf16": 1 + 2**-7, "e8m0": 2.0}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
quick = settings(max_examples=60, deadline=None, derandomize=True)


@st.composite
def group_codecs(draw, rounding: tuple[str, ...] = ("nearest", "stochastic")) -> GroupCodec:
    group = draw(st.sampled_from((32, 64, 128, 256)))
    payload = draw(st.sampled_from(tuple(TOP)))
    return GroupCodec(
        name="drawn",
        payload=payload,
        clip=draw(st.sampled_from((1.0, 0.95, 0.5) if payload.startswith("int") else (1.0,))),
        group=group,
        rotation=draw(st.sampled_from(("none", "hadamard", "signed"))),
        rotation_size=draw(st.sampled_from((0, 16, group))),
        scale=draw(st.sampled_from(tuple(ROUND_UP))),
        adaptive_scale=draw(st.booleans()),
        rounding=draw(st.sampled_from(rounding)),
    )


@st.composite
def tensors(draw, group: int, dtypes: tuple[torch.dtype, ...] = DTYPES) -> torch.Tensor:
    numel = draw(st.sampled_from((1, 2, group - 1, group, group + 1, 3 * group + group // 2)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    content = draw(st.sampled_from(("normal", "zeros", "offset", "spikes", "some zeros", "one spike")))
    x = torch.randn(numel, generator=generator)
    if content == "zeros":
        x = torch.zeros(numel)
    if content == "offset":
        x = x + 30
    if content == "spikes":
        x = torch.where(x.abs() > 2, 1000 * x, x)
    if content == "some zeros":
        x = torch.where(x > 0, x, 0.0)
    if content == "one spike":
        x = torch.zeros(numel).index_fill(0, torch.tensor([numel // 2]), -7.0)
    dtype = draw(st.sampled_from(dtypes))
    # the range in which fp16 metadata and products with alpha stay normal
    scale = 1.0 if dtype == torch.float16 else draw(st.sampled_from((1.0, 1e-6, 1e-20, 1e10)))
    return (x * scale).to(dtype)


def group_norms(x: torch.Tensor, group: int) -> torch.Tensor:
    x = x.double()
    x = torch.cat([x, x.new_zeros(-x.numel() % group)])
    return x.view(-1, group).norm(dim=1)


def error_bound(codec: GroupCodec, norms: torch.Tensor) -> torch.Tensor:
    """Largest L2 error of a group with these norms: every coefficient is at most one (half a) step of its payload away.

    The largest coefficient is at most the norm, so the scale is at most clip * norm / T after rounding up. A clipped
    coefficient z <= max loses at most z - clip * max, which is at most (1 - clip) z.
    """
    scale = codec.clip * norms / TOP[codec.payload] * ROUND_UP[codec.scale] + 2.0**-126
    step = 2.0 if codec.rounding == "stochastic" else 1.0
    if codec.payload in ("e4m3", "e5m2"):
        relative, smallest = (2.0**-4, 2.0**-10) if codec.payload == "e4m3" else (2.0**-3, 2.0**-17)
        return step * (relative * norms + codec.group**0.5 * smallest * scale)
    return step * 0.5 * codec.group**0.5 * scale + (1 - codec.clip) * norms


@quick
@given(data=st.data())
def test_the_error_of_a_group_is_within_its_quantum(data):
    codec = data.draw(group_codecs())
    x = data.draw(tensors(codec.group))
    y = coder(codec).decode(coder(codec).encode(x, seed=3), x.numel(), torch.float32)
    norms = group_norms(x, codec.group)
    error = group_norms(y.double() - x.double(), codec.group)
    # fp32 arithmetic: some 2^-24 for each of the stages, relative to the norm; alpha may make s / alpha subnormal
    assert (error <= error_bound(codec, norms) * (1 + 1e-5) + 4e-6 * norms + 1e-36).all()


@quick
@given(data=st.data())
def test_a_short_last_group_is_as_good_as_one_filled_with_zeros(data):
    codec = data.draw(group_codecs())
    x = data.draw(tensors(codec.group))
    padded = torch.cat([x, x.new_zeros(-x.numel() % codec.group)])
    packet = coder(codec).encode(x, seed=1)
    if not codec.adaptive_scale:
        # alpha alone looks at the true count
        assert torch.equal(packet, coder(codec).encode(padded, seed=1))
    y = coder(codec).decode(packet, x.numel(), x.dtype)
    assert torch.equal(y, coder(codec).decode(packet, padded.numel(), x.dtype)[: x.numel()])


@quick
@given(data=st.data())
def test_values_that_are_not_finite_stay_in_their_group(data):
    codec = data.draw(group_codecs())
    x = data.draw(tensors(codec.group, (torch.float32, torch.bfloat16)))
    at = data.draw(st.integers(0, x.numel() - 1))
    bad = x.clone()
    bad[at] = data.draw(st.sampled_from((math.nan, math.inf, -math.inf)))
    y = coder(codec).roundtrip(bad)
    first = at // codec.group * codec.group
    assert y[first : first + codec.group].isnan().all()
    clean = coder(codec).roundtrip(x)
    assert torch.equal(y[:first], clean[:first])
    assert torch.equal(y[first + codec.group :], clean[first + codec.group :])


@quick
@given(data=st.data())
def test_sums_in_the_coded_domain_are_sums_of_messages(data):
    codec = data.draw(group_codecs())
    parts = [data.draw(tensors(codec.group, (torch.float32,))) for _ in range(3)]
    numel = min(p.numel() for p in parts)
    packets = torch.stack([coder(codec).encode(p[:numel]) for p in parts])
    decoded = torch.stack([coder(codec).decode(p, numel, torch.float32) for p in packets])
    total = coder(codec).decode_sum(packets, numel, torch.float32)
    size = group_norms(decoded.abs().sum(0), codec.group)
    assert (group_norms(total - decoded.double().sum(0), codec.group) <= 4e-6 * size + 1e-36).all()


@quick
@given(data=st.data())
def test_a_message_that_was_decoded_encodes_to_itself(data):
    """Without rotation and alpha, decoded values lie on the grid of their own scale."""
    payload = data.draw(st.sampled_from(("int8", "int6", "int4")))
    codec = GroupCodec(name="x", payload=payload, group=32, rotation="none", scale="e8m0")
    x = data.draw(tensors(32, (torch.float32,)))
    y = coder(codec).roundtrip(x)
    assert torch.equal(coder(codec).roundtrip(y), y)


@quick
@given(data=st.data())
def test_min_max_stays_within_a_step(data):
    group = data.draw(st.sampled_from((16, 32, 64, 128)))
    bits = data.draw(st.sampled_from((4, 6, 8)))
    metadata, loss = data.draw(st.sampled_from((("bf16", 2.0**-7), ("fp32", 2.0**-22))))
    codec = AsymmetricCodec(name="x", bits=bits, group=group, metadata=metadata)
    x = data.draw(tensors(group)).float()
    y = coder(codec).roundtrip(x)
    for first in range(0, x.numel(), group):
        part, got = x[first : first + group].double(), y[first : first + group].double()
        low, high = float(part.min()), float(part.max())
        # lo is at most one metadata rounding lower, which widens the range
        step = (high - low + loss * abs(low)) / (2**bits - 1) * (1 + loss)
        assert (part - got).abs().max() <= 0.5 * step * (1 + 1e-3) + 1e-6 * max(abs(low), abs(high)) + 1e-37


@quick
@given(data=st.data())
def test_tahquant_stays_within_a_step_of_three_bits(data):
    codec = TahQuantCodec(name="x", tile=data.draw(st.sampled_from((32, 64))), low_fraction=data.draw(st.floats(0, 1)))
    x = data.draw(tensors(codec.tile, (torch.float16,))).float()
    error = group_norms(coder(codec).roundtrip(x).double() - x.double(), codec.tile)
    norms = group_norms(x, codec.tile)
    # range <= 2 max|x| <= 2 norm, three bits, half a step an element; fp16 metadata
    bound = codec.tile**0.5 * (norms / 7) * 1.01 + 2.0**-10 * codec.tile**0.5 * norms
    assert (error <= bound + 1e-5).all()


@pytest.mark.parametrize("payload", TOP)
def test_stochastic_rounding_is_unbiased(payload):
    codec = GroupCodec(name="x", payload=payload, group=32, rotation="none", scale="fp32", rounding="stochastic")
    x = torch.randn(32, generator=torch.Generator().manual_seed(0))
    # the same group again and again: every element of the message has its own random number
    samples = coder(codec).roundtrip(x.repeat(4000), seed=11).view(4000, 32)
    # the error of one sample is at most a quantum: half a quantum of deviation, over sqrt(4000)
    quantum = (
        x.abs().max() / TOP[payload]
        if payload.startswith("int")
        else x.abs() * (2.0**-3 if payload == "e4m3" else 2.0**-2)
    )
    assert ((samples.mean(0) - x).abs() <= 0.04 * quantum + 1e-6).all()
    assert samples.std(0).max() > 0


def test_stochastic_rounding_is_reproducible_from_its_seed():
    codec = GroupCodec(name="x", rounding="stochastic")
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    packets = [coder(codec).encode(x, seed=s) for s in (1, 1, 2, 1 + 2**32)]
    assert torch.equal(packets[0], packets[1])
    assert not torch.equal(packets[0], packets[2])

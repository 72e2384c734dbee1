"""Numerics of the collectives, checked against sums and codecs computed here, in one process."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from comm_cases import gaussian, round_trip, sqnr_db, virtual
from hypothesis import given, settings
from hypothesis import strategies as st

from taco.codec import coder
from taco.codec.wire import group_layout
from taco.comm.layout import chunk_sizes, slot_bytes
from taco.comm.numerics import inner_codec, resum, rows
from taco.config import GroupCodec
from taco.recipes import PRESETS, preset

# dB on Gaussian data, one encode and decode; two-shot loses 3 dB more, the sum of independent parts gains nothing
SQNR = {"taco": 31.8, "int8": 43.7, "int6": 31.5, "int4": 20.3, "fp8": 31.5}


# --- accuracy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SQNR)
@pytest.mark.parametrize("ways", [2, 4, 8])
def test_one_shot_keeps_the_codecs_sqnr_and_two_shot_loses_three_db(name: str, ways: int) -> None:
    parts = gaussian(ways, 64, 1024)
    exact = torch.stack(parts).double().sum(0)
    one = sqnr_db(exact, virtual(ways, name, algorithm="one_shot").all_reduce(parts))
    two = sqnr_db(exact, virtual(ways, name, algorithm="two_shot").all_reduce(parts))
    assert one == pytest.approx(SQNR[name], abs=0.2)
    # two numbers on one power-of-two grid add to a tie of the next grid more often than reals do
    assert two == pytest.approx(SQNR[name] - 3.0, abs=0.5 if (name, ways) == ("fp8", 2) else 0.2)


@pytest.mark.parametrize(("ways", "node_size"), [(4, 2), (6, 2), (6, 3), (8, 4)])
@pytest.mark.parametrize("name", ["taco", "int8", "int4", "fp8-tensor"])
def test_a_hierarchy_puts_every_chunk_in_its_place(name: str, ways: int, node_size: int) -> None:
    parts = gaussian(ways, ways * 2048 + 77)
    exact = torch.stack(parts).double().sum(0)
    comm = virtual(ways, name, node_size=node_size)
    y = comm.all_reduce(parts)
    assert comm.paths == {"hierarchical": 1}
    # each chunk alone: encoded at three levels, so about 5 dB below one encoding
    levels = {"taco": 31.8, "int8": 43.7, "int4": 20.3, "fp8-tensor": 31.5}[name]
    for chunk, total in zip(y.tensor_split(ways), exact.tensor_split(ways), strict=True):
        assert sqnr_db(total, chunk) == pytest.approx(levels - 4.8, abs=1.0)


@pytest.mark.parametrize("numel", [1, 130, 5 * 128 + 44, 7 * 128])
def test_a_hierarchy_whose_last_chunks_are_short_or_empty(numel: int) -> None:
    parts = gaussian(8, numel)
    for node_size in (2, 4):
        y = virtual(8, "int8", node_size=node_size).all_reduce(parts)
        assert sqnr_db(torch.stack(parts).double().sum(0), y) > 36


def test_sdp4bit_spends_its_bits_on_the_inter_node_level() -> None:
    parts = gaussian(8, 64, 1024)
    exact = torch.stack(parts).double().sum(0)
    flat = [torch.cat(virtual(8, "sdp4bit-gradient", node_size=size).reduce_scatter(parts)) for size in (0, 4)]
    same = replace(preset("sdp4bit-gradient"), intra_payload="")
    four_bits_twice = torch.cat(virtual(8, same, node_size=4).reduce_scatter(parts))
    # int8 inside the node costs nothing visible; int4 at both levels costs 3 dB
    assert sqnr_db(exact, flat[1]) == pytest.approx(sqnr_db(exact, flat[0]), abs=0.2)
    assert sqnr_db(exact, four_bits_twice) == pytest.approx(sqnr_db(exact, flat[0]) - 3.0, abs=0.3)


def test_only_the_codecs_own_payload_is_clipped() -> None:
    clipped = replace(preset("sdp4bit-gradient"), name="clipped", clip=0.9)
    assert inner_codec(clipped) == replace(clipped, payload="int8", clip=1.0)
    assert inner_codec(replace(clipped, intra_payload="")) == replace(clipped, intra_payload="")
    assert inner_codec(replace(clipped, intra_payload="e4m3")).payload == "e4m3"
    parts = gaussian(8, 64, 1024)
    exact = torch.stack(parts).double().sum(0)
    flat = [torch.cat(virtual(8, clipped, node_size=size).reduce_scatter(parts)) for size in (0, 4)]
    assert sqnr_db(exact, flat[1]) == pytest.approx(sqnr_db(exact, flat[0]), abs=0.2)


@pytest.mark.parametrize("name", ["taco", "int8", "int4", "sdp4bit-gradient"])
def test_the_sum_in_the_coded_domain_equals_decode_sum_encode_but_for_rounding_ties(name: str) -> None:
    # whole groups: in a tail the coded domain keeps the padding's rounding errors, which decode cuts off
    codec = preset(name)
    inner, outer = coder(inner_codec(codec)), coder(codec)
    packets = torch.stack([inner.encode(part) for part in gaussian(4, 1024)])
    size = outer.nbytes(1024, torch.float32)
    packet = resum(inner, outer, packets, 1024, torch.float32, size, 0)
    direct = outer.encode(inner.decode_sum(packets, 1024, torch.float32))
    payload = group_layout(codec, 1024).sizes[0]  # fp32 scales may differ in their last bit
    assert (packet != direct)[:payload].float().mean() < 0.01
    y, z = (outer.decode(p, 1024, torch.float32) for p in (packet, direct))
    assert sqnr_db(z, y) > SQNR["int4"] + 10


# --- equal to what the codec does ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "none"])
def test_all_gather_gives_everyone_the_decoded_parts_the_owner_too(name: str) -> None:
    parts = gaussian(3, 6, 50, dtype=torch.bfloat16)
    y = virtual(3, name).all_gather(parts, 1)
    assert torch.equal(y, torch.cat([round_trip(preset(name), part) for part in parts], 1))


@pytest.mark.parametrize("name", ["int8", "taco", "fp8-cast", "mxfp8"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reduce_scatter_sums_what_each_ranks_own_packet_holds(name: str, dim: int) -> None:
    parts = gaussian(4, 8, 12, 20)
    shards = virtual(4, name).reduce_scatter(parts, dim)
    for r, shard in enumerate(shards):
        total = torch.zeros_like(shard)
        for part in parts:
            total = total + round_trip(preset(name), part.tensor_split(4, dim)[r].contiguous())
        torch.testing.assert_close(shard, total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_all_to_all_twice_returns_what_one_encoding_makes_of_it(dim: int) -> None:
    parts = gaussian(4, 8, 8, 16)
    once = virtual(4, "fp8-cast").all_to_all(parts, dim)
    twice = virtual(4, "fp8-cast").all_to_all(once, dim)
    assert torch.equal(torch.stack(twice), torch.stack([round_trip(preset("fp8-cast"), part) for part in parts]))


@pytest.mark.parametrize(("algorithm", "node_size"), [("one_shot", 0), ("two_shot", 0), ("hierarchical", 2)])
def test_sums_run_in_rank_order(algorithm: str, node_size: int) -> None:
    codec = GroupCodec(name="plain", payload="e4m3", rotation="none", scale="fp32")
    values = (1e8, -1e8, 1.0, 0.0)  # any other order of the first three gives 0
    parts = [torch.full((4 * 128,), value) for value in values]
    options = {"algorithm": algorithm, "node_size": node_size}
    torch.testing.assert_close(virtual(4, codec, **options).all_reduce(parts), torch.ones(512), rtol=1e-5, atol=0)
    shards = virtual(4, codec, **options).reduce_scatter(parts)
    torch.testing.assert_close(torch.cat(shards), torch.ones(512), rtol=1e-5, atol=0)


def test_narrow_dtypes_are_summed_in_fp32_and_cast_once() -> None:
    parts = [torch.full((128,), value, dtype=torch.bfloat16) for value in (256.0, 1.0, 1.0)]
    assert virtual(3, "none").all_reduce(parts).unique().tolist() == [258.0]  # in bf16, 256 + 1 is 256
    wide = GroupCodec(name="wide", payload="e4m3", rotation="none", scale="fp32")
    assert virtual(3, wide, algorithm="one_shot").all_reduce(parts).unique().tolist() == [258.0]


# --- sizes, contents ------------------------------------------------------------------------------------

CODECS = (
    "taco",
    "int8",
    "int6",
    "int4",
    "fp8",
    "fp8-tensor",
    "sdp4bit-gradient",
    "sdp4bit-weight",
    "flash-int8",
    "tahquant",
)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(CODECS),
    ways=st.integers(1, 9),
    numel=st.one_of(st.integers(0, 300), st.sampled_from([896, 4096, 31936 // 8])),
    algorithm=st.sampled_from(["auto", "one_shot", "two_shot"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_any_size_and_world_reduces_within_the_codecs_error(name, ways, numel, algorithm, dtype) -> None:
    parts = gaussian(ways, numel, dtype=dtype)
    copies = [part.clone() for part in parts]
    comm = virtual(ways, name, algorithm=algorithm)
    y = comm.all_reduce(parts)
    assert (y.shape, y.dtype) == (parts[0].shape, dtype)
    assert all(torch.equal(a, b) for a, b in zip(parts, copies, strict=True))
    exact = torch.stack(parts).double().sum(0)
    # every step of every packet is at most its own largest magnitude / 3 (four bits) times the rotation's spread
    bound = (sum(p.double().norm() for p in parts) + exact.norm()) * 0.35 + 1e-3
    assert (y.double() - exact).norm() <= bound
    assert y.isfinite().all()


@settings(max_examples=60, deadline=None)
@given(numel=st.integers(0, 5000), parts=st.integers(1, 24), align=st.sampled_from([1, 16, 128, 2048]))
def test_chunks_cover_the_tensor_at_aligned_boundaries(numel: int, parts: int, align: int) -> None:
    sizes = chunk_sizes(numel, parts, align)
    assert len(sizes) == parts
    assert sum(sizes) == numel
    offset = 0
    for size in sizes:
        assert size == 0 or offset % align == 0
        offset += size
    assert list(sizes) == sorted(sizes, reverse=True)
    assert slot_bytes(coder(preset("int8")), sizes, torch.float32) % 16 == 0


def test_24_ranks_and_31936_tokens_on_four() -> None:
    parts = gaussian(24, 100)
    y = virtual(24, "int8", algorithm="two_shot").all_reduce(parts)
    assert sqnr_db(torch.stack(parts).double().sum(0), y) > 38
    rows = gaussian(4, 31936, 2)
    assert [shard.shape for shard in virtual(4, "taco").reduce_scatter(rows)] == [(7984, 2)] * 4


@pytest.mark.parametrize("algorithm", ["one_shot", "two_shot"])
def test_zeros_subnormals_and_tiny_values(algorithm: str) -> None:
    for name in ("taco", "int8", "int6", "int4", "fp8"):
        comm = virtual(4, name, algorithm=algorithm)
        assert torch.equal(comm.all_reduce([torch.zeros(300)] * 4), torch.zeros(300))
        for value in (1e-6, 1e-39, -1e-45):
            y = comm.all_reduce([torch.full((300,), value)] * 4)
            assert y.isfinite().all()
            assert (y.abs() <= 4 * abs(value) * 2.5 + 1e-37).all()


def test_rows_are_a_view_of_parts_that_lie_one_behind_another() -> None:
    x = torch.arange(24.0)
    view = rows(x.view(4, 6).unbind())
    assert view.data_ptr() == x.data_ptr()
    assert torch.equal(view, x.view(4, 6))
    assert rows([x[4:10]]).data_ptr() == x[4:].data_ptr()
    for parts in ([x[:6], x[12:18]], [x[:6], x[:6]], [x[6:12], x[:6]], [x[:6], torch.arange(6.0)], [x[::2], x[1::2]]):
        copy = rows(parts)
        assert torch.equal(copy, torch.stack(parts))
        assert copy.data_ptr() != x.data_ptr()

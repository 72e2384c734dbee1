"""Messages and codecs for the tests of kernels, and what equal bits are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from taco.codec import coder, cuda
from taco.codec.group import GroupCoder
from taco.config import Codec, GroupCodec

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PAYLOADS = ("e4m3", "e5m2", "int8", "int6", "int4")
GROUPS = (32, 64, 128, 256, 512, 1024, 2048)
ROTATIONS = ("none", "hadamard", "signed")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

configs = st.builds(
    lambda group, **rest: GroupCodec(name="any", group=group, rotation_size=0, **rest),
    group=st.sampled_from(GROUPS),
    payload=st.sampled_from(PAYLOADS),
    rotation=st.sampled_from(ROTATIONS),
    scale=st.sampled_from(("fp32", "bf16", "e8m0")),
    adaptive_scale=st.booleans(),
    rounding=st.sampled_from(("nearest", "stochastic")),
)


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
    """All operations of `config` on x against the reference on the CPU, two messages at once."""
    reference, codec = GroupCoder(config, "reference"), cuda.number(config)
    numel, dtype, what = x.numel(), x.dtype, f"{config} {x.dtype} [{x.numel()}]"
    rows, seeds = torch.stack([x, x.flip(0)]), [seed, seed + 1]
    before, sent = rows.clone(), seeds if config.rounding == "stochastic" else ()
    packets = reference.encode_rows(rows, seeds)
    assert_bits_equal(cuda.encode_rows(rows.to(device), codec, sent), packets, f"encode {what}")
    assert_bits_equal(rows, before, f"input of encode {what}")
    on_device = packets.to(device)
    assert_bits_equal(
        cuda.decode_sum(on_device.unsqueeze(1), codec, numel, dtype),
        reference.decode_rows(packets, numel, dtype),
        f"decode {what}",
    )
    three = torch.stack([packets, packets.flip(0), reference.encode_rows(2 * rows, seeds)], 1)
    on_device = three.to(device)
    assert_bits_equal(
        cuda.decode_sum(on_device, codec, numel, dtype),
        torch.stack([reference.decode_sum(each, numel, dtype) for each in three]),
        f"decode_sum {what}",
    )
    assert_bits_equal(
        cuda.decode_sum_encode(on_device, codec, codec, numel, sent),
        reference.decode_sum_encode_rows(three, numel, dtype, seeds),
        f"decode_sum_encode {what}",
    )


def check_coder(config: Codec, device: str) -> None:
    """The coder of `config` runs its kernels on a transposed view, and gives the reference's bits."""
    chosen, reference = coder(config), coder(config, "reference")
    x = torch.randn(33, 65, device=device, dtype=torch.bfloat16).t()
    packet = chosen.encode(x)
    assert chosen.path == "cuda"
    assert_bits_equal(packet, reference.encode(x.cpu()), "encode of a transposed view")
    assert_bits_equal(reference.encode(x), packet, "the reference on this device")
    packets = torch.stack([packet, packet])
    assert_bits_equal(
        chosen.decode(packet, x.numel(), x.dtype), reference.decode(packet.cpu(), x.numel(), x.dtype), "decode"
    )
    for name in ("decode_sum", "decode_sum_encode"):
        got, want = (
            getattr(c, name)(p, x.numel(), x.dtype) for c, p in ((chosen, packets), (reference, packets.cpu()))
        )
        assert_bits_equal(got, want, name)

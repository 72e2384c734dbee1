"""How kernels are used on a GPU: through coders, in graphs, on streams, compiled, on large tensors."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DEVICES, assert_bits_equal, check_coder, message
from torch import Tensor

from taco.codec import coder, cuda
from taco.codec.group import GroupCoder
from taco.config import GroupCodec
from taco.recipes import PRESETS

pytestmark = pytest.mark.skipif(not cuda.available(), reason="the kernel library is not built: taco kernels build")


@pytest.mark.parametrize("device", DEVICES)
def test_coder_runs_the_kernels(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: True)  # the host's build in place of a GPU's
    check_coder(GroupCodec(name="auto"), device)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["taco", "int8"])
def test_replays_in_a_graph_with_new_inputs(name: str) -> None:
    coder, reference = GroupCoder(PRESETS[name]), GroupCoder(PRESETS[name], "reference")
    x = torch.zeros(100_000, device="cuda", dtype=torch.bfloat16)

    def roundtrip() -> tuple[Tensor, Tensor]:
        packets = torch.stack([coder.encode(x), coder.encode(-2 * x)])
        summed = coder.decode_sum_encode(packets, x.numel(), x.dtype)
        return coder.decode_sum(packets, x.numel(), x.dtype), coder.decode(summed, x.numel(), x.dtype)

    roundtrip()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, z = roundtrip()
    for seed in range(3):
        new = message(x.numel(), x.dtype, scale=1.0, content="outliers", seed=seed)
        x.copy_(new)
        graph.replay()
        packets = torch.stack([reference.encode(new), reference.encode(-2 * new)])
        assert_bits_equal(y, reference.decode_sum(packets, new.numel(), new.dtype), "replayed decode_sum")
        summed = reference.decode_sum_encode(packets, new.numel(), new.dtype)
        assert_bits_equal(z, reference.decode(summed, new.numel(), new.dtype), "replayed decode_sum_encode")


@pytest.mark.gpu
def test_two_streams_at_once() -> None:
    coder = GroupCoder(PRESETS["taco"])
    inputs = [torch.randn(3_000_001, device="cuda").bfloat16() for _ in range(2)]
    want = [coder.decode(coder.encode(x), x.numel(), x.dtype) for x in inputs]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    for _ in range(20):
        got = []
        for x, stream in zip(inputs, streams, strict=True):
            with torch.cuda.stream(stream):
                got.append(coder.decode(coder.encode(x), x.numel(), x.dtype))
        torch.cuda.synchronize()
        for y, z in zip(got, want, strict=True):
            assert torch.equal(y, z)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["int8", "taco", "flash-int4", "tahquant"])
def test_compiles_without_graph_breaks(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taco.codec.backend.on_gpu", lambda x: True)
    chosen = coder(PRESETS[name], "cuda")
    x = torch.randn(4, 500, device=device, dtype=torch.bfloat16)

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        packets = chosen.encode_rows(x * 2, [0] * 4)
        return chosen.decode_sum(packets, x.shape[1], x.dtype) + 1, chosen.roundtrip(x)

    compiled = torch.compile(step, fullgraph=True, backend="inductor" if device == "cuda" else "aot_eager")
    for got, want in zip(compiled(x), step(x), strict=True):
        assert_bits_equal(got, want, f"compiled {name}")


@pytest.mark.gpu
def test_does_not_synchronise() -> None:
    coder = GroupCoder(PRESETS["int6"])
    x = torch.randn(100_000, device="cuda")
    coder.decode(coder.encode(x), x.numel(), x.dtype)
    torch.cuda.set_sync_debug_mode("error")
    try:
        packet = coder.encode(x)
        coder.decode(packet, x.numel(), x.dtype)
        coder.decode_sum_encode(packet[None], x.numel(), x.dtype)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_runs_on_the_tensors_device_and_leaves_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA GPUs")
    config = GroupCodec(name="second")
    x = torch.randn(5000, device="cuda:1")
    with torch.cuda.device(0):
        packet = GroupCoder(config).encode(x)
        assert torch.cuda.current_device() == 0
    assert packet.device == x.device
    assert_bits_equal(packet, GroupCoder(config, "reference").encode(x.cpu()), "encode on the second GPU")


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "taco"])
def test_more_than_two_to_the_31_elements(name: str) -> None:
    """The last groups of a 4 GiB message equal the same groups alone; offsets beyond int32 would corrupt them."""
    coder = GroupCoder(PRESETS[name])
    numel, tail = 2**31 + 1000, 1000
    x = torch.zeros(numel, device="cuda", dtype=torch.bfloat16)
    x[-tail:] = torch.randn(tail, device="cuda", dtype=torch.bfloat16)
    packet = coder.encode(x)
    alone = coder.encode(x[-tail:].clone())
    codes = -(-tail // 128) * 128
    assert_bits_equal(packet[numel - tail :][:codes], alone[:codes], "codes of the last groups")
    y = coder.decode(packet, numel, torch.bfloat16)
    assert_bits_equal(y[-tail:], coder.decode(alone, tail, torch.bfloat16), "values of the last groups")
    assert not y[:-tail].any()
    both = torch.stack([packet, packet])
    del packet, y
    summed = coder.decode_sum_encode(both, numel, torch.bfloat16)
    once = coder.decode_sum_encode(torch.stack([alone, alone]), tail, torch.bfloat16)
    assert_bits_equal(summed[numel - tail :][:codes], once[:codes], "summed codes of the last groups")

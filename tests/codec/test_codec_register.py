"""Codecs of others: registered once, they work wherever ours do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from distributed import run_ranks
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from taco.codec import Coder, coder, factory, register
from taco.comm import Communicator, Meter, VirtualCommunicator
from taco.config import CODEC_CLASSES, Codec, codec_from_dict, to_dict
from taco.models import build
from taco.recipes import MODELS


@dataclass(frozen=True, kw_only=True)
class SignCodec(Codec):
    """The sign of each element as one byte, times a constant."""

    size: float = 1.0


class SignCoder(Coder):
    """Codes 0, 1 and 255 for zero, plus and minus."""

    config: SignCodec

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return -(-numel // 16) * 16

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        signs = rows.float().sign().to(torch.int8).view(torch.uint8)
        return torch.nn.functional.pad(signs, (0, self.nbytes(rows.shape[1], rows.dtype) - rows.shape[1]))

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return packets[:, :numel].contiguous().view(torch.int8).float() * self.config.size


def forget(codec: type[Codec]) -> None:
    del factory._CODERS[codec], CODEC_CLASSES[codec.__name__]
    coder.cache_clear()


@pytest.fixture
def registered() -> Iterator[SignCodec]:
    register(SignCodec, SignCoder)
    yield SignCodec(name="sign", size=0.5)
    forget(SignCodec)


def test_a_registered_codec_is_reduced_and_counted(registered):
    parts = [torch.tensor([3.0, -2.0, 0.0]), torch.tensor([1.0, 4.0, -1.0])]
    meter = Meter()
    comm = VirtualCommunicator(2, registered, role="tp_forward", meter=meter)
    # a sum of signs is exact in one shot: 0.5 + 0.5, -0.5 + 0.5, 0 - 0.5
    torch.testing.assert_close(comm.all_reduce(parts), torch.tensor([1.0, 0.0, -0.5]), rtol=0, atol=0)
    assert meter.totals()["tp_forward"]["wire"] == 16


def test_a_registered_codec_survives_json(registered):
    assert codec_from_dict(to_dict(registered)) == registered


def test_an_unregistered_class_is_refused_and_told_apart_from_what_is_no_codec():
    with pytest.raises(ValueError, match=r"got SignCodec.*; need taco\.codec\.register\(SignCodec, \.\.\.\)"):
        coder(SignCodec(name="sign"))
    with pytest.raises(ValueError, match=r"got 'int8'; need a codec, e\.g\. taco\.recipes\.preset\('int8'\)"):
        coder("int8")


@pytest.mark.parametrize(("size", "numel"), [(30, 30), (32.0, 30), (-16, 30), (0, 30), (16, 0)])
def test_a_size_that_no_packet_has_is_refused(size: float, numel: int):
    class Wrong(SignCoder):
        def nbytes(self, numel: int, dtype: torch.dtype) -> int:
            return size

    wrong, needed = Wrong(SignCodec(name="sign")), r"from Wrong\.nbytes\(\d+, torch\.float32\); need a multiple of 16"
    with pytest.raises(ValueError, match=f"got {size} {needed}"):
        wrong.decode(torch.zeros(32, dtype=torch.uint8), numel, torch.float32)


def test_the_sender_finds_a_size_that_no_packet_has():
    class Wrong(SignCoder):
        def nbytes(self, numel: int, dtype: torch.dtype) -> int:
            return numel

    with pytest.raises(ValueError, match=r"got 30 from Wrong\.nbytes\(30, torch\.float32\); need a multiple of 16"):
        Wrong(SignCodec(name="sign")).encode(torch.ones(30))


@pytest.mark.parametrize("width", [16, 48])
def test_packets_of_another_size_than_nbytes_are_refused(width: int):
    class Wrong(SignCoder):
        def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
            return torch.zeros(len(rows), width, dtype=torch.uint8)

    wrong, needed = Wrong(SignCodec(name="sign")), r"from Wrong\._encode; need uint8 \[1, 32\]"
    with pytest.raises(ValueError, match=needed):
        wrong.encode(torch.ones(30))
    packets = torch.zeros(2, 32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=needed):
        wrong.decode_sum_encode(packets, 30, torch.float32)


@pytest.mark.parametrize("method", ["decode_rows", "decode_sum", "decode_sum_encode"])
def test_values_of_another_size_than_encoded_are_refused(method: str):
    class Wrong(SignCoder):
        def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
            return packets.float()  # the padding too

    wrong, packets = Wrong(SignCodec(name="sign")), torch.zeros(2, 32, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"got \[2, 32\] from Wrong\._decode; need \[2, 30\]"):
        getattr(wrong, method)(packets, 30, torch.float32)


def walk_through_body(rank: int, world_size: int) -> tuple[float, Tensor]:
    text = (Path(factory.__file__).parent / "README.md").read_text()
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict = {"model": build(MODELS["gpt-mini"], 3)}
    names["mesh"] = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    try:
        exec(block, names)
        comm = Communicator(names["mesh"].get_group(), names["SignCodec"](name="sign", size=0.1), role="tp_forward")
        logits = names["model"](torch.arange(32).view(2, 16))
        return logits.abs().max().item(), comm.all_reduce(torch.tensor([2.0, -1.0, 1.0]) - 2 * rank)
    finally:
        forget(names["SignCodec"])


def test_the_walk_through_of_the_readme_runs_as_written():
    for largest, total in run_ranks(2, walk_through_body):
        assert 0 < largest < math.inf
        torch.testing.assert_close(total, torch.tensor([0.0, -0.2, 0.0]))

"""Codecs of others: registered once, they work wherever ours do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from taco.codec import Coder, coder, factory, register
from taco.comm import Meter, VirtualCommunicator
from taco.config import CODEC_CLASSES, Codec, codec_from_dict, to_dict


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


@pytest.fixture
def registered() -> Iterator[SignCodec]:
    register(SignCodec, SignCoder)
    yield SignCodec(name="sign", size=0.5)
    del factory._CODERS[SignCodec], CODEC_CLASSES["SignCodec"]
    coder.cache_clear()


def test_a_registered_codec_is_reduced_and_counted(registered):
    parts = [torch.tensor([3.0, -2.0, 0.0]), torch.tensor([1.0, 4.0, -1.0])]
    meter = Meter()
    comm = VirtualCommunicator(2, registered, role="tp_forward", meter=meter)
    # a sum of signs is exact in one shot: 0.5 + 0.5, -0.5 + 0.5, 0 - 0.5
    torch.testing.assert_close(comm.all_reduce(parts), torch.tensor([1.0, 0.0, -0.5]), rtol=0, atol=0)
    assert meter.totals()["tp_forward"]["wire"] == 16


def test_a_registered_codec_survives_json(registered):
    assert codec_from_dict(to_dict(registered)) == registered


def test_an_unregistered_class_is_refused():
    with pytest.raises(ValueError, match=r"got SignCodec.*; need a codec"):
        coder(SignCodec(name="sign"))


def test_only_new_codecs_with_coders_are_registered():
    with pytest.raises(ValueError, match="need a dataclass below"):
        register(SignCoder, SignCodec)
    mimic = dataclass(frozen=True, kw_only=True)(type("GroupCodec", (Codec,), {"__annotations__": {}}))
    with pytest.raises(ValueError, match="need another name"):
        register(mimic, SignCoder)

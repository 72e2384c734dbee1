"""What every coder does: turn a tensor into one uint8 Packet and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from taco.codec.wire import ALIGN
from taco.config import Codec

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_dtype(dtype: torch.dtype, what: str) -> None:
    """Raise `ValueError` unless `dtype` is one that coders take."""
    if dtype not in DTYPES:
        raise ValueError(f"got {what} of {dtype}; need float32, bfloat16 or float16; because codecs compress those")


def in_order(rows: Tensor) -> Tensor:
    """Sum of rows [N, ...] in index order, one addition after another."""
    total = rows[0]
    for row in rows[1:]:
        total = total + row
    return total


class Coder(ABC):
    """Encodes messages of one codec.

    config: the codec. align: collectives cut messages at multiples of this many elements. linear: sums of
    decoded messages may be formed before the inverse transform. path: which code ran last, 'reference' or 'cuda'.
    sliceable: the bits of `align` elements in a row depend on nothing else in the message, and 16 times as many fill
    whole 16-byte units of a packet: then a message cut at those multiples has the same bits and bytes.
    seeded: whether packets depend on seeds; of a coder that says nothing they may.
    """

    align: int = 1
    linear: ClassVar[bool] = False
    sliceable: bool = False
    seeded: bool = True

    def __init__(self, config: Codec) -> None:
        self.config = config
        self.path = "reference"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.name!r}, path={self.path!r})"

    @abstractmethod
    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        """Packet size in bytes of `numel` elements of `dtype`: a multiple of 16, and 0 for no elements."""

    @abstractmethod
    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        """rows [P, numel > 0] any supported dtype, a seed each -> uint8 [P, nbytes]."""

    @abstractmethod
    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        """packets uint8 [P, nbytes > 0] -> fp32 [P, numel]."""

    def encode(self, x: Tensor, *, seed: int = 0) -> Tensor:
        """x: any shape and strides, fp32/bf16/fp16 -> Packet uint8 [nbytes] on the same device; x is not changed.

        seed matters for stochastic rounding only. Raises `ValueError` for another dtype.
        """
        return self.encode_rows(x.reshape(1, -1), [seed])[0]

    def encode_rows(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        """rows [P, numel] -> P Packets uint8 [P, nbytes], each as `encode(row, seed=seeds[i])` gives it, in one go."""
        check_dtype(rows.dtype, "a tensor")
        if rows.numel() == 0:
            return torch.empty(len(rows), 0, dtype=torch.uint8, device=rows.device)
        return self._packets(self._encode(rows.detach(), seeds), len(rows), rows.shape[1], rows.dtype)

    def decode(self, packet: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        """packet uint8 [nbytes(numel, dtype)] -> [numel] of `dtype`, rounded to nearest even once.

        Raises `ValueError` for a packet of another size or type.
        """
        self._check(packet, (self._size(numel, dtype),), dtype)
        return self.decode_rows(packet[None], numel, dtype)[0]

    def decode_rows(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        """packets uint8 [P, nbytes] -> [P, numel] of `dtype`: each row as `decode` gives it, in one go."""
        self._check(packets, (len(packets), self._size(numel, dtype)), dtype)
        if numel == 0:
            return torch.empty(len(packets), 0, dtype=dtype, device=packets.device)
        return self._values(packets, numel, dtype).to(dtype)

    def roundtrip(self, x: Tensor, *, seed: int = 0) -> Tensor:
        """What the receiver of x gets; same shape and dtype."""
        return self.decode(self.encode(x, seed=seed), x.numel(), x.dtype).view(x.shape)

    def decode_sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        """packets uint8 [N >= 1, nbytes] -> their sum [numel] of `dtype`: in index order, in fp32, rounded once."""
        self._check(packets, (len(packets), self._size(numel, dtype)), dtype)
        if numel == 0:
            return torch.empty(0, dtype=dtype, device=packets.device)
        return self._sum(packets, numel, dtype).to(dtype)

    def decode_sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, *, seed: int = 0) -> Tensor:
        """packets uint8 [N >= 1, nbytes] -> Packet uint8 [nbytes] of their fp32 sum.

        `dtype` is that of the encoded tensors. Linear coders add in the coded domain, without a transform.
        """
        self._check(packets, (len(packets), self._size(numel, dtype)), dtype)
        return self.decode_sum_encode_rows(packets[None], numel, dtype, [seed])[0]

    def decode_sum_encode_rows(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        """packets uint8 [S, N >= 1, nbytes] -> S Packets uint8 [S, nbytes], each as `decode_sum_encode` gives it."""
        self._check(packets, (*packets.shape[:2], self._size(numel, dtype)), dtype)
        if numel == 0:
            return torch.empty(len(packets), 0, dtype=torch.uint8, device=packets.device)
        return self._packets(self._sum_encode(packets, numel, dtype, seeds), len(packets), numel, dtype)

    def _sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        return in_order(self._values(packets, numel, dtype).float())

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        """packets uint8 [S, N, nbytes > 0], a seed for each sum -> uint8 [S, nbytes]."""
        parts = self._values(packets.flatten(0, 1), numel, dtype).float().view(*packets.shape[:2], numel)
        return self._encode(in_order(parts.transpose(0, 1)), seeds)

    def _size(self, numel: int, dtype: torch.dtype) -> int:
        """`nbytes`. Raises `ValueError` for a size that no packet has."""
        size = self.nbytes(numel, dtype)
        if size % ALIGN or size < 0 or (size > 0) != (numel > 0) or isinstance(size, float):
            raise ValueError(
                f"got {size!r} from {type(self).__name__}.nbytes({numel}, {dtype}); need a multiple of {ALIGN} (int), "
                "0 for no elements alone; because packets lie one behind another in a message, each aligned"
            )
        return size

    def _packets(self, packets: Tensor, count: int, numel: int, dtype: torch.dtype) -> Tensor:
        """`packets` as `_encode` has made them. Raises `ValueError` unless they are uint8 [count, nbytes]."""
        if self.path == "reference":  # kernels give what they are asked for
            shape = (count, self._size(numel, dtype))
            if packets.dtype != torch.uint8 or packets.shape != shape:
                raise ValueError(
                    f"got {packets.dtype} {list(packets.shape)} from {type(self).__name__}._encode; need uint8 "
                    f"{list(shape)}; because nbytes({numel}, {dtype}) is what the receiver waits for"
                )
        return packets

    def _values(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        """`_decode`. Raises `ValueError` unless it gives [P, numel]."""
        values = self._decode(packets, numel, dtype)
        if values.shape != (len(packets), numel):
            raise ValueError(
                f"got {list(values.shape)} from {type(self).__name__}._decode; need {[len(packets), numel]}; because "
                "a packet holds as many elements as were encoded"
            )
        return values

    def _check(self, packets: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        check_dtype(dtype, "a message")
        if packets.dtype != torch.uint8 or tuple(packets.shape) != shape or 0 in shape[:-1]:
            raise ValueError(
                f"got packets {packets.dtype} {list(packets.shape)}; need uint8 {list(shape)} (at least one packet); "
                f"because {self.config.name} messages of this size have that form"
            )

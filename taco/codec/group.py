"""Coder of the group codec: the paper's `taco`, ours, MXFP8 and SDP4Bit are points of it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from taco.codec import cuda, reference, wire
from taco.codec.base import Coder
from taco.config import GroupCodec


def on_gpu(x: Tensor) -> bool:
    """Whether x is where kernels run."""
    return x.is_cuda


class GroupCoder(Coder):
    """Group codec on any device.

    backend: 'reference' is plain torch; 'cuda' the kernels; 'auto' the kernels for CUDA tensors and plain torch for
    others. `sum_into` is plain torch on every device, in the same arithmetic.
    """

    linear: ClassVar[bool] = True
    config: GroupCodec

    def __init__(self, config: GroupCodec, backend: str = "auto") -> None:
        super().__init__(config)
        self.align = config.group
        self.backend = backend

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        return wire.group_layout(self.config, numel).total

    def _kernels(self, x: Tensor):
        """The kernels when they are to work on x, else None. Raises `RuntimeError` when they cannot."""
        if self.backend == "reference" or (self.backend == "auto" and not on_gpu(x)):
            self.path = "reference"
            return None
        if not (on_gpu(x) and cuda.available()):
            built = "built" if cuda.available() else "not built"
            raise RuntimeError(
                f"got a {x.device.type} tensor with kernels {built}; need a CUDA tensor and the kernel library "
                "(`taco kernels build`); because plain torch replaces kernels only when asked: "
                "coder(config, backend='reference')"
            )
        self.path = "cuda"
        return cuda

    def _encode(self, flat: Tensor, seed: int) -> Tensor:
        if kernels := self._kernels(flat):
            return kernels.encode(flat, self.config, seed)
        x = reference.columns(flat, self.config.group)
        alpha = None
        if self.config.adaptive_scale:
            alpha = reference.alphas(x, flat.numel(), self.config.payload)
            x = x * alpha
        return self._quantise(reference.rotate(x, self.config), alpha, flat.numel(), seed)

    def _decode(self, packet: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if kernels := self._kernels(packet):
            return kernels.decode(packet, self.config, numel, dtype)
        return self._finish(self._coefficients(packet, numel), numel)

    def _sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if kernels := self._kernels(packets):
            return kernels.decode_sum(packets.contiguous(), self.config, numel, dtype)
        return self._finish(self._sum_coefficients(packets, numel), numel)

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seed: int) -> Tensor:
        if kernels := self._kernels(packets):
            return kernels.decode_sum_encode(packets.contiguous(), self.config, numel, seed)
        return self._encode_coefficients(self._sum_coefficients(packets, numel), numel, seed)

    def sum_into(self, target: GroupCoder, packets: Tensor, numel: int, *, seed: int = 0) -> Tensor:
        """packets uint8 [N >= 1, nbytes] of this coder -> `target`'s Packet of their fp32 sum, without a transform.

        Raises `ValueError` unless both codecs have the same group and rotation, so that coefficients mean the same.
        """
        ours, theirs = ((c.group, c.rotation, c.rotation_size or c.group) for c in (self.config, target.config))
        if ours != theirs:
            raise ValueError(
                f"got target {target.config.name!r} with (group, rotation, rotation_size) {theirs}; need {ours}; "
                "because a sum of coefficients has a meaning in their own rotation only"
            )
        self._check(packets, (len(packets), self.nbytes(numel, torch.float32)), torch.float32)
        if numel == 0:
            return torch.empty(0, dtype=torch.uint8, device=packets.device)
        self.path = "reference"
        return target._encode_coefficients(self._sum_coefficients(packets, numel), numel, seed)

    def _encode_coefficients(self, total: Tensor, numel: int, seed: int) -> Tensor:
        alpha = None
        if self.config.adaptive_scale:
            # the transform keeps the sum of squares, so alpha follows from the coefficients
            alpha = reference.alphas(total, numel, self.config.payload)
            total = total * alpha
        return self._quantise(total, alpha, numel, seed)

    def _quantise(self, z: Tensor, alpha: Tensor | None, numel: int, seed: int) -> Tensor:
        config = self.config
        codes, s = reference.quantise(z, config, seed)
        bits = wire.PAYLOAD_BITS[config.payload]
        parts = wire.pack_planes(codes.t().reshape(-1), bits)
        parts.append(reference.store_scale(s, config.scale))
        if alpha is not None:
            parts.append(torch.where(s.isnan(), 1.0, alpha).view(torch.uint8))
        return wire.group_layout(config, numel).assemble(parts, z.device)

    def _coefficients(self, packet: Tensor, numel: int) -> Tensor:
        config, form = self.config, wire.group_layout(self.config, numel)
        bits = wire.PAYLOAD_BITS[config.payload]
        codes = wire.unpack_planes(wire.payload_sections(packet, form, "payload", bits), bits)
        s = reference.load_scale(form.section(packet, "scale"), config.scale)
        alpha = form.section(packet, "alpha").view(torch.float32) if config.adaptive_scale else None
        return reference.dequantise(codes.view(-1, config.group).t().contiguous(), s, alpha, config)

    def _sum_coefficients(self, packets: Tensor, numel: int) -> Tensor:
        total = self._coefficients(packets[0], numel)
        for packet in packets[1:]:
            total = total + self._coefficients(packet, numel)
        return total

    def _finish(self, coefficients: Tensor, numel: int) -> Tensor:
        return reference.unrotate(coefficients, self.config).t().reshape(-1)[:numel]

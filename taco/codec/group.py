"""Coder of the group codec: the paper's `taco`, ours, MXFP8 and SDP4Bit are points of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from taco.codec import cuda, reference, wire
from taco.codec.base import Coder, in_order
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

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        if kernels := self._kernels(rows):
            return _rows([kernels.encode(row, self.config, s) for row, s in zip(rows, seeds, strict=True)])
        numel = rows.shape[1]
        x = reference.columns(rows, self.config.group)
        alpha = None
        if self.config.adaptive_scale:
            alpha = reference.alphas(x, numel, self.config.payload)
            x = x * alpha
        return self._quantise(reference.rotate(x, self.config), alpha, numel, seeds)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if kernels := self._kernels(packets):
            return _rows([kernels.decode(packet, self.config, numel, dtype) for packet in packets])
        return self._finish(self._coefficients(packets, numel), numel)

    def _sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if kernels := self._kernels(packets):
            return kernels.decode_sum(packets.contiguous(), self.config, numel, dtype)
        return self._finish(self._sum_coefficients(packets[None], numel), numel)[0]

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        if kernels := self._kernels(packets):
            each = zip(packets, seeds, strict=True)
            return _rows([kernels.decode_sum_encode(p.contiguous(), self.config, numel, s) for p, s in each])
        return self._encode_coefficients(self._sum_coefficients(packets, numel), numel, seeds)

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
        return target._encode_coefficients(self._sum_coefficients(packets[None], numel), numel, [seed])[0]

    def _encode_coefficients(self, total: Tensor, numel: int, seeds: Sequence[int]) -> Tensor:
        alpha = None
        if self.config.adaptive_scale:
            # the transform keeps the sum of squares, so alpha follows from the coefficients
            alpha = reference.alphas(total, numel, self.config.payload)
            total = total * alpha
        return self._quantise(total, alpha, numel, seeds)

    def _quantise(self, z: Tensor, alpha: Tensor | None, numel: int, seeds: Sequence[int]) -> Tensor:
        """Scaled coefficients [group, n] of len(seeds) messages of `numel` elements -> their Packets."""
        config, count = self.config, len(seeds)
        codes, s = reference.quantise(z, config, seeds)
        parts = wire.pack_planes(codes.t().reshape(count, -1), wire.PAYLOAD_BITS[config.payload])
        parts.append(reference.store_scale(s, config.scale).view(count, -1))
        if alpha is not None:
            parts.append(torch.where(s.isnan(), 1.0, alpha).view(torch.uint8).view(count, -1))
        return wire.group_layout(config, numel).assemble(parts, z.device)

    def _coefficients(self, packets: Tensor, numel: int) -> Tensor:
        """packets uint8 [P, nbytes] -> fp32 [group, P * groups of a message]."""
        config, form = self.config, wire.group_layout(self.config, numel)
        bits = wire.PAYLOAD_BITS[config.payload]
        codes = wire.unpack_planes(wire.payload_sections(packets, form, "payload", bits), bits)
        s = reference.load_scale(form.section(packets, "scale").contiguous(), config.scale).view(-1)
        alpha = None
        if config.adaptive_scale:
            alpha = form.section(packets, "alpha").contiguous().view(torch.float32).view(-1)
        return reference.dequantise(codes.reshape(-1, config.group).t().contiguous(), s, alpha, config)

    def _sum_coefficients(self, packets: Tensor, numel: int) -> Tensor:
        """packets uint8 [S, N, nbytes] -> sums over N, fp32 [group, S * groups of a message]."""
        each = self._coefficients(packets.flatten(0, 1), numel).view(self.config.group, *packets.shape[:2], -1)
        return in_order(each.permute(2, 0, 1, 3)).reshape(self.config.group, -1).contiguous()

    def _finish(self, coefficients: Tensor, numel: int) -> Tensor:
        """Coefficients of one or more messages -> fp32 [P, numel]."""
        filled = -(-numel // self.config.group) * self.config.group
        return reference.unrotate(coefficients, self.config).t().reshape(-1, filled)[:, :numel]


def _rows(results: Sequence[Tensor]) -> Tensor:
    """Stack; a single result needs no copy."""
    return results[0][None] if len(results) == 1 else torch.stack(list(results))

"""Coder of the group codec: the paper's `taco`, ours, MXFP8 and SDP4Bit are points of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from taco.codec import cuda, reference, wire
from taco.codec.backend import KernelCoder
from taco.codec.base import check_dtype, in_order
from taco.config import GroupCodec


class GroupCoder(KernelCoder):
    """Group codec on any device; with clip < 1 in plain torch.

    In `sum_into` kernels take INT8 into fewer bits and every payload into itself.
    """

    linear: ClassVar[bool] = True
    config: GroupCodec

    def __init__(self, config: GroupCodec, backend: str = "auto") -> None:
        super().__init__(config, backend, cuda.why_not(config))
        self.align = config.group
        self.sliceable = config.rounding == "nearest"  # noise depends on an element's place in the message
        self._number = -1 if self.no_kernel else cuda.number(config)
        self.seeded = config.rounding == "stochastic"
        self._sizes: dict[int, int] = {}

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        size = self._sizes.get(numel)
        if size is None:
            size = self._sizes[numel] = wire.group_layout(self.config, numel).total
        return size

    # The kernels' path of a single message, without the views of the path of many: small calls cost their host time.

    def encode(self, x: Tensor, *, seed: int = 0) -> Tensor:
        if not self._on_kernels(x):
            return super().encode(x, seed=seed)
        check_dtype(x.dtype, "a tensor")
        return cuda.encode(x.detach() if x.requires_grad else x, self._number, self._sent(seed))

    def decode(self, packet: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if packet.dtype != torch.uint8 or packet.shape != (self.nbytes(numel, dtype),):
            self._check(packet, (self.nbytes(numel, dtype),), dtype)
        if not self._on_kernels(packet):
            return super().decode(packet, numel, dtype)
        check_dtype(dtype, "a message")
        return cuda.decode_sum(packet, self._number, numel, dtype)

    def decode_sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if not self._on_kernels(packets):
            return super().decode_sum(packets, numel, dtype)
        self._check_sum(packets, numel, dtype)
        return cuda.decode_sum(packets, self._number, numel, dtype)

    def decode_sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, *, seed: int = 0) -> Tensor:
        if not self._on_kernels(packets):
            return super().decode_sum_encode(packets, numel, dtype, seed=seed)
        self._check_sum(packets, numel, dtype)
        return cuda.decode_sum_encode(packets, self._number, self._number, numel, self._sent(seed))

    def _sent(self, seed: int) -> Sequence[int]:
        return (seed,) if self.seeded else ()

    def _check_sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> None:
        check_dtype(dtype, "a message")
        shape = packets.shape
        if packets.dtype != torch.uint8 or len(shape) != 2 or not shape[0] or shape[1] != self.nbytes(numel, dtype):
            self._check(packets, (len(packets), self.nbytes(numel, dtype)), dtype)

    def _encode(self, rows: Tensor, seeds: Sequence[int]) -> Tensor:
        if self._on_kernels(rows):
            return cuda.encode_rows(rows, self._number, seeds if self.seeded else ())
        numel = rows.shape[1]
        x = reference.columns(rows, self.config.group)
        factor = reference.inverse_root(reference.block(self.config))
        alpha = None
        if self.config.adaptive_scale:
            alpha = reference.alphas(x, numel, self.config.payload)
            factor = alpha * factor
        return self._quantise(reference.rotate(x, self.config), factor, alpha, numel, seeds)

    def _decode(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if self._on_kernels(packets):
            return cuda.decode_sum(packets.unsqueeze(1), self._number, numel, dtype)
        codes, s, alpha = self._read(packets, numel)
        y = reference.unrotate(reference.load_payload(codes, self.config.payload), self.config)
        y = y * reference.units(s, alpha, reference.inverse_root(reference.block(self.config)))
        return self._flat(y, numel)

    def _sum(self, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
        if self._on_kernels(packets):
            return cuda.decode_sum(packets, self._number, numel, dtype)
        if len(packets) == 1:
            return self._decode(packets, numel, dtype)[0]
        y = reference.unrotate(self._sums(packets[None], numel), self.config)
        return self._flat(y * reference.inverse_root(reference.block(self.config)), numel)[0]

    def _sum_encode(self, packets: Tensor, numel: int, dtype: torch.dtype, seeds: Sequence[int]) -> Tensor:
        if self._on_kernels(packets):
            return cuda.decode_sum_encode(packets, self._number, self._number, numel, seeds if self.seeded else ())
        return self._encode_sums(self._sums(packets, numel), numel, seeds)

    def sum_into(self, target: GroupCoder, packets: Tensor, numel: int, *, seed: int = 0) -> Tensor:
        """packets uint8 [N >= 1, nbytes] of this coder -> `target`'s Packet of their fp32 sum, without a transform.

        Into a codec without kernels plain torch sums. Raises `ValueError` unless both codecs have the same group and
        rotation, so that coefficients mean the same, and `RuntimeError` where kernels are to run and have no such pair.
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
        if target.no_kernel and self.backend == "cuda":
            raise RuntimeError(
                f"got backend='cuda' for sums into codec {target.config.name!r}; need 'auto' or 'reference'; because "
                f"{target.no_kernel}"
            )
        if (target if target.no_kernel else self)._on_kernels(packets):
            narrower = self.config.payload == "int8" and target.config.payload in ("int6", "int4")
            if not narrower and self.config.payload != target.config.payload:
                raise RuntimeError(
                    f"got sums of {self.config.payload} packets into {target.config.payload}; need int8 into int6 or "
                    "int4, or the same payload; because other pairs have no kernel (backend='reference' takes all)"
                )
            seeds = [seed] if target.seeded else ()
            return cuda.decode_sum_encode(packets, self._number, target._number, numel, seeds)
        return target._encode_sums(self._sums(packets[None], numel), numel, [seed])[0]

    def _encode_sums(self, z: Tensor, numel: int, seeds: Sequence[int]) -> Tensor:
        """Coefficients [group, n] of len(seeds) messages of `numel` elements -> their Packets."""
        if not self.config.adaptive_scale:
            return self._quantise(z, 1.0, None, numel, seeds)
        # the transform keeps the sum of squares, so alpha follows from the coefficients
        alpha = reference.alphas(z, numel, self.config.payload)
        return self._quantise(z, alpha, alpha, numel, seeds)

    def _quantise(
        self, z: Tensor, factor: Tensor | float, alpha: Tensor | None, numel: int, seeds: Sequence[int]
    ) -> Tensor:
        """Coefficients z * factor [group, n] of len(seeds) messages of `numel` elements -> their Packets."""
        config, count = self.config, len(seeds)
        codes, s = reference.quantise(z, config, seeds, factor)
        parts = wire.pack_planes(codes.t().reshape(count, -1), wire.PAYLOAD_BITS[config.payload])
        parts.append(reference.store_scale(s, config.scale).view(count, -1))
        if alpha is not None:
            parts.append(torch.where(s.isnan(), 1.0, alpha).view(torch.uint8).view(count, -1))
        return wire.group_layout(config, numel).assemble(parts, z.device)

    def _read(self, packets: Tensor, numel: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """packets uint8 [P, nbytes] -> codes uint8 [group, n], scales and alphas (or None) fp32 [n], n = P * groups."""
        config, form = self.config, wire.group_layout(self.config, numel)
        bits = wire.PAYLOAD_BITS[config.payload]
        codes = wire.unpack_planes(wire.payload_sections(packets, form, "payload", bits), bits)
        s = reference.load_scale(form.section(packets, "scale").contiguous(), config.scale).view(-1)
        alpha = None
        if config.adaptive_scale:
            alpha = form.section(packets, "alpha").contiguous().view(torch.float32).view(-1)
        return codes.reshape(-1, config.group).t().contiguous(), s, alpha

    def _sums(self, packets: Tensor, numel: int) -> Tensor:
        """packets uint8 [S, N, nbytes] -> sums over N of coefficients, fp32 [group, S * groups of a message]."""
        codes, s, alpha = self._read(packets.flatten(0, 1), numel)
        each = reference.load_payload(codes, self.config.payload) * reference.summable(reference.units(s, alpha))
        each = each.view(self.config.group, *packets.shape[:2], -1)
        return in_order(each.permute(2, 0, 1, 3)).reshape(self.config.group, -1).contiguous()

    def _flat(self, y: Tensor, numel: int) -> Tensor:
        """Values of one or more messages [group, P * groups] -> fp32 [P, numel]."""
        filled = -(-numel // self.config.group) * self.config.group
        return y.t().reshape(-1, filled)[:, :numel]

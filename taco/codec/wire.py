"""Byte layout of a Packet: sections one after another, each 16-byte aligned and zero padded.

    group       [payload planes][scale][alpha]       asymmetric  [payload planes][lo][step]
    tensor      [payload][scale]                     cast, none  [payload]
    TAH-Quant   [INT3 planes][INT4 plane][head][lo][step]

A group payload holds ceil(numel / group) * group elements, so a short last group keeps all its coefficients.
Planes: 8 bits: one byte an element. 4 bits: byte k = element 2k | element 2k+1 << 4. 2 bits: byte k = elements
4k..4k+3, lowest bits first. 1 bit: byte k = elements 8k..8k+7, lowest first. 6 bits: the plane of the low 4 bits, then
that of the high 2. 3 bits: the plane of the low 2 bits, then that of the high one. Integers are two's complement where
they are signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from taco.config import AsymmetricCodec, GroupCodec

ALIGN = 16
SCALE_BYTES = {"fp32": 4, "bf16": 2, "e8m0": 1, "fp16": 2}
PAYLOAD_BITS = {"e4m3": 8, "e5m2": 8, "int8": 8, "int6": 6, "int4": 4}
_WORD = {4: torch.int16, 2: torch.int32, 1: torch.int64}
PLANES = {8: (8,), 6: (4, 2), 4: (4,), 3: (2, 1)}


def align16(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of 16."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass(frozen=True)
class Layout:
    """Where the sections of a Packet are. sizes and offsets in bytes; total is the Packet's size."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    total: int

    def section(self, packet: Tensor, name: str) -> Tensor:
        """View uint8 [..., size] of one section of packet uint8 [..., total]."""
        i = self.names.index(name)
        return packet[..., self.offsets[i] : self.offsets[i] + self.sizes[i]]

    def assemble(self, parts: Sequence[Tensor], device: torch.device) -> Tensor:
        """Packets uint8 [P, total] from the sections' bytes [P, size], in order of `names`."""
        packet = torch.zeros(len(parts[0]), self.total, dtype=torch.uint8, device=device)
        for name, part in zip(self.names, parts, strict=True):
            self.section(packet, name).copy_(part)
        return packet


def layout(*sections: tuple[str, int]) -> Layout:
    """Layout of (name, bytes) sections in this order."""
    offsets, total = [], 0
    for _, size in sections:
        offsets.append(total)
        total += align16(size)
    return Layout(tuple(n for n, _ in sections), tuple(s for _, s in sections), tuple(offsets), total)


def planes(name: str, numel: int, bits: int) -> list[tuple[str, int]]:
    """Sections of `numel` elements (a multiple of 8) of `bits` bits."""
    return [(f"{name}{width}", numel * width // 8) for width in PLANES[bits]]


def group_layout(config: GroupCodec, numel: int) -> Layout:
    """Layout of a group Packet: planes 'payload8' or 'payload4', 'payload2'; then 'scale'; then 'alpha' if adaptive."""
    groups = -(-numel // config.group)
    sections = planes("payload", groups * config.group, PAYLOAD_BITS[config.payload])
    sections.append(("scale", groups * SCALE_BYTES[config.scale]))
    if config.adaptive_scale:
        sections.append(("alpha", groups * 4))
    return layout(*sections)


def asymmetric_layout(config: AsymmetricCodec, numel: int) -> Layout:
    """Layout of a min/max Packet: planes, then 'lo' and 'step' in the metadata dtype."""
    groups = -(-numel // config.group)
    meta = groups * SCALE_BYTES[config.metadata]
    return layout(*planes("payload", groups * config.group, config.bits), ("lo", meta), ("step", meta))


def tahquant_layout(tile: int, tiles: int, low: int) -> Layout:
    """Layout of a TAH-Quant Packet of `tiles` tiles, `low` of them INT3."""
    sections = [*planes("int3_", low * tile, 3), *planes("int4_", (tiles - low) * tile, 4)]
    return layout(*sections, ("head", tiles), ("lo", 2 * tiles), ("step", 2 * tiles))


def pack(values: Tensor, width: int) -> Tensor:
    """values uint8 [..., n], each below 2**width (width 1, 2, 4, 8) -> uint8 [..., n * width / 8]."""
    if width == 8 or not values.numel():
        return values
    # the 8 / width values of a byte as one little-endian word: contiguous operations instead of strided ones
    words, mask = values.contiguous().view(_WORD[width]), (1 << width) - 1
    out = words & mask
    for i in range(1, 8 // width):
        out |= (words >> (i * (8 - width))) & (mask << (i * width))
    return out.to(torch.uint8)


def unpack(packed: Tensor, width: int) -> Tensor:
    """Inverse of `pack`: uint8 [..., m] -> uint8 [..., m * 8 / width]."""
    if width == 8:
        return packed
    words, mask = packed.to(_WORD[width]), (1 << width) - 1
    out = words & mask
    for i in range(1, 8 // width):
        out |= (words & (mask << (i * width))) << (i * (8 - width))
    return out.view(torch.uint8)


def pack_planes(codes: Tensor, bits: int) -> list[Tensor]:
    """codes uint8 [..., n] with the low `bits` bits used -> the planes' bytes, in the order of `planes`."""
    out, shift = [], 0
    for width in PLANES[bits]:
        out.append(pack((codes >> shift) & ((1 << width) - 1) if width < 8 else codes, width))
        shift += width
    return out


def unpack_planes(parts: Sequence[Tensor], bits: int) -> Tensor:
    """Inverse of `pack_planes` -> uint8 [..., n]."""
    codes, shift = None, 0
    for part, width in zip(parts, PLANES[bits], strict=True):
        values = unpack(part, width)
        codes = values if codes is None else codes | (values << shift)
        shift += width
    return codes


def payload_sections(packet: Tensor, form: Layout, name: str, bits: int) -> list[Tensor]:
    """The plane sections called `name` of Packets [..., total]."""
    return [form.section(packet, f"{name}{width}") for width in PLANES[bits]]

"""The arithmetic of every compressed collective, as pure functions of tensors.

Real and virtual collectives call these and nothing else, so they agree bit for bit. Symbols:

    N      ranks               flat    [numel]     a rank's tensor, flattened
    P      slot bytes          packets [N, P]      uint8, one packet per source or chunk, zero padded to P
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from taco.codec.base import Coder
from taco.codec.group import GroupCoder
from taco.config import Codec, GroupCodec

_MASK = (1 << 64) - 1


def mix_seed(*parts: int) -> int:
    """A 31-bit hash of integers (splitmix64 finaliser after each): the seed of one packet's stochastic rounding."""
    state = 0
    for part in parts:
        state = (state + 0x9E3779B97F4A7C15 + part) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state & 0x7FFFFFFF


def packet_seeds(coder: Coder, seed: int, rank: int, count: int) -> list[int]:
    """The seeds of the packets that `rank` sends to each of `count` ranks; zeros where they change nothing."""
    if not coder.seeded:
        return [0] * count
    own = mix_seed(seed, rank)
    return [mix_seed(own, i) for i in range(count)]


def inner_codec(codec: Codec) -> Codec:
    """The codec of the intra-node level of a hierarchical collective: `intra_payload` where the codec has one.

    It is not clipped: a clip that pays for the codec's own payload need not for one of more bits.
    """
    if not isinstance(codec, GroupCodec) or not codec.intra_payload:
        return codec
    return replace(codec, payload=codec.intra_payload, clip=1.0)


def _fill(packets: Sequence[Tensor], slot: int) -> Tensor:
    """Stack packets of at most `slot` bytes into [N, slot], zero beyond each, so that messages are reproducible."""
    if all(p.numel() == slot for p in packets):
        return torch.stack(list(packets))
    out = packets[0].new_zeros(len(packets), slot)
    for row, packet in zip(out, packets, strict=True):
        row[: packet.numel()] = packet
    return out


def rows(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """Parts of one size (any shape) as [len(parts), numel]: a view where they lie one behind another, else a copy.

    A tensor [N, numel] is its own rows."""
    if isinstance(parts, Tensor):
        return parts
    first, numel = parts[0], parts[0].numel()
    if _one_behind_another(parts):
        return first.as_strided((len(parts), numel), (numel, 1))
    same = all(part.shape == first.shape for part in parts)
    return torch.stack(list(parts) if same else [part.reshape(-1) for part in parts]).view(len(parts), numel)


def joined(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """Flat parts of any sizes as one [sum of sizes]: a view where they lie one behind another, else a copy."""
    if isinstance(parts, Tensor):
        return parts.reshape(-1)
    filled = [part for part in parts if part.numel()]
    if filled and _one_behind_another(filled):
        return filled[0].as_strided((sum(part.numel() for part in filled),), (1,))
    return torch.cat(list(parts))


def _one_behind_another(parts: Sequence[Tensor]) -> bool:
    """Whether tensors are contiguous and follow each other without a gap in one storage."""
    at, storage = parts[0].data_ptr(), parts[0].untyped_storage().data_ptr()
    for part in parts:
        if not part.is_contiguous() or part.data_ptr() != at or part.untyped_storage().data_ptr() != storage:
            return False
        at += part.nbytes
    return True


def encode_stacks(coder: Coder, parts: Sequence[Sequence[Tensor]], slot: int, seeds: Sequence[int]) -> list[Tensor]:
    """parts[i]: what played rank i sends to each rank, seeds[i] its seed -> uint8 [len(parts[i]), slot] a rank."""
    flat = [part for shards in parts for part in shards]
    each = [mix_seed(seed, i) for seed, shards in zip(seeds, parts, strict=True) for i in range(len(shards))]
    return list(_encode_each(coder, flat, slot, each).split([len(shards) for shards in parts]))


def _encode_each(coder: Coder, parts: Sequence[Tensor], slot: int, seeds: Sequence[int]) -> Tensor:
    """Each part (any shape) as its own packet, uint8 [len(parts), slot]; parts of one size are encoded in one go."""
    by_size: dict[int, list[int]] = {}
    for i, part in enumerate(parts):
        by_size.setdefault(part.numel(), []).append(i)
    coded = {
        size: coder.encode_rows(rows([parts[i] for i in where]), [seeds[i] for i in where])
        for size, where in by_size.items()
    }
    if len(coded) == 1 and (packets := next(iter(coded.values()))).shape[1] == slot:
        return packets
    out = torch.zeros(len(parts), slot, dtype=torch.uint8, device=parts[0].device)
    for size, where in by_size.items():
        out[where, : coded[size].shape[1]] = coded[size]
    return out


def _used(packets: Tensor, coder: Coder, numel: int, dtype: torch.dtype) -> Tensor:
    return packets[..., : coder.nbytes(numel, dtype)].contiguous()


def decode_parts(coder: Coder, packets: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """Decode packet i of [N, slot] to [sizes[i]]."""
    if len(set(sizes)) == 1:
        return list(coder.decode_rows(_used(packets, coder, sizes[0], dtype), sizes[0], dtype))
    return [coder.decode(_used(row, coder, size, dtype), size, dtype) for row, size in zip(packets, sizes, strict=True)]


def sum_parts(coder: Coder, packets: Tensor, numel: int, dtype: torch.dtype) -> Tensor:
    """Sum of the N decoded packets in order, in fp32, cast once to `dtype`: [numel]."""
    if numel == 0:
        return torch.empty(0, dtype=dtype, device=packets.device)
    return coder.decode_sum(_used(packets, coder, numel, dtype), numel, dtype)


def resum(
    source: Coder, target: Coder, packets: Tensor, numel: int, dtype: torch.dtype, slot: int, seed: int
) -> Tensor:
    """Sum the N packets of `source` and encode the sum with `target`: uint8 [slot].

    A linear codec sums its coefficients, so the transform pair between sum and encode falls away (SDP4Bit's
    operation pruning); `inner_codec` keeps group and rotation, so that holds between the two levels as well.
    """
    if numel == 0:
        return packets.new_zeros(slot)
    packets = _used(packets, source, numel, dtype)
    if source is target:
        packet = source.decode_sum_encode(packets, numel, dtype, seed=seed)
    else:
        assert isinstance(source, GroupCoder)  # only a group codec has an inner one
        assert isinstance(target, GroupCoder)
        packet = source.sum_into(target, packets, numel, seed=seed)
    return _fill([packet], slot)[0]


def resum_stacks(
    coder: Coder, received: Sequence[Tensor], sizes: Sequence[int], dtype: torch.dtype, slot: int, seeds: Sequence[int]
) -> list[Tensor]:
    """`resum` of the packets [N, slot] of each played rank, sizes[i] elements with seeds[i]: uint8 [slot] a rank."""
    numel = sizes[0]
    if numel == 0 or len(set(sizes)) > 1:
        return [
            resum(coder, coder, packets, size, dtype, slot, seed)
            for packets, size, seed in zip(received, sizes, seeds, strict=True)
        ]
    packets = _used(torch.stack(list(received)), coder, numel, dtype)
    return list(_fill(list(coder.decode_sum_encode_rows(packets, numel, dtype, seeds)), slot))

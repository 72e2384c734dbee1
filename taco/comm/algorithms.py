"""The compressed collectives, written once for real and virtual ranks.

    links.ranks   the ranks played here (one, or all N)       sizes   elements of the chunk of every rank
    seed          of this call; every packet gets its own     P       slot bytes of a packet

Sources: TACO, arXiv 2604.24088, and its published code (one-shot, two-shot); SDP4Bit, arXiv 2410.15526 (hierarchical).
Every rank ends with the same bits: the owner of a chunk uses its decoded value too, and sums run in rank order in fp32.

slices: a message is cut at the same places of every chunk into so many slices that travel one after another, each
encoded while the one before is on its way (taco/comm/slices.py). Cuts lie between groups, so they change no bit.

One rank with one slice and equal chunks, as most messages are, goes the short way: the same calls without the lists and
views of the general one, whose host time a small message would wait for. A block is [N, numel], a chunk for each rank.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from taco.codec.base import Coder
from taco.comm import hierarchical
from taco.comm.layout import chunk_sizes, cut_sizes, slice_cuts, slot_bytes
from taco.comm.links import Links, Transfer
from taco.comm.numerics import (
    decode_parts,
    encode_stacks,
    joined,
    mix_seed,
    packet_seeds,
    resum_stacks,
    rows,
    sum_parts,
)
from taco.comm.slices import Piece, in_slices


def all_reduce(
    path: str, links: Links, coder: Coder, tensors: Sequence[Tensor], world_size: int, seed: int, slices: int = 1
) -> Tensor:
    """Sum of tensors of one shape over the ranks, flat: [numel], the same on every rank.

    path: 'one_shot', 'two_shot', 'hierarchical'.
    """
    x, short = tensors[0], slices == 1 and len(tensors) == 1
    numel, dtype = x.numel(), x.dtype
    if short and path == "one_shot":
        packet = coder.encode(x, seed=mix_seed(seed, links.ranks[0]) if coder.seeded else 0)
        return coder.decode_sum(links.world.all_gather([packet])[0], numel, dtype)
    flats = [tensor.reshape(-1) for tensor in tensors]
    if path == "one_shot":
        return _one_shot(links, coder, flats, seed, slices)
    if short and path == "two_shot" and numel % (world_size * coder.align) == 0:
        return _two_shot_block(links, coder, flats[0].view(world_size, -1), seed).reshape(-1)
    sizes = chunk_sizes(numel, world_size, coder.align)
    parts = [flat.split(sizes) for flat in flats]
    if path == "hierarchical":
        packets = hierarchical.all_reduce(links, coder, parts, sizes, seed)
        return joined(decode_parts(coder, packets, sizes, dtype))
    return joined(_two_shot(links, coder, parts, sizes, seed, slices))


def _one_shot(links: Links, coder: Coder, flats: Sequence[Tensor], seed: int, slices: int) -> Tensor:
    """encode [numel] -> all-gather [N, P] -> decode and sum [numel]."""
    numel, dtype = flats[0].numel(), flats[0].dtype
    cuts = slice_cuts(coder, [numel], slices)
    seeds = [mix_seed(seed, r) for r in links.ranks]

    def piece(cut: slice) -> Piece:
        packets = coder.encode_rows(rows([flat[cut] for flat in flats]), seeds)
        transfer = links.world.start_all_gather(list(packets), overlap=len(cuts) > 1)
        yield
        return [sum_parts(coder, transfer()[0], cut.stop - cut.start, dtype)]

    return in_slices(cuts, [numel], piece, flats[0])[0]


def _two_shot(
    links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], sizes: Sequence[int], seed: int, slices: int
) -> list[Tensor]:
    """encode [N, P] -> all-to-all [N, P] -> sum and encode [P] -> all-gather [N, P] -> decode: every chunk's sum."""
    dtype, cuts = parts[0][0].dtype, slice_cuts(coder, sizes, slices)
    seeds = [mix_seed(seed, r, 1) for r in links.ranks]

    def piece(cut: slice) -> Piece:
        own = cut_sizes(sizes, cut)
        slot = slot_bytes(coder, own, dtype)
        transfer = _exchange(links, coder, _cut(parts, cut), slot, seed, overlap=len(cuts) > 1)
        yield
        sums = resum_stacks(coder, transfer(), [own[r] for r in links.ranks], dtype, slot, seeds)
        transfer = links.world.start_all_gather(sums, overlap=len(cuts) > 1)
        yield
        return decode_parts(coder, transfer()[0], own, dtype)

    return in_slices(cuts, sizes, piece, parts[0][0])


def _two_shot_block(links: Links, coder: Coder, block: Tensor, seed: int) -> Tensor:
    """`_two_shot` the short way: [N, numel] -> the sums [N, numel]."""
    rank, numel, dtype = links.ranks[0], block.shape[1], block.dtype
    packets = coder.encode_rows(block, packet_seeds(coder, seed, rank, len(block)))
    [packets] = links.world.all_to_all([packets])
    packet = coder.decode_sum_encode(packets, numel, dtype, seed=mix_seed(seed, rank, 1) if coder.seeded else 0)
    return coder.decode_rows(links.world.all_gather([packet])[0], numel, dtype)


def _flat(parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """Every part as [numel]; those of a rank that have one size are copied together, and only if they must be."""
    return [
        list(rows(shards)) if len({part.numel() for part in shards}) == 1 else [part.reshape(-1) for part in shards]
        for shards in parts
    ]


def _cut(flat: Sequence[Sequence[Tensor]], cut: slice) -> list[list[Tensor]]:
    return [[part[cut] for part in shards] for shards in flat]


def _exchange(
    links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], slot: int, seed: int, *, overlap: bool = False
) -> Transfer:
    """Part i of each played rank goes to rank i: uint8 [N, slot] for each played rank."""
    stacks = encode_stacks(coder, parts, slot, [mix_seed(seed, r) for r in links.ranks])
    return links.world.start_all_to_all(stacks, overlap=overlap)


def reduce_scatter(
    path: str,
    links: Links,
    coder: Coder,
    parts: Sequence[Sequence[Tensor] | Tensor],
    sizes: Sequence[int],
    seed: int,
    slices: int = 1,
) -> list[Tensor]:
    """parts[i][r]: what played rank i gives to rank r's sum -> the sum [sizes[r]] of each played rank r.

    parts[i] may be a block.
    """
    if path == "hierarchical":
        return hierarchical.reduce_scatter(links, coder, parts, sizes, seed)
    if slices == len(parts) == 1 and sizes.count(sizes[0]) == len(sizes):
        block = rows(parts[0])
        packets = coder.encode_rows(block, packet_seeds(coder, seed, links.ranks[0], len(sizes)))
        return [coder.decode_sum(links.world.all_to_all([packets])[0], sizes[0], block.dtype)]
    dtype, flat, cuts = parts[0][0].dtype, _flat(parts), slice_cuts(coder, sizes, slices)

    def piece(cut: slice) -> Piece:
        own = cut_sizes(sizes, cut)
        slot = slot_bytes(coder, own, dtype)
        transfer = _exchange(links, coder, _cut(flat, cut), slot, seed, overlap=len(cuts) > 1)
        yield
        return [sum_parts(coder, packets, own[r], dtype) for r, packets in zip(links.ranks, transfer(), strict=True)]

    return in_slices(cuts, [sizes[r] for r in links.ranks], piece, parts[0][0])


def all_gather(
    links: Links, coder: Coder, parts: Sequence[Tensor], sizes: Sequence[int], seed: int, slices: int = 1
) -> Sequence[Tensor] | Tensor:
    """parts[i]: played rank i's tensor -> [sizes[r]] of every rank r, the same on every rank; a block the short way."""
    dtype, numel = parts[0].dtype, sizes[0]
    if slices == len(parts) == 1 and sizes.count(numel) == len(sizes):
        packet = coder.encode(parts[0], seed=packet_seeds(coder, seed, links.ranks[0], 1)[0])
        return coder.decode_rows(links.world.all_gather([packet])[0], numel, dtype)
    cuts = slice_cuts(coder, sizes, slices)
    flat, seeds = _flat([[x] for x in parts]), [mix_seed(seed, r) for r in links.ranks]

    def piece(cut: slice) -> Piece:
        own = cut_sizes(sizes, cut)
        stacks = encode_stacks(coder, _cut(flat, cut), slot_bytes(coder, own, dtype), seeds)
        transfer = links.world.start_all_gather([stack[0] for stack in stacks], overlap=len(cuts) > 1)
        yield
        return decode_parts(coder, transfer()[0], own, dtype)

    return in_slices(cuts, sizes, piece, parts[0])


def all_to_all(links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], seed: int) -> list[list[Tensor]]:
    """parts[i][r]: what played rank i sends to rank r, of one size -> what each played rank received, by source."""
    x = parts[0][0]
    received = _exchange(links, coder, parts, coder.nbytes(x.numel(), x.dtype), seed)()
    return [decode_parts(coder, packets, [x.numel()] * len(packets), x.dtype) for packets in received]

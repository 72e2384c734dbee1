"""The compressed collectives, written once for real and virtual ranks.

    links.ranks   the ranks played here (one, or all N)       sizes   elements of the chunk of every rank
    seed          of this call; every packet gets its own     P       slot bytes of a packet

Sources: TACO, arXiv 2604.24088, and its published code (one-shot, two-shot); SDP4Bit, arXiv 2410.15526 (hierarchical).
Every rank ends with the same bits: the owner of a chunk uses its decoded value too, and sums run in rank order in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taco.codec.base import Coder
from taco.comm import hierarchical
from taco.comm.layout import chunk_sizes, slot_bytes
from taco.comm.links import Links
from taco.comm.numerics import decode_parts, encode_stacks, mix_seed, resum_stacks, rows, sum_parts


def all_reduce(path: str, links: Links, coder: Coder, flats: Sequence[Tensor], world_size: int, seed: int) -> Tensor:
    """Sum of [numel] over the ranks: [numel], the same on every rank. path: 'one_shot', 'two_shot', 'hierarchical'."""
    numel, dtype = flats[0].numel(), flats[0].dtype
    if path == "one_shot":
        return _one_shot(links, coder, flats, seed)
    sizes = chunk_sizes(numel, world_size, coder.align)
    parts = [flat.split(sizes) for flat in flats]
    if path == "hierarchical":
        packets = hierarchical.all_reduce(links, coder, parts, sizes, seed)
    else:
        packets = _two_shot(links, coder, parts, sizes, seed)
    return torch.cat(decode_parts(coder, packets, sizes, dtype))


def _one_shot(links: Links, coder: Coder, flats: Sequence[Tensor], seed: int) -> Tensor:
    """encode [numel] -> all-gather [N, P] -> decode and sum [numel]."""
    packets = coder.encode_rows(rows(flats), [mix_seed(seed, r) for r in links.ranks])
    gathered = links.world.all_gather(list(packets))[0]
    return sum_parts(coder, gathered, flats[0].numel(), flats[0].dtype)


def _two_shot(links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], sizes: Sequence[int], seed: int) -> Tensor:
    """encode [N, P] -> all-to-all [N, P] -> sum and encode [P] -> all-gather: uint8 [N, P], chunk i in row i."""
    dtype, slot = parts[0][0].dtype, slot_bytes(coder, sizes, parts[0][0].dtype)
    received = _exchange(links, coder, parts, slot, seed)
    own = [sizes[r] for r in links.ranks]
    sums = resum_stacks(coder, received, own, dtype, slot, [mix_seed(seed, r, 1) for r in links.ranks])
    return links.world.all_gather(sums)[0]


def _exchange(links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], slot: int, seed: int) -> list[Tensor]:
    """Part i of each played rank goes to rank i: uint8 [N, slot] for each played rank."""
    return links.world.all_to_all(encode_stacks(coder, parts, slot, [mix_seed(seed, r) for r in links.ranks]))


def reduce_scatter(
    path: str, links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], sizes: Sequence[int], seed: int
) -> list[Tensor]:
    """parts[i][r]: what played rank i gives to rank r's sum -> the sum [sizes[r]] of each played rank r."""
    dtype = parts[0][0].dtype
    if path == "hierarchical":
        return hierarchical.reduce_scatter(links, coder, parts, sizes, seed)
    received = _exchange(links, coder, parts, slot_bytes(coder, sizes, dtype), seed)
    return [sum_parts(coder, packets, sizes[r], dtype) for r, packets in zip(links.ranks, received, strict=True)]


def all_gather(links: Links, coder: Coder, parts: Sequence[Tensor], sizes: Sequence[int], seed: int) -> list[Tensor]:
    """parts[i]: played rank i's tensor -> [sizes[r]] of every rank r, the same on every rank."""
    dtype, slot = parts[0].dtype, slot_bytes(coder, sizes, parts[0].dtype)
    stacks = encode_stacks(coder, [[x] for x in parts], slot, [mix_seed(seed, r) for r in links.ranks])
    packets = [stack[0] for stack in stacks]
    return decode_parts(coder, links.world.all_gather(packets)[0], sizes, dtype)


def all_to_all(links: Links, coder: Coder, parts: Sequence[Sequence[Tensor]], seed: int) -> list[list[Tensor]]:
    """parts[i][r]: what played rank i sends to rank r, of one size -> what each played rank received, by source."""
    x = parts[0][0]
    received = _exchange(links, coder, parts, coder.nbytes(x.numel(), x.dtype), seed)
    return [decode_parts(coder, packets, [x.numel()] * len(packets), x.dtype) for packets in received]

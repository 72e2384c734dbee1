"""Two-level collectives for groups that span nodes: most bytes stay inside a node, and each sum crosses nodes once.

    g   ranks per node       n   nodes; rank = node * g + place, N = n * g chunks, chunk r belongs to rank r
    Pi  slot bytes of the intra-node packets (codec.intra_payload, else the codec's)       P   of the others

    reduce   encode [n, g, Pi] -> intra all-to-all: place p gets the chunks of place p of all nodes, from its node
             -> sum over the node, encode [n, P] -> inter all-to-all: node k gets its own chunk, from every node
             -> sum over nodes (all_reduce: encode [P])
    gather   inter all-gather [n, P] -> intra all-gather [g, n, P]

Source: SDP4Bit's TLq-HS (arXiv 2410.15526): sums of a linear codec stay in its coded domain at both levels.
Sums run in rank order inside a node, then in node order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from taco.codec import coder as make_coder
from taco.codec.base import Coder
from taco.comm.layout import slot_bytes
from taco.comm.links import Link, Links
from taco.comm.numerics import encode_stacks, inner_codec, mix_seed, resum, resum_stacks, sum_parts

Parts = Sequence[Sequence[Tensor]]


def all_reduce(links: Links, coder: Coder, parts: Parts, sizes: Sequence[int], seed: int) -> Tensor:
    """parts[i][r]: chunk r of played rank i -> packets of all sums, uint8 [N, P], chunk r in row r."""
    dtype, slot = parts[0][0].dtype, slot_bytes(coder, sizes, parts[0][0].dtype)
    intra, inter = _levels(links)
    owned, own = _to_owners(links, coder, parts, sizes, seed), [sizes[r] for r in links.ranks]
    sums = resum_stacks(coder, owned, own, dtype, slot, [mix_seed(seed, r, 2) for r in links.ranks])
    places = [packets.view(-1) for packets in inter.all_gather(sums)]  # [n * P]
    gathered = intra.all_gather(places)[0]  # [g, n * P]
    return gathered.view(len(gathered), -1, slot).transpose(0, 1).reshape(-1, slot)


def reduce_scatter(links: Links, coder: Coder, parts: Parts, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """parts[i][r]: what played rank i gives to rank r's sum -> the sum [sizes[r]] of each played rank r."""
    owned = _to_owners(links, coder, parts, sizes, seed)
    return [
        sum_parts(coder, packets, sizes[r], parts[0][0].dtype) for r, packets in zip(links.ranks, owned, strict=True)
    ]


def _levels(links: Links) -> tuple[Link, Link]:
    assert links.intra is not None
    assert links.inter is not None
    return links.intra, links.inter


def _to_owners(links: Links, coder: Coder, parts: Parts, sizes: Sequence[int], seed: int) -> list[Tensor]:
    """For each played rank r: uint8 [n, P], packet of every node's sum of chunk r."""
    dtype, inner = parts[0][0].dtype, make_coder(inner_codec(coder.config))
    slot, inner_slot = slot_bytes(coder, sizes, dtype), slot_bytes(inner, sizes, dtype)
    intra, inter = _levels(links)
    stacks = encode_stacks(inner, parts, inner_slot, [mix_seed(seed, r) for r in links.ranks])
    received = intra.all_to_all([_by_place(stack, links.node_size) for stack in stacks])
    node_sums = [
        _sum_node(coder, inner, packets, sizes, dtype, slot, place=r % links.node_size, seed=mix_seed(seed, r, 1))
        for r, packets in zip(links.ranks, received, strict=True)
    ]
    return inter.all_to_all(node_sums)


def _by_place(stack: Tensor, node_size: int) -> Tensor:
    """[N, Pi] by rank -> [g, n * Pi]: the message for each place of the node is one tensor."""
    return stack.view(-1, node_size, stack.shape[1]).transpose(0, 1).reshape(node_size, -1)


def _sum_node(
    coder: Coder,
    inner: Coder,
    packets: Tensor,
    sizes: Sequence[int],
    dtype: torch.dtype,
    slot: int,
    *,
    place: int,
    seed: int,
) -> Tensor:
    """packets [g, n * Pi] of the node's ranks -> uint8 [n, P]: the node's sums of the chunks of this place."""
    g, nodes = len(packets), len(sizes) // len(packets)
    by_node = packets.view(g, nodes, -1)
    return torch.stack(
        [resum(inner, coder, by_node[:, k], sizes[k * g + place], dtype, slot, mix_seed(seed, k)) for k in range(nodes)]
    )

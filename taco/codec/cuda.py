"""The group codec's kernels as torch operators: torch.ops.taco.{encode, decode_sum, decode_sum_encode}.

They equal reference.py bit for bit on CUDA tensors and, compiled from the same source, on CPU tensors. Each is one
launch for all rows, up to 65535, or 32 where rounding is stochastic. A codec is one integer to them (`number`). Fake
implementations serve torch.compile and opcheck; packets carry no gradient, so the operators have no autograd formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, library

from taco.codec import wire
from taco.config import PAYLOADS, ROTATIONS, SCALES, GroupCodec
from taco.kernels import LIBRARY, BuildError


@lru_cache(maxsize=1)
def load() -> None:
    """Load the library and register the fakes, once a process. Raises `BuildError` if it is missing or foreign."""
    if not LIBRARY.exists():
        raise BuildError(
            f"got no {LIBRARY}; need the kernel library; because it is built by `python -m taco kernels build`"
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise BuildError(
            f"got {LIBRARY} that does not load ({error}); need a rebuild; because torch or CUDA differ"
        ) from error
    library.register_fake("taco::encode", _fake_encode)
    library.register_fake("taco::decode_sum", _fake_decode_sum)
    library.register_fake("taco::decode_sum_encode", _fake_decode_sum_encode)


@torch.compiler.assume_constant_result
def available() -> bool:
    """Whether the library is built and loads here."""
    try:
        load()
    except BuildError:
        return False
    return True


def why_not(config: GroupCodec) -> str:
    """Why the kernels cannot run this codec, or ''."""
    return "" if config.clip == 1 else f"clip={config.clip} has no kernel (kernels scale by the whole absmax)"


def number(config: GroupCodec) -> int:
    """The codec as kernels/binding.cpp reads it: fields of 3, 2, 1, 1, 1, 4, 4 bits, lowest first.

    They are payload, scale, adaptive, signed, stochastic, log2 of the group, log2 of the rotation block (0: none).
    Raises `ValueError` for a codec that the kernels cannot run: the number would be that of another.
    """
    if reason := why_not(config):
        raise ValueError(f"got codec {config.name!r}; need one that the kernels can run; because {reason}")
    block = 1 if config.rotation == "none" else config.rotation_size or config.group
    fields = (
        (PAYLOADS.index(config.payload), 3),
        (SCALES.index(config.scale), 2),
        (config.adaptive_scale, 1),
        (config.rotation == "signed", 1),
        (config.rounding == "stochastic", 1),
        (config.group.bit_length() - 1, 4),
        (block.bit_length() - 1, 4),
    )
    value, shift = 0, 0
    for field, bits in fields:
        value |= int(field) << shift
        shift += bits
    return value


def config_of(codec: int) -> GroupCodec:
    """Inverse of `number`, for what the number holds."""
    fields = []
    for bits in (3, 2, 1, 1, 1, 4, 4):
        fields.append(codec & ((1 << bits) - 1))
        codec >>= bits
    payload, scale, adaptive, signed, stochastic, group, block = fields
    return GroupCodec(
        name="operator",
        payload=PAYLOADS[payload],
        scale=SCALES[scale],
        adaptive_scale=bool(adaptive),
        rounding="stochastic" if stochastic else "nearest",
        group=1 << group,
        rotation=ROTATIONS[0] if block == 0 else ROTATIONS[1 + signed],
        rotation_size=0 if block == 0 else 1 << block,
    )


def encode(x: Tensor, codec: int, seeds: Sequence[int] = ()) -> Tensor:
    """x any shape, fp32/bf16/fp16 -> Packet uint8 [nbytes] on the same device.

    seeds: one where the codec rounds stochastically.
    """
    return torch.ops.taco.encode(x.contiguous(), False, codec, _signed(seeds))


def encode_rows(rows: Tensor, codec: int, seeds: Sequence[int] = ()) -> Tensor:
    """rows [P, numel] fp32/bf16/fp16 -> P Packets uint8 [P, nbytes]; seeds: one a row where they matter."""
    return torch.ops.taco.encode(rows.contiguous(), True, codec, _signed(seeds))


def decode_sum(packets: Tensor, codec: int, numel: int, dtype: torch.dtype) -> Tensor:
    """packets uint8 [P, N >= 1, nbytes] -> [P, numel] of `dtype`: sums over N in index order, in fp32, rounded once.

    [N, nbytes] -> [numel], and [nbytes] -> [numel] for a single packet. Packets may lie apart at multiples of 16 bytes.
    """
    return torch.ops.taco.decode_sum(aligned(packets), numel, dtype, codec)


def decode_sum_encode(packets: Tensor, codec: int, target: int, numel: int, seeds: Sequence[int] = ()) -> Tensor:
    """packets uint8 [P, N >= 1, nbytes] -> Packets uint8 [P, nbytes of target] of their fp32 sums, without a transform.

    [N, nbytes] -> [nbytes of target]. target: the same codec, or one of fewer bits where the packets are INT8; else the
    operator raises `RuntimeError`.
    """
    return torch.ops.taco.decode_sum_encode(aligned(packets), numel, codec, target, _signed(seeds))


def aligned(packets: Tensor) -> Tensor:
    """packets uint8 [..., nbytes] as they are when each lies at a multiple of 16 bytes, else a contiguous copy."""
    # a traced tensor has no address; the operators look at it again
    at = 0 if torch.compiler.is_compiling() else packets.data_ptr()
    if at % wire.ALIGN == 0 and packets.is_contiguous():
        return packets
    *apart, last = packets.stride()
    apart = all(n == 1 or step % wire.ALIGN == 0 for n, step in zip(packets.shape, apart, strict=False))
    if at % wire.ALIGN == 0 and last == 1 and apart:
        return packets
    return packets.clone(memory_format=torch.contiguous_format)


def _signed(seeds: Sequence[int]) -> list[int]:
    """The low 64 bits of every seed as the int64 that operators take."""
    if not seeds:
        return []
    return [((seed + 2**63) & (2**64 - 1)) - 2**63 for seed in seeds]


def _nbytes(codec: int, numel: int) -> int:
    return wire.group_layout(config_of(codec), numel).total


def _fake_encode(x: Tensor, rows: bool, codec: int, seeds: Sequence[int]) -> Tensor:
    shape = (x.shape[0], _nbytes(codec, x.shape[1])) if rows else (_nbytes(codec, x.numel()),)
    return x.new_empty(shape, dtype=torch.uint8)


def _fake_decode_sum(packets: Tensor, numel: int, dtype: torch.dtype, codec: int) -> Tensor:
    return packets.new_empty((*packets.shape[:-2], numel), dtype=dtype)


def _fake_decode_sum_encode(packets: Tensor, numel: int, codec: int, target: int, seeds: Sequence[int]) -> Tensor:
    return packets.new_empty((*packets.shape[:-2], _nbytes(target, numel)))

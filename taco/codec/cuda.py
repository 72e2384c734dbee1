"""The group codec's kernels as torch operators: torch.ops.taco.{encode, decode, decode_sum, decode_sum_encode}.

They equal reference.py bit for bit on CUDA tensors and, compiled from the same source, on CPU tensors. Packets are
laid out by wire.py; the operators get its offsets. Fake implementations serve torch.compile and opcheck.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from taco.codec import wire
from taco.config import GroupCodec
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
    torch.library.register_fake("taco::encode", _fake_encode)
    torch.library.register_fake("taco::decode", _fake_decode)
    torch.library.register_fake("taco::decode_sum", _fake_decode)
    torch.library.register_fake("taco::decode_sum_encode", _fake_sum_encode)


def available() -> bool:
    """Whether the library is built and loads here."""
    try:
        load()
    except BuildError:
        return False
    return True


def encode(flat: Tensor, config: GroupCodec, seed: int = 0) -> Tensor:
    """flat [numel] fp32/bf16/fp16 -> Packet uint8 [nbytes] on the same device."""
    load()
    return torch.ops.taco.encode(
        flat.contiguous(),
        *_rotation(config),
        *_scales(config),
        config.rounding == "stochastic",
        _signed(seed),
        _sections(config, flat.numel()),
    )


def decode(packet: Tensor, config: GroupCodec, numel: int, dtype: torch.dtype) -> Tensor:
    """packet uint8 [nbytes] -> [numel] of `dtype`."""
    load()
    return torch.ops.taco.decode(
        packet.contiguous(), numel, dtype, *_rotation(config), *_scales(config), _sections(config, numel)
    )


def decode_sum(packets: Tensor, config: GroupCodec, numel: int, dtype: torch.dtype) -> Tensor:
    """packets uint8 [N, nbytes], contiguous -> their sum [numel] of `dtype`, in index order, in fp32, rounded once."""
    load()
    return torch.ops.taco.decode_sum(
        packets, numel, dtype, *_rotation(config), *_scales(config), _sections(config, numel)
    )


def decode_sum_encode(packets: Tensor, config: GroupCodec, numel: int, seed: int = 0) -> Tensor:
    """packets uint8 [N, nbytes], contiguous -> Packet uint8 [nbytes] of their fp32 sum, added in the rotated domain."""
    load()
    return torch.ops.taco.decode_sum_encode(
        packets, numel, config.payload, config.group, *_scales(config), config.rounding == "stochastic", _signed(seed),
        _sections(config, numel),
    )  # fmt: skip


def _rotation(config: GroupCodec) -> tuple[str, int, int, bool]:
    size = 1 if config.rotation == "none" else config.rotation_size or config.group
    return config.payload, config.group, size, config.rotation == "signed"


def _scales(config: GroupCodec) -> tuple[str, bool]:
    return config.scale, config.adaptive_scale


def _signed(seed: int) -> int:
    """The low 64 bits of `seed` as the int64 that operators take."""
    return ((seed + 2**63) & (2**64 - 1)) - 2**63


def _sections(config: GroupCodec, numel: int) -> list[int]:
    """Byte offsets of low plane, high plane, scales and alphas (-1: no such section), then the Packet's size."""
    form = wire.group_layout(config, numel)
    offsets = dict(zip(form.names, form.offsets, strict=True))
    low = offsets.get("payload8", offsets.get("payload4"))
    return [low, offsets.get("payload2", -1), offsets["scale"], offsets.get("alpha", -1), form.total]


def _fake_encode(x: Tensor, *settings: Any, sections: list[int] | None = None) -> Tensor:
    return x.new_empty((sections or settings[-1])[-1], dtype=torch.uint8)


def _fake_decode(packets: Tensor, numel: int, dtype: torch.dtype, *settings: Any, **named: Any) -> Tensor:
    return packets.new_empty(numel, dtype=dtype)


def _fake_sum_encode(packets: Tensor, *settings: Any, **named: Any) -> Tensor:
    return packets.new_empty(packets.shape[-1])

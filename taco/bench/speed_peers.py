"""Other implementations to time beside ours: the reference under torch.compile, and those of a file of the user's.

Such a file has a list ARMS of dicts:

    arm      its name; one that starts with 'coccl' is the authors' released kernel
    op       'encode' or 'decode'
    codec    what it computes: a preset's name where it is one
    make     x bf16 [numel] on the GPU -> a call without arguments that runs the operation once, on torch's current
             stream, and returns its outputs
    source   where the code is from
    note     what a reader of its time must know
    bytes_per_element   optional: bytes that a call must read and write for each element of x; without it those of the
                        preset, or what encode returns; a codec that is no preset needs it to decode

Other keys are the file's own. Operands that need work (a packet to decode) are made in `make`, which is called for
every set of operands. torch times and captures on its current stream: what a call launches elsewhere is not seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from taco.bench.peer_files import listed
from taco.bench.speed_case import bytes_moved, numel_of, packet_bytes
from taco.bench.speed_timer import Call, tensors_of
from taco.codec import coder
from taco.config import require
from taco.recipes import PRESETS, SpeedCase, SpeedGrid, preset
from taco.recipes.speed import CODING


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One operation of another implementation; the module's text says what the fields mean."""

    arm: str
    op: str
    codec: str
    make: Callable[[Tensor], Call]
    source: str
    note: str
    bytes_per_element: float | None = None

    def bytes_moved(self, case: SpeedCase, outputs: Any) -> int:
        """Bytes that a call must move. outputs: what one call returned. Raises `ConfigError` if nothing tells."""
        if self.bytes_per_element:
            return round(self.bytes_per_element * numel_of(case))
        if self.codec in PRESETS:
            return bytes_moved(case, packet_bytes(case))
        require(
            self.op == "encode",
            f"arm {self.arm} that decodes {self.codec}, no preset, without bytes_per_element",
            "bytes_per_element",
            "a rate needs the bytes that are read",
        )
        return bytes_moved(case, sum(t.numel() * t.element_size() for t in tensors_of(outputs)))


def load(path: Path) -> list[Peer]:
    """The arms of a file. Raises `ConfigError` for a missing file, another form, or an arm that is there twice."""
    return _checked([_peer(path, arm) for arm in listed(path, "ARMS")])


def _peer(path: Path, arm: Any) -> Peer:
    given = {k: v for k, v in arm.items() if k in Peer.__dataclass_fields__} if isinstance(arm, dict) else {}
    needed = [f.name for f in fields(Peer) if f.default is MISSING]
    require(
        set(needed) <= set(given) and given["op"] in CODING and callable(given["make"]),
        f"an arm of {path} with {', '.join(given) or 'no such fields'}",
        f"a dict with {', '.join(needed)}, whose op is {' or '.join(CODING)}",
        "each arm is one operation",
    )
    return Peer(**given)


def _checked(peers: list[Peer]) -> list[Peer]:
    names = [(p.arm, p.op, p.codec) for p in peers]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(not twice, f"arms {twice} more than once", "each once", "a table has one row for it")
    return peers


def compiled(grid: SpeedGrid) -> list[Peer]:
    """Encode and decode of the reference, plain torch, as torch.compile makes them."""
    return [
        Peer(
            arm="compile", op=op, codec=codec, make=_maker(op, codec), source="torch.compile of the reference",
            note=f"torch {torch.__version__}, default mode",
        )
        for codec in grid.compiled_codecs
        for op in CODING
        if op in grid.ops
    ]  # fmt: skip


def _maker(op: str, codec: str) -> Callable[[Tensor], Call]:
    reference = coder(preset(codec), backend="reference")

    @functools.cache
    def run() -> Callable:
        """Compiled once for all sets of operands, when first needed."""
        return torch.compile(reference.encode if op == "encode" else reference.decode, dynamic=False)

    def make(x: Tensor) -> Call:
        if op == "encode":
            return lambda: run()(x)
        packet = reference.encode(x)
        return lambda: run()(packet, x.numel(), x.dtype)

    return make

"""Tensors that a training run handed to its collectives, as the trainer saved them.

A file holds '<role>|<name>|<rank>' -> tensor, and in its metadata 'run' and 'step'. name is a module path such as
'model.layers.3.mlp.down_proj'; rank is that of the tensor-parallel group, so that tensors of equal role and name are
the parts of one collective.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)(?:\.|$)")


@dataclass(frozen=True, kw_only=True, eq=False)
class Captured:
    """One tensor as handed to a collective; layer is -1 outside the decoder's layers."""

    run: str
    step: int
    role: str
    name: str
    rank: int
    tensor: Tensor

    @property
    def layer(self) -> int:
        found = _LAYER.search(self.name)
        return int(found.group(1)) if found else -1


def read(paths: Iterable[Path], limit: int = 0) -> list[Captured]:
    """All tensors of the files, in the order of file, role, layer, name and rank.

    limit: keep about this many elements of each tensor (whole rows of its last dimension), 0 for all.
    Raises `ValueError` for a file or a key of another form.
    """
    return [c for path in paths for c in sorted(_read(Path(path), limit), key=_order)]


def _order(c: Captured) -> tuple:
    return c.role, c.layer, c.name, c.rank


def _read(path: Path, limit: int) -> Iterator[Captured]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"got {path}; need a capture file; because reading it failed: {error}") from error
    for key, tensor in tensors.items():
        parts = key.split("|")
        if len(parts) != 3 or not parts[2].isdigit():
            raise ValueError(
                f"got key {key!r} in {path}; need role|name|rank; because parts of a collective are paired"
            )
        yield Captured(
            run=metadata.get("run", path.stem),
            step=int(metadata.get("step", 0)),
            role=parts[0],
            name=parts[1],
            rank=int(parts[2]),
            tensor=_rows(tensor, limit),
        )


def _rows(tensor: Tensor, limit: int) -> Tensor:
    if not limit or tensor.numel() <= limit:
        return tensor
    rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() > 1 else tensor
    return rows[: max(1, limit // (rows[0].numel()))]


class Place(NamedTuple):
    """Where tensors come from: what a run sent in a role at a step; or a synthetic set, which has no step and role."""

    dataset: str
    step: int | None = None
    role: str = ""


def by_collective(captured: Iterable[Captured]) -> dict[Place, list[list[Tensor]]]:
    """For each collective of a place, its ranks' tensors in rank order."""
    groups: dict[Place, dict[str, list[Tensor]]] = {}
    for c in captured:
        groups.setdefault(Place(c.run, c.step, c.role), {}).setdefault(c.name, []).append(c.tensor)
    return {key: list(names.values()) for key, names in groups.items()}


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean of SQNRs in dB; NaN for none.

    Messages that arrived exactly (inf) are left out unless all did: every codec keeps a message of zeros, such as the
    share of a vocabulary without tokens, and one of them would make every mean infinite.
    """
    values = list(values)
    values = [v for v in values if v != math.inf] or values
    return sum(values) / len(values) if values else float("nan")

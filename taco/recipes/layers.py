"""Which blocks get which codec: policies by layer, and the layers that measured errors say to protect."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from taco.config import TENSOR_ROLES, Codec, Override, Policy, require
from taco.recipes.codecs import preset


def with_layers(chosen: Policy, layers: Mapping[str, Iterable[int]], codec: str | Codec) -> Policy:
    """`chosen` with another codec, a preset's name or one of your own, in layers[role] of each role.

    Raises `ConfigError` for an unknown name or role, a number in place of layers, layers that `chosen` overrides
    already, and those that have this codec.
    """
    found = codec if isinstance(codec, Codec) else preset(codec)
    for role, each in layers.items():
        require(isinstance(each, Iterable), f"layers {each!r} of {role}", "several, e.g. (0, 11)", "each is overridden")
    more = (Override(role=role, layers=tuple(each), codec=found) for role, each in layers.items())
    return replace(chosen, overrides=(*chosen.overrides, *more))


def protected(records: Iterable[Mapping[str, Any]], share: float) -> dict[str, tuple[int, ...]]:
    """The fewest messages to protect so that those left have at most `share` of the squared error: role -> layers.

    records: those of kind `sensitivity` of a log, {role, layer, error}; of several logs squares are added. Errors of
    separate messages are taken as independent, so that squares add up. Roles without a layer to protect are left out;
    `with_layers` takes the answer. Raises `ConfigError` for a share outside 0 to 1, no records, or an error that is not
    finite.
    """
    require(0 <= share <= 1, f"share={share!r}", "a number from 0 to 1", "it is a part of the whole error")
    squares: dict[tuple[str, int], float] = {}
    for record in records:
        place, error = (record["role"], record["layer"]), float(record["error"])
        require(math.isfinite(error), f"error {error} of {place}", "a finite number", "it is compared with others")
        squares[place] = squares.get(place, 0.0) + error * error
    require(bool(squares), "no records", "those of kind sensitivity", "a run writes them with train.sensitivity")
    order = sorted(squares, key=lambda place: (-squares[place], place))
    limit, kept = share * math.fsum(squares.values()), 0
    while math.fsum(squares[place] for place in order[kept:]) > limit:
        kept += 1
    found = {role: tuple(sorted(layer for r, layer in order[:kept] if r == role)) for role in TENSOR_ROLES}
    return {role: layers for role, layers in found.items() if layers}

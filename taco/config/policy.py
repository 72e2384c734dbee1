"""How the messages between processes are compressed: a codec per role, per block, and for the first steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from taco.config.check import at_least, one_of, require
from taco.config.codec import NONE, Codec

TENSOR_ROLES = ("tp_forward", "tp_backward")
ROLES = (*TENSOR_ROLES, "dp_gradient", "dp_weight", "pp_forward", "pp_backward")


def block_of(name: str) -> int | None:
    """The transformer block that a module lies in: the first number in its dotted name, as in 'model.layers.3.mlp';
    None outside of blocks (embedding, head)."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


@dataclass(frozen=True, kw_only=True)
class Override:
    """Another codec than its role's for the tensor-parallel messages of some blocks.

    role: 'tp_forward' or 'tp_backward'. layers: the blocks' numbers in the whole model, from 0.
    """

    role: str
    layers: tuple[int, ...]
    codec: Codec

    def __post_init__(self) -> None:
        one_of("role", self.role, TENSOR_ROLES, "only tensor-parallel messages belong to a block")
        require(
            isinstance(self.layers, tuple) and bool(self.layers),
            f"layers={self.layers!r}",
            "a tuple of at least one number",
            "an override without layers would be ignored",
        )
        at_least(0, "it is the number of a block", **{f"layers[{i}]": layer for i, layer in enumerate(self.layers)})
        _check_codec("codec", self.codec)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which codec each role and direction uses.

    min_bytes: messages smaller than this (bytes before compression) go uncompressed.
    all_reduce: algorithm of the compressed TP all-reduce; 'auto' is one_shot for two ranks, else two_shot.
    overrides: blocks whose messages have another codec than tp_forward or tp_backward says; the embedding and the head
        are no blocks.
    """

    tp_forward: Codec = NONE
    tp_backward: Codec = NONE
    dp_gradient: Codec = NONE
    dp_weight: Codec = NONE
    pp_forward: Codec = NONE
    pp_backward: Codec = NONE
    min_bytes: int = 0
    all_reduce: str = "auto"
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        at_least(0, "it is a size in bytes", min_bytes=self.min_bytes)
        one_of(
            "all_reduce", self.all_reduce, ("auto", "one_shot", "two_shot", "hierarchical"), "these algorithms exist"
        )
        for role in ROLES:
            _check_codec(role, getattr(self, role), difference=role == "dp_weight")
        require(
            isinstance(self.overrides, tuple) and all(isinstance(each, Override) for each in self.overrides),
            f"overrides={self.overrides!r}",
            "a tuple of Override",
            "each names a role, its layers and their codec",
        )
        for role in TENSOR_ROLES:
            self._check_overrides(role)

    def _check_overrides(self, role: str) -> None:
        """Raise `ConfigError` unless every block has one codec and every name of a codec one meaning."""
        layers = sorted(layer for each in self.overrides if each.role == role for layer in each.layers)
        twice = sorted({layer for layer, after in pairwise(layers) if layer == after})
        require(
            not twice,
            f"{role} overridden twice in layer {', '.join(map(str, twice))}",
            "one codec a layer",
            "a message has one",
        )
        codecs = self._used(role)
        names = [codec.name for codec in codecs]
        alike = sorted({name for name in names if names.count(name) > 1})
        require(
            not alike,
            f"different codecs of {role} called {', '.join(alike)}",
            "a name for each",
            "paths and states are told apart by the codec's name",
        )

    def _used(self, role: str) -> list[Codec]:
        """The different codecs of a role's messages, its own first."""
        others = [each.codec for each in self.overrides if each.role == role]
        return list(dict.fromkeys([getattr(self, role), *others]))

    def codecs(self, role: str) -> dict[str, Codec]:
        """The different codecs of a role's messages by the names of their communicators: the role for its own codec,
        'role.codec' for others, such as 'tp_forward.int8'."""
        return {self.key(role, codec): codec for codec in self._used(role)}

    def key(self, role: str, codec: Codec) -> str:
        """What `codecs` calls one of a role's codecs."""
        return role if codec == getattr(self, role) else f"{role}.{codec.name}"

    def codec(self, role: str, name: str = "") -> Codec:
        """The codec of a role's messages that come from the module called `name`."""
        block = block_of(name)
        found = (each.codec for each in self.overrides if each.role == role and block in each.layers)
        return next(found, getattr(self, role))

    def compresses(self, *roles: str) -> bool:
        """Whether any message of these roles is compressed."""
        return any(codec != NONE for role in roles for codec in self._used(role))

    def check_blocks(self, blocks: Collection[int]) -> None:
        """Raise `ConfigError` for an override of a block that is none of `blocks`, those of a whole model."""
        for each in self.overrides:
            strange = [layer for layer in each.layers if layer not in blocks]
            require(
                not strange,
                f"{each.role} overridden in layer {', '.join(map(str, strange))}",
                f"layers of the model, {f'0 to {max(blocks)}' if blocks else 'which has none'}",
                "a codec that no message takes would be ignored",
            )


def _check_codec(field: str, codec: Codec, *, difference: bool = False) -> None:
    """Raise `ConfigError` for what is no codec, or for one of differences where there are none."""
    require(
        isinstance(codec, Codec), f"{field}={codec!r}", "a Codec", "presets are looked up by taco.recipes.preset(name)"
    )
    require(
        difference or not getattr(codec, "difference", False),
        f"{field}={codec.name!r}",
        "a codec without difference",
        "only weights are sent again every step",
    )

"""How the messages between processes are compressed: a codec per role, per block, and for the first steps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from taco.config.check import at_least, one_of, require
from taco.config.codec import NONE, Codec

TENSOR_ROLES = ("tp_forward", "tp_backward")
ROLES = (*TENSOR_ROLES, "dp_gradient", "dp_weight", "pp_forward", "pp_backward")
ENDS = -1
"""Stands in `Override.layers` for the messages outside of blocks, those of the embedding and the head."""


def block_of(name: str) -> int | None:
    """The transformer block that a module lies in: the first number in its dotted name, as in 'model.layers.3.mlp';
    None outside of blocks (embedding, head)."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


@dataclass(frozen=True, kw_only=True)
class Override:
    """Another codec than its role's for the tensor-parallel messages of some blocks.

    role: 'tp_forward' or 'tp_backward'. layers: the blocks' numbers in the whole model, from 0, or `ENDS`.
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
        numbers = {f"layers[{i}]": layer for i, layer in enumerate(self.layers)}
        at_least(ENDS, "it is the number of a block; -1 means embedding and head", **numbers)
        _check_codec("codec", self.codec)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Which codec each role and direction uses.

    min_bytes: messages smaller than this (bytes before compression) go uncompressed.
    all_reduce: algorithm of the compressed TP all-reduce; 'auto' is one_shot for two ranks, else two_shot.
    overrides: blocks, or embedding and head, whose messages have another codec than tp_forward or tp_backward says.
    warmup_steps: for so many steps of training every tensor-parallel message that would be compressed has the codec
        `warmup` instead.
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
    warmup_steps: int = 0
    warmup: Codec = NONE

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
        self._check_overrides()
        self._check_warmup()
        for role in TENSOR_ROLES:
            self._check_names(role)

    def _check_overrides(self) -> None:
        """Raise `ConfigError` for an override that changes nothing."""
        for each in self.overrides:
            require(
                each.codec != getattr(self, each.role),
                f"{each.role} of layer {', '.join(map(str, each.layers))} overridden with its own {each.codec.name!r}",
                f"another codec than {each.role} has",
                "the override would change nothing",
            )

    def _check_warmup(self) -> None:
        """Raise `ConfigError` for a warm-up that changes nothing."""
        at_least(0, "it counts steps", warmup_steps=self.warmup_steps)
        own = [*(getattr(self, role) for role in TENSOR_ROLES), *(each.codec for each in self.overrides)]
        others = [codec for codec in own if codec not in (NONE, self.warmup)]
        _check_codec("warmup", self.warmup)
        require(
            self.warmup == NONE or self.warmup_steps > 0,
            f"warmup={self.warmup.name!r} with warmup_steps=0",
            "warmup_steps above 0",
            "the codec would not be used",
        )
        require(
            self.warmup_steps == 0 or bool(others),
            f"warmup_steps={self.warmup_steps} of {self.warmup.name!r}, which no other codec follows",
            "one in tp_forward, tp_backward or overrides",
            "it delays what they do",
        )

    def _check_names(self, role: str) -> None:
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
        found = [getattr(self, role), *(each.codec for each in self.overrides if each.role == role)]
        if self.warmup_steps and role in TENSOR_ROLES and any(codec != NONE for codec in found):
            found.append(self.warmup)
        return list(dict.fromkeys(found))

    def codecs(self, role: str) -> dict[str, Codec]:
        """The different codecs of a role's messages by the names of their communicators: the role for its own codec,
        'role.codec' for others, such as 'tp_forward.int8'."""
        return {self.key(role, codec): codec for codec in self._used(role)}

    def key(self, role: str, codec: Codec) -> str:
        """What `codecs` calls one of a role's codecs."""
        return role if codec == getattr(self, role) else f"{role}.{codec.name}"

    def warming(self, step: int) -> bool:
        """Whether training step `step`, counted from 1, is one of the warm-up."""
        return step <= self.warmup_steps

    def codec(self, role: str, name: str = "", *, warming: bool = False) -> Codec:
        """The codec of a role's messages that come from the module called `name`, in the warm-up or after it."""
        block = block_of(name)
        block = ENDS if block is None and name else block
        found = (each.codec for each in self.overrides if each.role == role and block in each.layers)
        chosen = next(found, getattr(self, role))
        return self.warmup if warming and role in TENSOR_ROLES and chosen != NONE else chosen

    def compresses(self, *roles: str) -> bool:
        """Whether any message of these roles is compressed."""
        return any(codec != NONE for role in roles for codec in self._used(role))

    def check_blocks(self, blocks: Collection[int]) -> None:
        """Raise `ConfigError` for an override of a block that is none of `blocks`, those of a whole model."""
        for each in self.overrides:
            strange = [layer for layer in each.layers if layer not in blocks and layer != ENDS]
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

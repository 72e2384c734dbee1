"""The communicators of tensor parallelism, one for each role and codec, and which of them a module's messages take."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from taco.comm.collectives import Collectives
from taco.config import TENSOR_ROLES, Codec, Policy, require
from taco.config.check import at_least

C = TypeVar("C", bound=Collectives)
"""`Communicator`, or `VirtualCommunicator` of virtual ranks."""


class RoleComms(Generic[C]):
    """What real and virtual ranks share.

    communicators: one for each role and codec of the policy, by the keys of `Policy.codecs`; those of a role share its
    name in the meter and in errors. make(role, key, codec) makes one.
    A policy with a warm-up needs `begin_step` before each step of training.
    """

    def __init__(self, policy: Policy, make: Callable[[str, str, Codec], C]) -> None:
        self.policy = policy
        self.communicators: dict[str, C] = {
            key: make(role, key, codec) for role in TENSOR_ROLES for key, codec in policy.codecs(role).items()
        }
        self._warming: bool | None = None if policy.warmup_steps else False  # None: until a step is said
        self._chosen: dict[tuple[str, str], C] = {}  # of the present phase

    def begin_step(self, step: int) -> None:
        """Messages from now on are those of training step `step`, counted from 1: in the warm-up or after it.

        All ranks say the same. Evaluation has the codecs of the step that was said last. Raises ConfigError below 1.
        """
        at_least(1, "steps are counted from 1", step=step)
        warming = self.policy.warming(step)
        if warming != self._warming:
            self._warming = warming
            self._chosen.clear()

    @property
    def phase(self) -> Hashable:
        """What a message's communicator depends on besides its role and name: one recording of a pass holds for one."""
        return self._warming

    def sender(self, role: str, name: str) -> C:
        """The communicator of a role's messages that come from the module called `name`.

        Raises ConfigError for a message without a name where the policy has codecs by layer, and for one before
        `begin_step` where it has a warm-up.
        """
        chosen = self._chosen.get((role, name))
        if chosen is None:
            chosen = self._chosen[role, name] = self._choose(role, name)
        return chosen

    def _choose(self, role: str, name: str) -> C:
        policy = self.policy
        require(
            bool(name) or not policy.overrides,
            f"a {role} message of a module without a name, with codecs by layer",
            "comm_name of the module, which parallelize() sets",
            "the block that a message comes from is read from it",
        )
        require(
            self._warming is not None,
            f"a {role} message before begin_step(step), with warmup_steps={policy.warmup_steps}",
            "that call before each step",
            "the step says which codec is on",
        )
        return self.communicators[policy.key(role, policy.codec(role, name, warming=bool(self._warming)))]

"""The communicators of tensor parallelism, one for each role and codec, and which of them a module's messages take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from taco.comm.collectives import Collectives
from taco.config import TENSOR_ROLES, Codec, Policy, require

C = TypeVar("C", bound=Collectives)
"""`Communicator`, or `VirtualCommunicator` of virtual ranks."""


class RoleComms(Generic[C]):
    """What real and virtual ranks share.

    communicators: one for each role and codec of the policy, by the keys of `Policy.codecs`; those of a role share its
    name in the meter and in errors. make(role, key, codec) makes one.
    """

    def __init__(self, policy: Policy, make: Callable[[str, str, Codec], C]) -> None:
        self.policy = policy
        self.communicators: dict[str, C] = {
            key: make(role, key, codec) for role in TENSOR_ROLES for key, codec in policy.codecs(role).items()
        }
        self._chosen: dict[tuple[str, str], C] = {}

    def sender(self, role: str, name: str) -> C:
        """The communicator of a role's messages that come from the module called `name`.

        Raises ConfigError for a message without a name where the policy has codecs by layer.
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
        return self.communicators[policy.key(role, policy.codec(role, name))]

"""What a communicator knows of a message before it is sent: one look-up for each form of message.

Everything here follows from the collective, the message's size, dtype and device, and the communicator's options, so
it is worked out for the first message of a form and holds for the next. Ranks that make the same calls make the same
plans at the same calls; questions that all ranks have to answer together are asked then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from taco.comm.errors import check_local

LIMIT = 1024  # plans that are kept

# collective, elements, dtype, device, and whether all chunks have one size
Form = tuple[str, int, torch.dtype, torch.device, bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """path, algorithm: as of `Route`. compressed: whether there are packets. peers: whether kernels write into the
    peers' memory. slices: see taco/comm/slices.py. raw, wire: bytes for the meter; wire None: what links have sent."""

    path: str
    algorithm: str
    compressed: bool
    peers: bool
    slices: int
    raw: int
    wire: int | None


class Option:
    """An attribute of a communicator that its plans follow from: a new value makes it plan anew."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, comm: Any, owner: type) -> Any:
        return self if comm is None else comm.__dict__[self._name]

    def __set__(self, comm: Any, value: Any) -> None:
        comm.__dict__[self._name] = value
        comm.__dict__["_plans"] = {}


def without_autograd(method: Callable) -> Callable:
    """As `torch.no_grad()` on a method, without its host time, most of all where gradients are off already.

    Raises ValueError for a DTensor as the method's first argument.
    """

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for x in args[1:2] or kwargs.values():
            check_local(x)
        if not torch.is_grad_enabled():
            return method(*args, **kwargs)
        torch._C._set_grad_enabled(False)
        try:
            return method(*args, **kwargs)
        finally:
            torch._C._set_grad_enabled(True)

    return call

"""Passes that judge weights: with messages as they are (`uncompressed`), or leaving no count behind (`untraced`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from taco.comm.collectives import Collectives
from taco.config import TENSOR_ROLES

ACTIVATIONS = (*TENSOR_ROLES, "pp_forward", "pp_backward")
"""Activations and their gradients. Weights and their gradients are state of the training, not of a pass."""


class Communicating(Protocol):
    """A `Parallelism`, or the `TensorComm` or `VirtualComm` of a parallel model."""

    communicators: Mapping[str, Collectives]


@contextmanager
def untraced(communicators: Iterable[Collectives]) -> Iterator[None]:
    """Inside, passes count nothing but bytes: paths are not told, and random numbers of codecs not used up."""
    before = [(c, c.paths.copy(), c.calls, c.messages) for c in communicators]
    try:
        yield
    finally:
        for communicator, *counts in before:
            communicator.paths, communicator.calls, communicator.messages = counts


@contextmanager
def uncompressed(par: Communicating) -> Iterator[None]:
    """Inside, activations and their gradients travel as they are, and passes leave no trace (`untraced`): what weights
    are worth without the errors of the pass that judges them.

    Collective: all ranks enter and leave it between the same messages. Weights that data parallelism sends, and
    gradients, are compressed as ever.

    with uncompressed(par):          # or model.tensor_comm, model.virtual_comm
        loss = par.eval_loss(tokens, targets)
    """
    chosen = [communicator for communicator in par.communicators.values() if communicator.role in ACTIVATIONS]
    before = [communicator.min_bytes for communicator in chosen]
    with untraced(chosen):
        try:
            for communicator in chosen:
                communicator.min_bytes = sys.maxsize
            yield
        finally:
            for communicator, least in zip(chosen, before, strict=True):
                communicator.min_bytes = least

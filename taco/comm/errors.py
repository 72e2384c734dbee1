"""What goes wrong while messages travel."""

from __future__ import annotations


class CommError(RuntimeError):
    """A peer died or timed out, or the backend failed.

    The text names this rank, the role, the collective and its call number, the phase, and what the backend said.
    """

"""What goes wrong while messages travel, and what cannot travel."""

from __future__ import annotations

from typing import Any

from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor


class CommError(RuntimeError):
    """A peer died or timed out, or the backend failed.

    The text names this rank, the role, the collective and its call number, the phase, and what the backend said.
    """


def check_group(group: Any) -> None:
    """Raise `ValueError` for a mesh in place of a process group."""
    if isinstance(group, DeviceMesh):
        names = group.mesh_dim_names or ()
        each = " or ".join(f"mesh.get_group({name!r})" for name in names) or "mesh.get_group()"
        raise ValueError(f"got a DeviceMesh {names}; need {each}; because messages travel within one group of ranks")


def check_local(x: Any) -> None:
    """Raise `ValueError` for a DTensor."""
    if type(x) is DTensor:  # a third of isinstance's time, which small messages would notice
        raise ValueError(
            f"got a DTensor {x.placements}; need x.to_local(); because ranks exchange what each holds, and a result "
            "is a plain tensor"
        )

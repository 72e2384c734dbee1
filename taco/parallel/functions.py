"""Tensor parallelism's autograd Functions: what crosses ranks in forward, and what in backward.

    function   forward                               backward
    copy       x                                     all-reduce of the gradients        (Megatron's f)
    reduce     all-reduce of the partial sums        gradient                           (Megatron's g)
    gather     all-gather of the sequence shards     reduce-scatter of the gradients
    scatter    reduce-scatter of the partial sums    all-gather of the gradient shards
    own_share  x (one or more)                       exact sum of the gradients, one message
    collect    all-gather of the last dim, exact     this rank's slice of the gradient

Forward messages go through the role tp_forward, backward ones through tp_backward, exact ones uncompressed.
`name` is the module's name: observers see it, and the policy may give the messages of a block another codec.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from taco.comm import Communicator, Crossover, Meter
from taco.config import NONE, Codec, Policy
from taco.parallel.roles import RoleComms

SEQUENCE_DIM = 1
EXACT = "exact"


class TensorComm(RoleComms[Communicator]):
    """The communicators of one tensor-parallel group. `exact` carries small uncompressed sums."""

    def __init__(self, policy: Policy, make: Callable[[str, str, Codec], Communicator], exact: Communicator) -> None:
        super().__init__(policy, make)
        self.exact = exact

    @classmethod
    def build(
        cls,
        mesh: DeviceMesh,
        policy: Policy,
        *,
        meter: Meter | None = None,
        observer: Callable[[str, str, Tensor], None] | None = None,
        node_size: int = 0,
        seed: int = 0,
        tables: Mapping[str, Crossover] | None = None,
    ) -> TensorComm:
        """For the one-dimensional `mesh`. tables: key of `Policy.codecs` -> the measured table that chooses paths."""
        group, tables = mesh.get_group(), tables or {}
        shared = {"meter": meter, "node_size": node_size, "seed": seed, "observer": observer}
        shared |= {"min_bytes": policy.min_bytes, "algorithm": policy.all_reduce}

        def make(role: str, key: str, codec: Codec) -> Communicator:
            return Communicator(group, codec, role=role, crossover=tables.get(key), **shared)

        return cls(policy, make, Communicator(group, NONE, role=EXACT, meter=meter))

    @property
    def rank(self) -> int:
        return self.exact.rank

    @property
    def world_size(self) -> int:
        return self.exact.world_size

    def copy(self, x: Tensor, name: str = "") -> Tensor:
        return _Copy.apply(x, self, name)

    def reduce(self, x: Tensor, name: str = "") -> Tensor:
        return _Reduce.apply(x, self, name)

    def gather(self, x: Tensor, name: str = "") -> Tensor:
        return _Gather.apply(x, self, name)

    def scatter(self, x: Tensor, name: str = "") -> Tensor:
        return _Scatter.apply(x, self, name)

    def own_share(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return _OwnShare.apply(self, *tensors)

    def collect(self, x: Tensor) -> Tensor:
        return _Collect.apply(x, self)


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: TensorComm, name: str) -> Tensor:
        ctx.comm, ctx.name = comm, name
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return ctx.comm.sender("tp_backward", ctx.name).all_reduce(grad, name=ctx.name), None, None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: TensorComm, name: str) -> Tensor:
        return comm.sender("tp_forward", name).all_reduce(x, name=name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return grad, None, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: TensorComm, name: str) -> Tensor:
        ctx.comm, ctx.name = comm, name
        return comm.sender("tp_forward", name).all_gather(x, SEQUENCE_DIM, name=name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return ctx.comm.sender("tp_backward", ctx.name).reduce_scatter(grad, SEQUENCE_DIM, name=ctx.name), None, None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: TensorComm, name: str) -> Tensor:
        ctx.comm, ctx.name = comm, name
        return comm.sender("tp_forward", name).reduce_scatter(x, SEQUENCE_DIM, name=name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return ctx.comm.sender("tp_backward", ctx.name).all_gather(grad, SEQUENCE_DIM, name=ctx.name), None, None


class _OwnShare(Function):
    @staticmethod
    def forward(ctx: Any, comm: TensorComm, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.comm = comm
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        total = ctx.comm.exact.all_reduce(torch.cat([grad.reshape(-1) for grad in grads]))
        parts = total.split([grad.numel() for grad in grads])
        return None, *(part.view(grad.shape) for part, grad in zip(parts, grads, strict=True))


class _Collect(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: TensorComm) -> Tensor:
        ctx.comm = comm
        return comm.exact.all_gather(x, x.ndim - 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        # every rank computes the same loss from the whole tensor, so its gradient is already complete
        return grad.chunk(ctx.comm.world_size, dim=-1)[ctx.comm.rank].contiguous(), None


def compute_dtype(x: Tensor) -> Tensor:
    """x in autocast's dtype where autocast is on: messages travel in the dtype of the matmul they feed or come from."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

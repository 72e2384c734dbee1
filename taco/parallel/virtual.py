"""Virtual tensor parallelism: one process computes the partial sums of R ranks and reduces them as the wire would.

    module                real rank r of R                    here
    attention, MLP        weights[r] @ x, then g              for r: weights[r] @ x; g over the R results
    f backward            all-reduce of the input gradients   the same over R gradients
    embedding             rows of shard r, then g             R look-ups, then g
    head, loss            logits of shard r                   R logits, combined in rank order

The matmuls have the shapes (and contiguous operands) of a real rank and the reductions are taco.comm's, so loss and
gradients equal real TP = R bit for bit. The model keeps full, ordinary parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from taco.comm import Crossover, Meter, VirtualCommunicator
from taco.config import Codec, Policy, require
from taco.parallel.checks import check_blocks, check_heads, check_inside, check_norms, check_policy, matching
from taco.parallel.functions import compute_dtype
from taco.parallel.layers import LocalView, check_embedding, check_shares, extend, lookup
from taco.parallel.plans import HEAD, module_names
from taco.parallel.roles import RoleComms

VIRTUAL_DIM = "virtual_dim"


class VirtualComm(RoleComms[VirtualCommunicator]):
    """The communicators of R virtual ranks."""

    def __init__(self, ways: int, policy: Policy, make: Callable[[str, str, Codec], VirtualCommunicator]) -> None:
        super().__init__(policy, make)
        self.world_size = ways
        self._instead: VirtualComm | None = None

    @classmethod
    def build(
        cls, ways: int, policy: Policy, *, tables: Mapping[str, Crossover] | None = None, **options: Any
    ) -> VirtualComm:
        """tables: as in `TensorComm.build`. options: meter, observer, node_size, seed, plain_sum of
        `VirtualCommunicator`."""
        found = tables or {}
        options |= {"min_bytes": policy.min_bytes, "algorithm": policy.all_reduce}

        def make(role: str, key: str, codec: Codec) -> VirtualCommunicator:
            return VirtualCommunicator(ways, codec, role=role, crossover=found.get(key), **options)

        return cls(ways, policy, make)

    @contextmanager
    def instead(self, other: VirtualComm) -> Iterator[None]:
        """Inside, messages go through `other`, of as many ranks: whole passes with other codecs that leave no bytes,
        paths or calls behind here."""
        require(
            other.world_size == self.world_size,
            f"communicators of {other.world_size} ranks in place of {self.world_size}",
            "as many",
            "each rank sends one partial sum",
        )
        before, self._instead = self._instead, other
        try:
            yield
        finally:
            self._instead = before

    @property
    def phase(self) -> Hashable:
        return super().phase, self._instead

    def sender(self, role: str, name: str) -> VirtualCommunicator:
        return super().sender(role, name) if self._instead is None else self._instead.sender(role, name)

    def copies(self, x: Tensor, name: str) -> tuple[Tensor, ...]:
        """f: R views of x, not to be changed."""
        return _Copies.apply(x, self, name)

    def reduce(self, parts: list[Tensor], name: str) -> Tensor:
        """g: the sum of R partial sums, as every rank would receive it."""
        return _Reduce.apply(self, name, *parts)


class _Copies(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, comm: VirtualComm, name: str) -> tuple[Tensor, ...]:
        ctx.comm, ctx.name = comm, name
        return tuple(x.view_as(x) for _ in range(comm.world_size))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return ctx.comm.sender("tp_backward", ctx.name).all_reduce(list(grads), name=ctx.name), None, None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, comm: VirtualComm, name: str, *parts: Tensor) -> Tensor:
        return comm.sender("tp_forward", name).all_reduce(list(parts), name=name)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return None, None, *(grad for _ in ctx.needs_input_grad[2:])


class _Split(Function):
    """A parameter as R contiguous shards along dim; the gradient is their concatenation."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, ways: int, dim: int) -> tuple[Tensor, ...]:
        ctx.dim = dim
        return tuple(shard.clone(memory_format=torch.contiguous_format) for shard in parameter.chunk(ways, dim))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        return torch.cat(grads, ctx.dim), None, None


class Sharded(LocalView):
    """A linear layer inside a block: while the block runs rank r, its parameters read as shard r.

    dims: parameter name -> dim of its shards. A row-wise layer's bias is left to the block.
    """

    dims: dict[str, int]
    held_back: tuple[str, ...] = ()
    shards: dict[str, tuple[Tensor, ...]] | None = None
    virtual_rank = 0

    def read(self, name: str) -> Tensor | None:
        if self.shards is None:
            return self._parameters[name]
        return None if name in self.held_back else self.shards[name][self.virtual_rank]


class VirtualBlock:
    """Mixin for attention and MLP: runs the block once per rank and reduces the results."""

    comm: VirtualComm
    comm_name = ""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        layers = [layer for layer in self.modules() if isinstance(layer, Sharded)]
        copies = self.comm.copies(compute_dtype(x), self.comm_name)
        parts = []
        try:
            for layer in layers:
                layer.shards = split(layer, self.comm.world_size, layer.dims)
            for rank, copy in enumerate(copies):
                for layer in layers:
                    layer.virtual_rank = rank
                parts.append(compute_dtype(super().forward(copy, *args, **kwargs)))
        finally:
            for layer in layers:
                layer.shards = None
        y = self.comm.reduce(parts, self.output.comm_name)
        bias = self.output.bias
        return y if bias is None else y + bias.to(y.dtype)


class VirtualEmbedding:
    """Mixin for nn.Embedding with rows shared out to R ranks."""

    comm: VirtualComm
    comm_name = ""

    def forward(self, tokens: Tensor) -> Tensor:
        shards = _Split.apply(self.weight, self.comm.world_size, 0)
        parts = [compute_dtype(lookup(shard, tokens, rank, self.padding_idx)) for rank, shard in enumerate(shards)]
        return self.comm.reduce(parts, self.comm_name)


class VirtualHead:
    """Mixin for the head: a tuple of R logits [..., vocab / R], for `virtual_cross_entropy`."""

    comm: VirtualComm
    comm_name = ""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        shards = split(self, self.comm.world_size, {"weight": 0, "bias": 0})
        biases = shards.get("bias", (None,) * self.comm.world_size)
        copies = self.comm.copies(compute_dtype(x), self.comm_name)
        return tuple(F.linear(*parts) for parts in zip(copies, shards["weight"], biases, strict=True))


def split(module: nn.Module, ways: int, dims: dict[str, int]) -> dict[str, tuple[Tensor, ...]]:
    """The module's own parameters named in dims, as `ways` shards each."""
    own = {name: p for name, p in module._parameters.items() if p is not None and name in dims}
    return {name: _Split.apply(p, ways, dims[name]) for name, p in own.items()}


def _mix(module: nn.Module, mixin: type, **attributes: Any) -> None:
    old = type(module)
    module.__class__ = type(mixin.__name__ + old.__name__, (mixin, old), {"__module__": old.__module__})
    for name, value in attributes.items():
        setattr(module, name, value)


def _check_arguments(model: nn.Module, policy: Policy) -> None:
    check_policy(policy)
    require(
        not hasattr(getattr(model, "config", None), "model_type"),
        f"Hugging Face's {type(model).__name__}",
        "a model of taco.models (load_hf converts)",
        "its blocks are called in another way",
    )
    require(
        not (hasattr(model, "virtual_comm") or hasattr(model, "tensor_comm")),
        f"{type(model).__name__} that is already parallel",
        "a model that is not",
        "a share is not shared out again",
    )


def virtual_tp(
    model: nn.Module,
    ways: int,
    policy: Policy,
    *,
    meter: Meter | None = None,
    observer: Callable[[str, str, Tensor], None] | None = None,
    node_size: int = 0,
    seed: int = 0,
    comm: VirtualComm | None = None,
) -> nn.Module:
    """Let `model` (GPT or Qwen of taco.models, or one with their names and calls) compute as TP = ways would; in place.

    The head returns a tuple of `ways` logits for `virtual_cross_entropy`. The meter counts what one rank would send.
    Every rank's block gets the same input: none may change it in place.
    Parameters stay whole; those that ranks would share out carry the attribute `virtual_dim`, the dim of the shards.
    comm: communicators to use instead of new ones.
    Raises ConfigError for sizes that `ways` does not divide, a model without a plan, already parallel or of Hugging
    Face, a policy that is none, and one of layers that the model does not have.
    """
    _check_arguments(model, policy)
    names = module_names(model)
    check_heads(model, ways)
    if comm is None:
        check_blocks(model, policy)
        comm = VirtualComm.build(ways, policy, meter=meter, observer=observer, node_size=node_size, seed=seed)

    def each(kind: str) -> list[tuple[str, nn.Module]]:
        return [found for pattern in names[kind] for found in matching(model, pattern)]

    rows, heads = dict(each("rows")), matching(model, HEAD)
    shares = [(module, {"weight": 0, "bias": 0}) for _, module in (*each("columns"), *heads)]
    shares += [(module, {"weight": 1}) for module in rows.values()]
    shares += [(module, {"weight": 0}) for _, module in each("embedding")]
    for module, dims in shares:  # all of them before anything is changed
        check_shares(module, ways, "virtual ranks", **dims)
        if isinstance(module, nn.Embedding):
            check_embedding(module)
    known = [module for kind in ("columns", "rows", "heads") for _, module in each(kind)]
    check_inside(model, [module for _, module in each("blocks")], known)
    check_norms(model, names["heads"])
    for module, dims in shares:
        _mark(module, dims)
    for name, module in each("columns"):
        extend(module, Sharded, comm_name=name, dims={"weight": 0, "bias": 0})
    for name, module in rows.items():
        extend(module, Sharded, comm_name=name, dims={"weight": 1}, held_back=("bias",))
    for name, module in each("blocks"):
        (output,) = (layer for row, layer in rows.items() if row.startswith(name + "."))
        object.__setattr__(module, "output", output)  # not a second registration of the child
        _mix(module, VirtualBlock, comm=comm, comm_name=name)
    for name, module in each("embedding"):
        _mix(module, VirtualEmbedding, comm=comm, comm_name=name)
    for name, module in heads:
        _mix(module, VirtualHead, comm=comm, comm_name=name)
    model.virtual_comm = comm
    return model


def _mark(module: nn.Module, dims: dict[str, int]) -> None:
    for name, dim in dims.items():
        if module._parameters.get(name) is not None:
            setattr(module._parameters[name], VIRTUAL_DIM, dim)

"""What parallelized modules do: mixins that `taco.parallel.tensor` puts before a module's own class.

mixin           parameters of rank r               forward
Colwise         rows r of weight and bias          (f, then) this rank's output columns
Rowwise         columns r of weight, whole bias    g over the partial sums, then the bias
VocabSharded    rows r of the embedding            g over look-ups that are zero outside r
SequenceShard   replicated                         the module's own; gradients summed over ranks, exactly
PositionShard   replicated                         this rank's part of the positions
Replicated      replicated                         the module's own
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from taco.config import require
from taco.parallel.functions import SEQUENCE_DIM, TensorComm, compute_dtype

SEQUENCE = Shard(SEQUENCE_DIM)


class LocalView:
    """Mixin: while `forward` runs, parameters read as local tensors (with autograd back to the DTensor).

    comm: the group's communicators. comm_name: the module's name, for observers. prepared: an enclosing module has
    already done f. in_layout, out_layout: `Replicate()` or `Shard(1)`.
    """

    comm: TensorComm
    comm_name = ""
    prepared = False
    reading_local = False
    in_layout: Placement = Replicate()
    out_layout: Placement = Replicate()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self.local_parameters():
            return super().forward(*args, **kwargs)

    @contextmanager
    def local_parameters(self) -> Iterator[None]:
        self.reading_local = True
        try:
            yield
        finally:
            self.reading_local = False

    def read(self, name: str) -> Tensor:
        """The parameter, or inside forward its local tensor."""
        parameter = self._parameters[name]
        return self.to_local(parameter) if self.reading_local else parameter

    def to_local(self, parameter: Tensor) -> Tensor:
        return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def extend(module: nn.Module, mixin: type, **attributes: Any) -> None:
    """Give `module` the class (mixin, its class) in place, with a property for each own parameter.

    The instance keeps its state, names and isinstance relations; print(model) shows the new class.
    """
    old = type(module)
    readers = {name: property(partial(_read, name)) for name, p in module._parameters.items() if p is not None}
    module.__class__ = type(mixin.__name__ + old.__name__, (mixin, old), {"__module__": old.__module__, **readers})
    for name, value in attributes.items():
        setattr(module, name, value)


def _read(name: str, module: LocalView) -> Tensor:
    return module.read(name)


def enter_block(comm: Any, x: Tensor, layout: Placement, name: str) -> Tensor:
    """f: every rank gets the whole x; its gradients are reduced."""
    x = compute_dtype(x)
    return comm.gather(x, name) if layout == SEQUENCE else comm.copy(x, name)


def leave_block(comm: Any, x: Tensor, layout: Placement, name: str) -> Tensor:
    """g: partial sums become the whole (or this rank's part of the) output."""
    x = compute_dtype(x)
    return comm.scatter(x, name) if layout == SEQUENCE else comm.reduce(x, name)


class Colwise(LocalView):
    """A linear layer that computes this rank's output columns."""

    gather_output = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.prepared:
            x = enter_block(self.comm, x, self.in_layout, self.comm_name)
        y = super().forward(x)
        return self.comm.collect(y) if self.gather_output else y


class Rowwise(LocalView):
    """A linear layer that multiplies this rank's input columns and reduces."""

    def forward(self, x: Tensor) -> Tensor:
        with self.local_parameters():
            y = leave_block(self.comm, F.linear(x, self.weight), self.out_layout, self.comm_name)
            # each rank adds the whole bias to the reduced sum: before it, it would be counted once per rank
            return y if self._parameters.get("bias") is None else y + self.bias.to(y.dtype)

    def to_local(self, parameter: Tensor) -> Tensor:
        local = super().to_local(parameter)
        # under sequence parallelism the bias sees only this rank's tokens
        shared = self.out_layout == SEQUENCE and parameter is self._parameters.get("bias")
        return self.comm.own_share(local)[0] if shared else local


class VocabSharded(LocalView):
    """An embedding whose rows are shared out: ids of other ranks give zeros, then the sum over ranks is taken."""

    def forward(self, tokens: Tensor) -> Tensor:
        with self.local_parameters():
            y = lookup(self.weight, tokens, self.comm.rank, self.padding_idx)
        return leave_block(self.comm, y, self.out_layout, self.comm_name)


def lookup(weight: Tensor, tokens: Tensor, rank: int, padding: int | None = None) -> Tensor:
    """Rows of `tokens` that lie in shard `rank` [vocab / R, hidden]; zeros elsewhere; id `padding` gets no gradient."""
    start, rows = rank * weight.shape[0], weight.shape[0]
    ids = tokens - start
    outside = (ids < 0) | (ids >= rows)
    own = padding - start if padding is not None and start <= padding < start + rows else None
    return F.embedding(ids.masked_fill(outside, 0), weight, own).masked_fill(outside[..., None], 0)


def check_embedding(module: nn.Embedding) -> None:
    """Raise ConfigError for what a look-up in shards does not do."""
    require(
        module.max_norm is None and not module.scale_grad_by_freq and not module.sparse,
        f"an embedding with max_norm={module.max_norm}, scale_grad_by_freq={module.scale_grad_by_freq}, "
        f"sparse={module.sparse}",
        "none of them",
        "a rank knows its own rows and counts alone",
    )


def check_shares(module: nn.Module, ranks: int, kind: str, **dims: int) -> None:
    """Raise ConfigError unless each own parameter splits evenly along its dim of dims. kind: what ranks are called."""
    for name, dim in dims.items():
        parameter = module._parameters.get(name)
        size = 0 if parameter is None else parameter.shape[dim]
        require(
            size % ranks == 0,
            f"{name} of {type(module).__name__} with dim {dim} of {size} on {ranks} {kind}",
            f"a multiple of {ranks}",
            "each rank holds an equal share",
        )


class SequenceShard(LocalView):
    """Replicated parameters that see only this rank's tokens: their gradients are summed over the ranks, exactly."""

    shares: dict[str, Tensor] | None = None

    @contextmanager
    def local_parameters(self) -> Iterator[None]:
        own = {name: self.to_local(p) for name, p in self._parameters.items() if p is not None}
        self.shares = dict(zip(own, self.comm.own_share(*own.values()), strict=True))
        try:
            with super().local_parameters():
                yield
        finally:
            self.shares = None

    def read(self, name: str) -> Tensor:
        return super().read(name) if self.shares is None else self.shares[name]


class PositionShard(SequenceShard):
    """An embedding of positions [seq] or [batch, seq]: this rank keeps its part of the sequence."""

    def forward(self, positions: Tensor) -> Tensor:
        out = super().forward(positions)
        return out.chunk(self.comm.world_size, dim=-2)[self.comm.rank]


class Replicated(LocalView):
    """Parameters that every rank holds and whose gradients are the same on every rank."""

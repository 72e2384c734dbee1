"""Tensor parallelism: torch's ParallelStyles, with every collective through a Communicator of the Policy.

    style               parameters           message
    ColwiseParallel     Shard(0)             f at its input, unless an enclosing module already did it
    RowwiseParallel     Shard(1), bias repl. g on its output, the bias added after it
      on nn.Embedding   Shard(0)             g on its output
    PrepareModuleInput  none                 f, once for all projections inside
    SharedParallel      replicated           their gradients summed, exactly (the input is a rank's share, as of heads)
    SequenceParallel    replicated           the same (the input is a part of the sequence)
      on nn.Embedding   replicated           the same; the output is this rank's part of the positions

f is the identity forward and an all-reduce backward, g the reverse; with `Shard(1)` layouts (sequence parallelism) f
is all-gather / reduce-scatter and g is reduce-scatter / all-gather. Parameters become DTensors, so DCP and FSDP2
work on them; inside a module's forward they read as their local shards, so the module's own code runs unchanged and
DTensor never communicates. Dtypes of activations are the module's own; messages travel in autocast's dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import parallel as torch_parallel

from taco.config import require
from taco.parallel.functions import SEQUENCE_DIM, TensorComm
from taco.parallel.layers import (
    Colwise,
    PositionShard,
    Replicated,
    Rowwise,
    SequenceShard,
    VocabSharded,
    check_embedding,
    check_shares,
    enter_block,
    extend,
)


class Styled:
    """What this package's styles share. `comm` may be given here or by `parallelize`."""

    comm: TensorComm | None = None

    def bound(self, mesh: DeviceMesh) -> TensorComm:
        require(
            self.comm is not None,
            f"{type(self).__name__} without communicators",
            "parallelize(), or comm=TensorComm.build(mesh, policy)",
            "collectives go through a Communicator of the Policy",
        )
        require(
            self.comm.world_size == mesh.size(),
            f"communicators of {self.comm.world_size} ranks on a mesh of {mesh.size()}",
            "the same group",
            "shards and sums have to match",
        )
        return self.comm

    def check(self, module: nn.Module, ranks: int) -> None:
        """Raise ConfigError for a module that this style cannot shard over so many ranks; changes nothing."""

    def shard(self, module: nn.Module, mesh: DeviceMesh, **placements: Placement) -> None:
        """Replace the module's own parameters by DTensors; those not named are replicated."""
        for name, parameter in list(module._parameters.items()):
            if parameter is None or isinstance(parameter, DTensor):
                continue
            placement = placements.get(name, Replicate())
            tensor = distribute_tensor(parameter.data, mesh, [placement], src_data_rank=self.src_data_rank)
            module.register_parameter(name, nn.Parameter(tensor, requires_grad=parameter.requires_grad))


def _only(module: nn.Module, style: object, *allowed: type) -> None:
    names = " or ".join(f"nn.{cls.__name__}" for cls in allowed)
    require(
        isinstance(module, allowed),
        f"{type(style).__name__} on {type(module).__name__}",
        names,
        "the layout of its weight has to be known",
    )


def _plain_forward(module: nn.Module, style: object) -> None:
    require(
        type(module).forward in (nn.Linear.forward, nn.Embedding.forward),
        f"{type(style).__name__} on {type(module).__name__}, which has a forward of its own",
        "that of nn.Linear or nn.Embedding",
        "a sum over ranks takes its place, without what else it does",
    )


class ColwiseParallel(Styled, torch_parallel.ColwiseParallel):
    """See the module's table. output_layouts=Replicate() gathers the output, exactly, for code that needs all of it."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        comm: TensorComm | None = None,
    ) -> None:
        super().__init__(input_layouts=input_layouts, output_layouts=output_layouts)
        self.comm = comm

    def check(self, module: nn.Module, ranks: int) -> None:
        _only(module, self, nn.Linear)
        check_shares(module, ranks, "ranks", weight=0, bias=0)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.check(module, device_mesh.size())
        comm = self.bound(device_mesh)
        self.shard(module, device_mesh, weight=Shard(0), bias=Shard(0))
        extend(
            module,
            Colwise,
            comm=comm,
            in_layout=self.input_layouts[0],
            gather_output=self.output_layouts[0] == Replicate(),
        )
        return module


class RowwiseParallel(Styled, torch_parallel.RowwiseParallel):
    """See the module's table. output_layouts=Shard(1) leaves each rank its part of the sequence."""

    def __init__(self, *, output_layouts: Placement | None = None, comm: TensorComm | None = None) -> None:
        super().__init__(output_layouts=output_layouts)
        self.comm = comm

    def check(self, module: nn.Module, ranks: int) -> None:
        _only(module, self, nn.Linear, nn.Embedding)
        _plain_forward(module, self)
        if isinstance(module, nn.Embedding):
            check_embedding(module)
        check_shares(module, ranks, "ranks", weight=1 if isinstance(module, nn.Linear) else 0)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        self.check(module, device_mesh.size())
        comm = self.bound(device_mesh)
        linear = isinstance(module, nn.Linear)
        self.shard(module, device_mesh, weight=Shard(1 if linear else 0))
        extend(module, Rowwise if linear else VocabSharded, comm=comm, out_layout=self.output_layouts[0])
        return module


class SequenceParallel(Styled, torch_parallel.SequenceParallel):
    """See the module's table; the input already is this rank's part of the sequence (dim 1)."""

    def __init__(self, *, comm: TensorComm | None = None) -> None:
        super().__init__(sequence_dim=SEQUENCE_DIM, use_local_output=True)
        self.comm = comm

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        comm = self.bound(device_mesh)
        self.shard(module, device_mesh)
        extend(module, PositionShard if isinstance(module, nn.Embedding) else SequenceShard, comm=comm)
        return module


class PrepareModuleInput(Styled, torch_parallel.PrepareModuleInput):
    """See the module's table. `argument`: the input's keyword, where it is not positional."""

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        argument: str = "hidden_states",
        comm: TensorComm | None = None,
    ) -> None:
        layout = input_layouts or Replicate()
        super().__init__(input_layouts=(layout,), desired_input_layouts=(Replicate(),))
        self.layout, self.argument, self.comm = layout, argument, comm

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module.comm, module.comm_name = self.bound(device_mesh), ""
        for inner in module.modules():
            inner.prepared = inner is not module
        module.register_forward_pre_hook(self._prepare, with_kwargs=True)
        return module

    def _prepare(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        enter: Callable[[Tensor], Tensor] = partial(self._enter, module)
        if args:
            return (enter(args[0]), *args[1:]), kwargs
        return args, kwargs | {self.argument: enter(kwargs[self.argument])}

    def _enter(self, module: nn.Module, x: Tensor) -> Tensor:
        return enter_block(module.comm, x, self.layout, module.comm_name)


class ReplicateParallel(Styled, torch_parallel.ParallelStyle):
    """Everything that no other style takes: parameters become replicated DTensors."""

    mixin: type = Replicated

    def __init__(self, *, comm: TensorComm | None = None) -> None:
        super().__init__()
        self.comm = comm

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        comm = self.bound(device_mesh)
        self.shard(module, device_mesh)
        extend(module, self.mixin, comm=comm)
        return module


class SharedParallel(ReplicateParallel):
    """See the module's table: parameters that see a rank's share of the work, such as the norm of each head."""

    mixin = SequenceShard

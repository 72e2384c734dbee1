"""Data parallelism: FSDP2 with its collectives through Communicators of the roles dp_weight and dp_gradient.

    symbol   shape                 meaning
    shard    [n] dtype             this rank's part of a parameter group (a block, or everything outside blocks)
    last     [dp * n] dtype        what every rank computed with after the last gather (same bits on all ranks)

    weights, difference codec (SDP4Bit, arXiv 2410.15526):  q = encode(shard - last[own]); last += decode(all-gather(q))
    weights, other codecs:                                  all-gather of encode(shard)
    gradients:  reduce-scatter, hierarchical with node_size, mean over the axis

The first gather after construction sends the weights themselves. `last` holds quantisation errors that later
differences correct, so a resumed run equals the uninterrupted one bit for bit only with `Differences.state_dict`
in its checkpoint; without it the first gather is exact again. Weights are sent once per change, at the first gather
after `weights_changed`; later gathers (backward, the next microbatch, more evaluation) repeat `last` without
communication, so evaluating does not change what is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.tensor import DTensor, Shard

from taco.comm import Communicator


class _Allocate:
    """Temporary buffers, as FSDP2's default."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class GatherWeights(_Allocate, AllGather):
    """FSDP2's all-gather of one parameter group through `comm`."""

    def __init__(self, comm: Communicator, name: str) -> None:
        self.comm, self.name = comm, name

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        # the input may be a slice of the output
        output_tensor.copy_(self.comm.all_gather(input_tensor.clone(), 0, name=self.name))


class GatherDifferences(GatherWeights):
    """The same, as differences to what was sent last.

    parameters: the group's sharded parameters. dtype: in which they are gathered.
    """

    def __init__(
        self,
        comm: Communicator,
        exact: Communicator,
        name: str,
        parameters: list[nn.Parameter],
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(comm, name)
        self.exact, self.parameters, self.dtype = exact, parameters, dtype
        self.last: Tensor | None = None
        self.sent: Tensor | None = None  # this rank's shard when it was sent
        self.changed = True  # since then, as far as `Differences` was told
        self.check = False

    def numel(self) -> int:
        """Elements that this rank sends for the group."""
        return sum(_padded_numel(p, self.comm.world_size) for p in self.parameters)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> None:
        shard = input_tensor.clone()
        if self.last is None:
            self.last = self.exact.all_gather(shard, 0, name=self.name)
        elif self.changed:
            self.last = self._advance(shard)
        elif self.check and self.sent is not None and not _same_bits(shard, self.sent):
            raise RuntimeError(
                f"got weights of {self.name} that changed after they were sent; need evaluation after the optimizer's "
                "step, not before it; because every change is sent once"
            )
        self.sent, self.changed, self.check = shard, False, False
        output_tensor.copy_(self.last)

    def _advance(self, shard: Tensor) -> Tensor:
        own = self.last.chunk(self.comm.world_size)[self.comm.rank]
        # in the dtype that plain weights would be sent in, so that bytes are compared with those
        difference = (shard.float() - own.float()).to(self.dtype)
        decoded = self.comm.all_gather(difference, 0, name=self.name)
        return (self.last.float() + decoded.float()).to(self.last.dtype)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Also where both hold the same NaN."""
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


class ReduceGradients(_Allocate, ReduceScatter):
    """FSDP2's reduce-scatter of one parameter group through `comm`; AVG and SUM."""

    def __init__(self, comm: Communicator, name: str) -> None:
        self.comm, self.name = comm, name

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        if op not in (dist.ReduceOp.AVG, dist.ReduceOp.SUM):
            raise ValueError(f"got reduction {op}; need AVG or SUM; because the wire sums and divides by the ranks")
        total = self.comm.reduce_scatter(input_tensor, 0, name=self.name)
        output_tensor.copy_(total / self.comm.world_size if op == dist.ReduceOp.AVG else total)


def local(tensor: Tensor) -> Tensor:
    """The tensor itself, or a DTensor's local part (same storage, no autograd)."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


class Differences:
    """The weight-difference state of a rank's parameter groups, for checkpoints."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh  # ("dp", "tp"): one position per shard
        self.gathers: dict[str, GatherDifferences] = {}

    def step_begins(self) -> None:
        """Let each group verify at its next gather that weights which count as sent have not changed."""
        for gather in self.gathers.values():
            gather.check = True

    def weights_changed(self) -> None:
        """To be called between a step's backward and the next forward: the next gather sends again."""
        for gather in self.gathers.values():
            gather.changed = True

    def state_dict(self) -> dict[str, Tensor]:
        """For each group this rank's part of `last`, as a DTensor over (dp, tp), and its condition: 1 the weights are
        still those, 0 they have to be sent again, -1 nothing was sent yet (then the part is zeros).
        """
        state: dict[str, Tensor] = {}
        for name, gather in self.gathers.items():
            own = torch.zeros(gather.numel(), dtype=torch.float32, device=local(gather.parameters[0]).device)
            if gather.last is not None:
                own = gather.last.chunk(gather.comm.world_size)[gather.comm.rank].clone()
            sharded = DTensor.from_local(own[None, None], self.mesh, [Shard(0), Shard(1)], run_check=False)
            state[f"dp_weight.{name}"] = sharded
            condition = -1 if gather.last is None else int(not gather.changed)
            state[f"dp_weight.{name}.condition"] = torch.tensor(condition)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`; call it after the weights were loaded. Collective over dp.

        A group that `state` lacks starts with an exact gather. Raises ValueError for a state of another shape.
        """
        for name, gather in self.gathers.items():
            condition = int(state.get(f"dp_weight.{name}.condition", -1))
            if condition < 0:
                gather.last, gather.changed = None, True
                continue
            part = local(state[f"dp_weight.{name}"]).flatten()
            if part.numel() != gather.numel():
                raise ValueError(
                    f"got {part.numel()} elements for {name}; need {gather.numel()}; "
                    "because the state of weight differences belongs to one process grid"
                )
            gather.last = gather.exact.all_gather(part.to(gather.dtype), 0, name=name)
            gather.sent, gather.changed = None, condition == 0


def _padded_numel(parameter: DTensor, ways: int) -> int:
    """Elements that FSDP2 sends per rank: dim 0 is padded to a multiple of the ranks."""
    full = _unsharded_shape(parameter)
    return -(-full[0] // ways) * (full.numel() // full[0])


def _unsharded_shape(parameter: DTensor) -> torch.Size:
    """The shape after the gather over dp: the global shape, divided along what tp shards."""
    shape = list(parameter.shape)
    for axis, placement in zip(parameter.device_mesh.mesh_dim_names, parameter.placements, strict=True):
        if axis == "tp" and placement.is_shard():
            shape[placement.dim] //= parameter.device_mesh[axis].size()
    return torch.Size(shape)


def shard_data(
    model: nn.Module,
    mesh: DeviceMesh,
    weights: Communicator,
    gradients: Communicator,
    exact: Communicator,
    *,
    dtype: torch.dtype = torch.float32,
    keep_gathered: bool = False,
    prefix: str = "",
) -> Differences:
    """Apply `fully_shard` over mesh["dp"] to every block of `model` (our GPT or Qwen) and to the rest, in place.

    mesh: the device mesh with axes dp and tp; parameters may be DTensors on tp. dtype: of gathered weights; gradients
    are reduced in fp32. keep_gathered: blocks stay gathered from forward to backward (pipelines).
    Returns the difference state; it has no groups unless the codec of `weights` has `difference`.
    """
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    differences = Differences(mesh["dp", "tp"])
    done: set[nn.Parameter] = set()
    for name, module in [*((f"{prefix}block{k}", b) for k, b in model.blocks.items()), (f"{prefix}rest", model)]:
        fully_shard(
            module,
            mesh=mesh["dp"],
            mp_policy=precision,
            reshard_after_forward=module is not model and not keep_gathered,
        )
        own = [p for p in module.parameters() if p not in done]
        done.update(own)
        if not own:
            continue
        if getattr(weights.codec, "difference", False):
            gather = GatherDifferences(weights, exact, name, own, dtype)
            differences.gathers[name] = gather
        else:
            gather = GatherWeights(weights, name)
        module.set_custom_all_gather(gather)
        module.set_custom_reduce_scatter(ReduceGradients(gradients, name))
    return differences


def set_last_backward(model: nn.Module, last: bool) -> None:
    """Whether the next backward is the last of the step: only then gradients are reduced and weights released."""
    if isinstance(model, FSDPModule):
        model.set_is_last_backward(last)
        model.set_requires_gradient_sync(last)
        model.set_reshard_after_backward(last)


def release_weights(model: nn.Module) -> None:
    """Free gathered weights (after evaluation): an optimizer step changes the shards only."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()

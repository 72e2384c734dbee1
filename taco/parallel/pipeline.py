"""Pipeline parallelism: torch's schedules with stages that send Packets.

    stage s of S   holds blocks [s * L / S, (s + 1) * L / S); the first also the embedding, the last the norm and head
    forward        hidden states [micro_batch, seq (/ tp under sequence parallelism), hidden], role pp_forward
    backward       their gradients, role pp_backward

A packet is what `Communicator.packet` makes of a tensor; torch's stages keep their own buffers of the tensor's shape
and dtype, and this subclass puts packets into the transfers and unpacks them before the stage reads its buffers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

from taco.comm import Communicator
from taco.config import Model, Parallel, require
from taco.parallel.data import set_last_backward

# whole-batch logits are not wanted; older schedules have no switch for it
_NO_OUTPUTS = {"return_outputs": False} if "return_outputs" in inspect.signature(Schedule1F1B.step).parameters else {}


class PacketStage(PipelineStage):
    """A `PipelineStage` whose messages go through two communicators over the pipeline group.

    data_parallel: the FSDP2 module inside `submodule` (which torch must not see as one: its own handling of FSDP
    differs between versions), or None.
    """

    def __init__(
        self,
        submodule: nn.Module,
        index: int,
        count: int,
        device: torch.device,
        *,
        forward: Communicator,
        backward: Communicator,
        data_parallel: nn.Module | None,
        example_input: Tensor,
        example_output: tuple[Tensor, ...],
        group: dist.ProcessGroup,
    ) -> None:
        super().__init__(
            submodule, index, count, device, input_args=example_input, output_args=example_output, group=group
        )
        self.forward_comm, self.backward_comm = forward, backward
        self.data_parallel = data_parallel
        self._waiting: dict[tuple[str, int], list[tuple[Tensor, Tensor]]] = {}

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._pack(super().get_fwd_send_ops(fwd_chunk_id), self.forward_comm)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._pack(super().get_bwd_send_ops(bwd_chunk_id), self.backward_comm)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._expect(super().get_fwd_recv_ops(fwd_chunk_id), self.forward_comm, ("forward", fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._expect(super().get_bwd_recv_ops(bwd_chunk_id), self.backward_comm, ("backward", bwd_chunk_id))

    def _retrieve_recv_activations(self, fwd_chunk_id: int) -> Any:
        self._unpack(self.forward_comm, ("forward", fwd_chunk_id))
        return super()._retrieve_recv_activations(fwd_chunk_id)

    def _retrieve_recv_grads(self, bwd_chunk_id: int) -> Any:
        self._unpack(self.backward_comm, ("backward", bwd_chunk_id))
        return super()._retrieve_recv_grads(bwd_chunk_id)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, last_backward: bool = False, **kwargs: Any) -> None:
        if self.data_parallel is not None:
            set_last_backward(self.data_parallel, last_backward)
        super().backward_one_chunk(bwd_chunk_id, *args, last_backward=last_backward, **kwargs)

    def _pack(self, ops: list[dist.P2POp], comm: Communicator) -> list[dist.P2POp]:
        name = f"stage{self.stage_index}"
        return [dist.P2POp(dist.isend, comm.packet(op.tensor, name=name), op.peer, op.group) for op in ops]

    def _expect(self, ops: list[dist.P2POp], comm: Communicator, key: tuple[str, int]) -> list[dist.P2POp]:
        packets = [comm.packet_buffer(op.tensor.shape, op.tensor.dtype, op.tensor.device) for op in ops]
        self._waiting[key] = [(packet, op.tensor) for packet, op in zip(packets, ops, strict=True)]
        return [dist.P2POp(dist.irecv, packet, op.peer, op.group) for packet, op in zip(packets, ops, strict=True)]

    @torch.no_grad()
    def _unpack(self, comm: Communicator, key: tuple[str, int]) -> None:
        for packet, buffer in self._waiting.pop(key, ()):
            buffer.copy_(comm.unpack(packet, buffer.shape, buffer.dtype))


def schedule(
    parallel: Parallel, stages: list[PacketStage], loss_fn: Callable[[Tensor, Tensor], Tensor], microbatches: int
) -> Any:
    """torch's schedule for `parallel.schedule`. loss_fn already divides by the microbatches.

    Raises ConfigError for fewer microbatches than pipeline ranks, and for an interleaved schedule whose microbatches
    are not a multiple of them.
    """
    require(
        microbatches >= parallel.pp,
        f"microbatches={microbatches} with pp={parallel.pp}",
        f"microbatches >= {parallel.pp}",
        "a pipeline with fewer microbatches than stages leaves stages without work",
    )
    if parallel.schedule == "interleaved":
        require(
            microbatches % parallel.pp == 0,
            f"microbatches={microbatches} with pp={parallel.pp} and the interleaved schedule",
            f"a multiple of {parallel.pp}",
            "it runs rounds of one microbatch per rank",
        )
        return ScheduleInterleaved1F1B(stages, microbatches, loss_fn=loss_fn, scale_grads=False)
    return Schedule1F1B(stages[0], microbatches, loss_fn=loss_fn, scale_grads=False)


class Pipeline:
    """The stages of this rank and how they run together. loss_fn(logits, targets) is the mean over a microbatch."""

    def __init__(
        self,
        model: Model,
        parallel: Parallel,
        parts: list[nn.Module],
        communicators: dict[str, Communicator],
        mesh: DeviceMesh,
        loss_fn: Callable[[Any, Tensor], Tensor],
    ) -> None:
        self.model, self.parallel, self.parts, self.loss_fn = model, parallel, parts, loss_fn
        self.forward_comm, self.backward_comm = communicators["pp_forward"], communicators["pp_backward"]
        self.group, self.rank = mesh.get_group("pp"), mesh.get_local_rank("pp")
        self.count = parallel.pp * len(parts)
        self._schedules: dict[tuple[int, int, int], Any] = {}

    def step(self, tokens: Tensor, targets: Tensor, microbatches: int) -> Tensor | float:
        """Forward and backward; the mean loss on the last stage's rank, 0 elsewhere. tokens, targets: [batch, seq]."""
        key = (tokens.shape[0] // microbatches, tokens.shape[1], microbatches)
        if key not in self._schedules:
            self._schedules[key] = self._schedule(*key, tokens.device)
        args = (tokens,) if self.rank == 0 else ()
        losses: list[Tensor] = []
        if self.rank == self.parallel.pp - 1:
            self._schedules[key].step(*args, target=targets, losses=losses, **_NO_OUTPUTS)
            return torch.stack([loss.detach() for loss in losses]).sum()
        self._schedules[key].step(*args, **_NO_OUTPUTS)
        return 0.0

    def _schedule(self, batch: int, seq: int, microbatches: int, device: torch.device) -> Any:
        local_seq = seq // self.parallel.tp if self.parallel.sequence_parallel else seq
        stages = []
        for i, part in enumerate(self.parts):
            index = self.rank + i * self.parallel.pp
            hidden = self._example(part, batch, local_seq, self.model.hidden)
            logits = self._example(part, batch, seq, self.model.vocab // (self.parallel.tp * self.parallel.virtual_tp))
            outputs = (logits,) * self.parallel.virtual_tp if index == self.count - 1 else (hidden,)
            stages.append(
                PacketStage(
                    part,
                    index,
                    self.count,
                    device,
                    forward=self.forward_comm,
                    backward=self.backward_comm,
                    data_parallel=part.model if self.parallel.dp > 1 else None,
                    example_input=torch.empty(batch, seq, dtype=torch.int64, device="meta") if index == 0 else hidden,
                    example_output=outputs,
                    group=self.group,
                )
            )
        return schedule(self.parallel, stages, lambda out, y: self.loss_fn(out, y) / microbatches, microbatches)

    def _example(self, part: nn.Module, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=part.dtype, device="meta", requires_grad=True)

    def evaluate(self, tokens: Tensor, targets: Tensor, microbatches: int) -> Tensor | float:
        """The same without gradients, for any number of microbatches."""
        total: Tensor | float = 0.0
        sent = []
        # a microbatch through all stages before the next: a rank that sent two in a row to one which sends in between
        # would wait for ever where sends and receives of a pair of ranks run in the order of their calls (NCCL)
        for inputs, labels in zip(tokens.chunk(microbatches), targets.chunk(microbatches), strict=True):
            for i, part in enumerate(self.parts):
                index = self.rank + i * self.parallel.pp
                x = inputs if index == 0 else self._receive(inputs.shape, part.dtype, index, tokens.device)
                y = part(x)
                if index == self.count - 1:
                    total = total + self.loss_fn(y, labels) / microbatches
                else:
                    peer = (index + 1) % self.parallel.pp
                    sent.append(self.forward_comm.isend(y, peer, name=f"stage{index}"))
        for message in sent:
            message.wait()
        return total

    def _receive(self, shape: torch.Size, dtype: torch.dtype, index: int, device: torch.device) -> Tensor:
        seq = shape[1] // self.parallel.tp if self.parallel.sequence_parallel else shape[1]
        size = (shape[0], seq, self.model.hidden)
        return self.forward_comm.recv(size, dtype, (index - 1) % self.parallel.pp, device)

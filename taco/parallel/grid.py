"""What `setup` returns: this rank's share of a training run, with TP, PP and DP hidden behind a step."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from taco.comm import Communicator, Meter
from taco.config import NONE, Model, Parallel, require
from taco.parallel.clip import clip_gradients_
from taco.parallel.data import Differences, local, release_weights, set_last_backward
from taco.parallel.functions import EXACT, TensorComm
from taco.parallel.loss import cross_entropy, virtual_cross_entropy, vocab_parallel_cross_entropy
from taco.parallel.mesh import ends_group
from taco.parallel.part import Part
from taco.parallel.plans import HEAD
from taco.parallel.predict import best
from taco.parallel.replay import Replay
from taco.parallel.virtual import VirtualComm


class Parallelism:
    """This rank's share of a training run. Made by `setup`.

    modules: the model parts of this rank (two with the interleaved schedule), fp32 master parameters, DTensors where
        tp > 1 or dp > 1. communicators: a Communicator for each codec of each role in use, by the keys of
        `Policy.codecs`: the role for its own codec, 'tp_forward.int8' for another. meter: bytes that this rank sent.
    dp_rank: which share of the batch this rank takes. is_last_stage: whether it computes the loss.
    replayed: whether the last step was a CUDA graph.

    A step: `zero_grad()`, `loss = step(...)`, `clip_(...)`, then the caller's optimizer over `named_parameters()`;
    before it `begin_step(number)` where the policy has a warm-up.
    """

    def __init__(
        self,
        model: Model,
        parallel: Parallel,
        mesh: DeviceMesh | None,
        *,
        parts: list[Part],
        communicators: dict[str, Communicator],
        tensor: TensorComm | VirtualComm | None,
        meter: Meter,
        device: torch.device,
        differences: list[Differences],
    ) -> None:
        self.model, self.parallel, self.mesh, self.device = model, parallel, mesh, device
        self.modules = [part.model for part in parts]
        self.communicators, self.meter = communicators, meter
        self._parts, self._differences, self._tensor = parts, differences, tensor
        self.pp_rank, self.dp_rank, self.tp_rank = mesh.get_coordinate() if mesh is not None else (0, 0, 0)
        self.is_last_stage = self.pp_rank == parallel.pp - 1
        self.replayed = False
        self._replay: Replay | None = None
        self._hits: Tensor | None = None  # while an evaluation counts: how many targets are the most probable token
        self._pipeline = None
        if parallel.pp > 1:
            # imported where it is needed: torch's pipelining brings its compiler, half a second in every process
            pipeline = importlib.import_module("taco.parallel.pipeline")
            self._pipeline = pipeline.Pipeline(model, parallel, parts, communicators, mesh, self._loss)
        self._ends: Communicator | None = None
        if model.tied and parallel.pp > 1:
            group = ends_group(mesh)
            if group is not None:
                self._ends = Communicator(group, NONE, role=EXACT, meter=meter)

    # --- parameters and state ---------------------------------------------------------------------------

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name in the whole model, parameter), each once per rank. Both copies of a tied weight that a pipeline
        splits have the embedding's name."""
        for module in self.modules:
            for name, parameter in module.named_parameters():
                tied_copy = name == f"{HEAD}.weight" and self.model.tied
                yield (module.embedding_name if tied_copy else name), parameter

    def zero_grad(self) -> None:
        """Set all gradients to None."""
        for _, parameter in self.named_parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters by name and the state of compressed communication, live, for torch.distributed.checkpoint.

        Communication state belongs to one process grid: 'dp_weight.*' (what weight differences refer to) and 'calls.*'
        (seeds of stochastic codecs). A checkpoint may be loaded without them; the run is then not bit-equal to an
        uninterrupted one if such codecs are used.
        """
        state: dict[str, Tensor] = {name: parameter.data for name, parameter in self.named_parameters()}
        for differences in self._differences:
            state |= differences.state_dict()
        for key, communicator in self._stochastic():
            state[key] = torch.tensor([communicator.calls, communicator.messages])
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Inverse of `state_dict`, collective. Raises ValueError for a missing parameter."""
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name not in state:
                    raise ValueError(
                        f"got a state without {name}; need every parameter; because a part would be random"
                    )
                if state[name] is not parameter.data:
                    local(parameter).copy_(local(state[name]))
        for module in self.modules:
            release_weights(module)
        for differences in self._differences:
            differences.load_state_dict(state)
        for key, communicator in self._stochastic():
            if key in state:
                communicator.calls, communicator.messages = state[key].tolist()

    def _stochastic(self) -> Iterator[tuple[str, Communicator]]:
        for key, communicator in self.communicators.items():
            if communicator.seeded:
                yield f"calls.pp{self.pp_rank}.{key}", communicator

    # --- training ----------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Say that training step `step`, counted from 1, comes next, the same on all ranks: the first `warmup_steps` of
        the policy have its warm-up codec, and evaluation has that of the step before it. Raises ConfigError below 1."""
        if self._tensor is not None:
            self._tensor.begin_step(step)

    def step(self, tokens: Tensor, targets: Tensor, microbatches: int, *, replay: bool = False) -> float:
        """Forward and backward over this dp rank's share of the batch; gradients are added to `.grad`.

        tokens, targets: int64 [local_batch, seq], the same on all pp and tp ranks; cut into `microbatches` equal parts.
        replay: from the third step of one shape on, run the pass of virtual ranks on a GPU as a CUDA graph
        (taco/parallel/replay.py): the same kernels for less of the host's time. Then the meter has no time of
        collectives, observers and module hooks see the recorded pass alone (in which they must not wait for the GPU),
        gradients live in memory that the next step overwrites, and the graph keeps the memory of a pass until
        `forget_recording`. Without effect for a codec that draws random numbers, or with gradients to add to.
        Returns the mean loss over the global batch, the same on every rank.
        Raises ConfigError for a batch that microbatches do not divide, or fewer microbatches than pipeline stages, and
        CommError for a collective on the GPU that has timed out.
        """
        tokens, targets = self._inputs(tokens, targets, microbatches)
        for differences in self._differences:
            differences.step_begins()
        self.replayed = False
        if self._pipeline is not None:
            total = self._pipeline.step(tokens, targets, microbatches)
            self._sum_tied()
        elif replay and self._can_replay():
            total = self._replayed(tokens, targets, microbatches)
        else:
            total = self._accumulate(tokens, targets, microbatches)
        for differences in self._differences:
            differences.weights_changed()  # the caller's optimizer comes next
        mean = self._mean(total)
        for communicator in self.communicators.values():
            communicator.check()  # reading the loss has waited for the GPU
        return mean

    def _accumulate(self, tokens: Tensor, targets: Tensor, microbatches: int) -> Tensor | float:
        """The sum of the microbatches' shares of the loss, after their backward."""
        [part] = self._parts
        total: Tensor | float = 0.0
        pairs = list(zip(tokens.chunk(microbatches), targets.chunk(microbatches), strict=True))
        for i, (inputs, labels) in enumerate(pairs):
            set_last_backward(part.model, i == len(pairs) - 1)
            loss = self._loss(part(inputs), labels) / microbatches
            loss.backward()
            total = total + loss.detach()
        return total

    def _can_replay(self) -> bool:
        virtual = self.parallel.virtual_tp > 1 and self.mesh is None and self.device.type == "cuda"
        return (
            virtual
            and not any(self._stochastic())
            and all(parameter.grad is None for _, parameter in self.named_parameters())
        )

    def _replayed(self, tokens: Tensor, targets: Tensor, microbatches: int) -> Tensor:
        """`_accumulate`, as a replay where there is a recording."""
        if self._replay is None:
            self._replay = Replay(parameter for _, parameter in self.named_parameters())
        each = self.communicators.values()
        options = ((c.min_bytes, c.algorithm, c.node_size, c.slice_bytes, id(c.crossover), c.seed) for c in each)
        form = microbatches, self._tensor.phase, tuple(options)
        run = partial(self._accumulate, microbatches=microbatches)
        total, self.replayed = self._replay(run, tokens, targets, form, self.meter, each)
        return total

    def forget_recording(self) -> None:
        """Free what `step(replay=True)` has recorded; the next steps record anew. Gradients of the last step go too."""
        if self._replay is not None and self._replay.recorded:
            self.zero_grad()
            self._replay.forget()

    @torch.no_grad()
    def eval_loss(self, tokens: Tensor, targets: Tensor, microbatches: int = 1) -> float:
        """The loss of `step` without gradients.

        With weight differences it belongs after the optimizer's step: each change of the weights is sent once.
        """
        tokens, targets = self._inputs(tokens, targets, microbatches)
        if self._pipeline is not None:
            total = self._pipeline.evaluate(tokens, targets, microbatches)
        else:
            [part] = self._parts
            pairs = zip(tokens.chunk(microbatches), targets.chunk(microbatches), strict=True)
            total = sum(self._loss(part(inputs), labels) / microbatches for inputs, labels in pairs)
        for module in self.modules:
            release_weights(module)
        return self._mean(total)

    def evaluate(self, tokens: Tensor, targets: Tensor, microbatches: int = 1) -> tuple[float, float]:
        """(`eval_loss`, share of targets that are the most probable token), both over the global batch."""
        self._hits = torch.zeros((), dtype=torch.float64, device=self.device)
        try:
            loss = self.eval_loss(tokens, targets, microbatches)
            return loss, self._mean(self._hits / targets.numel())
        finally:
            self._hits = None

    @torch.no_grad()
    def next_tokens(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The most probable next token of each sequence (int64 [batch]) and its log probability, on every rank.

        tokens: int64 [batch, seq], the same on all ranks. Raises ConfigError with a pipeline or sequence parallelism.
        """
        p = self.parallel
        grid = f"pp={p.pp}, sequence_parallel={p.sequence_parallel}"
        require(p.pp == 1 and not p.sequence_parallel, grid, "one stage, whole sequences", "of the length they have")
        [part] = self._parts
        logits = part(tokens.to(self.device))
        last = tuple(shard[:, -1] for shard in logits) if isinstance(logits, tuple) else logits[:, -1]
        found = best(last, self.modules[-1].tensor_comm if p.tp > 1 else None)
        release_weights(part.model)
        return found

    def clip_(self, max_norm: float) -> float:
        """Scale gradients so that their norm over the whole mesh is at most max_norm; returns the norm before, the same
        on every rank."""
        copies = []
        if self._ends is not None and self.is_last_stage:
            copies = [self.modules[-1].lm_head._parameters["weight"]]
        return clip_gradients_(
            [parameter for _, parameter in self.named_parameters()],
            max_norm,
            uncounted=copies,
            tp_rank=self.tp_rank,
            virtual=self.parallel.virtual_tp,
            group=dist.group.WORLD if self.mesh is not None else None,
        )

    def _inputs(self, tokens: Tensor, targets: Tensor, microbatches: int) -> tuple[Tensor, Tensor]:
        require(
            tokens.shape == targets.shape and tokens.dim() == 2 and tokens.shape[0] % microbatches == 0,
            f"tokens {list(tokens.shape)}, targets {list(targets.shape)} in {microbatches} microbatches",
            "two [batch, seq] with batch a multiple of the microbatches",
            "the loss is the mean over equal parts",
        )
        return tokens.to(self.device).contiguous(), targets.to(self.device).contiguous()

    def _loss(self, logits: Any, targets: Tensor) -> Tensor:
        if self._hits is not None:
            comm = self.modules[-1].tensor_comm if self.parallel.tp > 1 else None
            self._hits += (best(logits, comm)[0] == targets).sum()
        if self.parallel.tp > 1:
            return vocab_parallel_cross_entropy(logits, targets, self.modules[-1].tensor_comm)
        if self.parallel.virtual_tp > 1:
            return virtual_cross_entropy(logits, targets)
        return cross_entropy(logits, targets)

    def _mean(self, total: Tensor | float) -> float:
        """Mean over dp of the last stages' losses. Zeros elsewhere add nothing, so all ranks get the same bits."""
        if self.mesh is None:
            return float(total)
        counts = self.is_last_stage and self.tp_rank == 0
        value = torch.tensor(float(total) if counts else 0.0, dtype=torch.float64, device=self.device)
        dist.all_reduce(value)
        return float(value) / self.parallel.dp

    @torch.no_grad()
    def _sum_tied(self) -> None:
        """Add the gradients of the first stage's embedding and the last stage's head, which are one weight."""
        if self._ends is None:
            return
        owner = self.modules[-1].lm_head if self.is_last_stage else self.modules[0].embedding
        grad = local(owner._parameters["weight"].grad)
        grad.copy_(self._ends.all_reduce(grad))

"""Forward and backward as one CUDA graph: a training step whose kernels are too small for the host to keep up with.

    call 1, 2     run as ever, which allocates, chooses algorithms and loads kernels
    call 3        recorded, then replayed: the same kernels on the same addresses, so the same bits
    call 4, ..    inputs are copied to where the recording read them, one launch, gradients are where it left them

What Python counts in a pass (bytes, paths, calls) is counted at the recording and added again at each replay; time
inside collectives is not known then. Another form of call (shapes, codecs) is another recording; the last one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

import torch
from torch import Tensor, nn

from taco.comm import Meter
from taco.comm.collectives import Collectives

WARM_UP = 2

Pass = Callable[[Tensor, Tensor], Tensor]


class _Counts:
    """How a pass moves the counts of collectives: begin, pass, end."""

    def __init__(self, meter: Meter, communicators: Iterable[Collectives]) -> None:
        self._meter, self._communicators = meter, list(communicators)
        self._before = self._read()
        self._bytes: dict[str, dict[str, int]] = {}
        self._each: list[tuple[dict[str, int], int, int]] = []

    def _read(self) -> tuple[dict, list[tuple[dict[str, int], int, int]]]:
        return self._meter.totals(), [(dict(c.paths), c.calls, c.messages) for c in self._communicators]

    def end(self) -> None:
        """The pass is over."""
        (before, each_before), (after, each_after) = self._before, self._read()
        self._bytes = {role: _difference(counts, before.get(role, {})) for role, counts in after.items()}
        self._each = [
            (_difference(new[0], old[0]), new[1] - old[1], new[2] - old[2])
            for old, new in zip(each_before, each_after, strict=True)
        ]

    def add(self) -> None:
        """Count the pass once more."""
        self._meter.merge(self._bytes)
        for communicator, (paths, calls, messages) in zip(self._communicators, self._each, strict=True):
            for path, count in paths.items():
                communicator.paths[path] += count
            communicator.calls += calls
            communicator.messages += messages


def _difference(new: Mapping[str, int], old: Mapping[str, int]) -> dict[str, int]:
    return {key: value - old.get(key, 0) for key, value in new.items()}


class Replay:
    """Runs a pass, from the third call of one form on as a CUDA graph.

    parameters: whose gradients the pass leaves; they are None before it.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._form: Hashable = None
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, Tensor] | None = None
        self._gradients: list[Tensor | None] = []
        self._result: Tensor | None = None
        self._counts: _Counts | None = None

    @property
    def recorded(self) -> bool:
        """Whether there is a recording."""
        return self._graph is not None

    def __call__(
        self,
        run: Pass,
        tokens: Tensor,
        targets: Tensor,
        form: Hashable,
        meter: Meter,
        communicators: Iterable[Collectives],
    ) -> tuple[Tensor, bool]:
        """(run(tokens, targets), whether it was a replay) for CUDA tensors. The next call overwrites the result.

        form: what else the kernels depend on. meter, communicators: what counts in the pass.
        Raises RuntimeError for a pass that cannot be recorded. torch's allocator and random numbers may be of no use to
        the process afterwards.
        """
        form = (form, tokens.shape, targets.shape)
        if form != self._form:
            self.forget()
            self._form = form
        self._calls += 1
        if self._calls <= WARM_UP:
            return run(tokens, targets), False
        if self._graph is not None:
            for static, given in zip(self._inputs, (tokens, targets), strict=True):
                static.copy_(given)
            self._counts.add()
        else:
            self._record(run, tokens, targets, _Counts(meter, communicators))
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        self._graph.replay()
        return self._result, True

    def forget(self) -> None:
        """Free what was recorded."""
        self._graph = self._result = self._inputs = self._counts = None
        self._gradients, self._calls = [], 0

    def _record(self, run: Pass, tokens: Tensor, targets: Tensor, counts: _Counts) -> None:
        self._inputs = tokens.clone(), targets.clone()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._result = run(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RuntimeError(
                "got a pass that cannot be recorded as a CUDA graph; need one that never waits for the GPU, or "
                f"replay=False (taco train --no-replay); because {error}"
            ) from error
        counts.end()
        self._graph, self._counts = graph, counts
        self._gradients = [parameter.grad for parameter in self._parameters]

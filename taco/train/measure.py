"""Seconds per phase and bytes per role of one step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from taco.comm import Meter
from taco.train.launch import World

PHASES = ("data", "forward_backward", "optimizer", "comm")
COUNTS = ("wire", "raw", "messages")


class StepMeter:
    """Measures steps on every rank, and gathers what each rank measured.

    comm is the time inside Communicators: it is a part of forward_backward and of optimizer, not beside them.
    """

    def __init__(self, here: World, meter: Meter, roles: tuple[str, ...]) -> None:
        self._here, self._meter, self._roles = here, meter, roles
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._start = 0.0
        self.phase = ""

    def begin(self) -> None:
        """Start a step; what was sent between steps (evaluation, checkpoints) is forgotten."""
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._meter.reset()
        self._start = time.perf_counter()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent inside to `phase`."""
        self.phase, start = phase, time.perf_counter()
        yield
        self._seconds[phase] += time.perf_counter() - start

    def end(self, *, replayed: bool = False) -> dict:
        """Close the step: {step_ms, phases_ms: mean over ranks, wire: {role: maximum over ranks}}, same on all ranks.

        replayed: the step was a CUDA graph, in which collectives have no time of their own: comm is left out.
        Bytes and messages are those of this step; a role that sent nothing is left out.
        """
        if self._here.device.type == "cuda":
            torch.cuda.synchronize(self._here.device)
        step_s = time.perf_counter() - self._start
        self._seconds["comm"] = sum(self._meter.seconds.values())
        row = [step_s, *(self._seconds[p] for p in PHASES), *self._counts()]
        rows = self._gather(torch.tensor(row, dtype=torch.float64))
        mean = rows.mean(dim=0).tolist()
        most = [int(v) for v in rows[:, 1 + len(PHASES) :].amax(dim=0).tolist()]
        wire = {r: dict(zip(COUNTS, most[3 * i : 3 * i + 3], strict=True)) for i, r in enumerate(self._roles)}
        phases = {p: round(mean[1 + i] * 1e3, 3) for i, p in enumerate(PHASES)}
        if replayed:
            del phases["comm"]
        return {
            "step_ms": round(rows[0, 0].item() * 1e3, 3),
            "phases_ms": phases,
            "wire": {role: counts for role, counts in wire.items() if counts["messages"]},
        }

    def _counts(self) -> list[int]:
        sent = self._meter.take()
        unknown = sorted(set(sent) - set(self._roles))
        if unknown:
            raise ValueError(
                f"got bytes of role {', '.join(unknown)}; need {', '.join(self._roles)}; because all are logged"
            )
        return [sent.get(role, {}).get(count, 0) for role in self._roles for count in COUNTS]

    def _gather(self, row: torch.Tensor) -> torch.Tensor:
        """Every rank's row: [n] -> [world size, n] on the CPU."""
        if self._here.size == 1:
            return row[None]
        row = row.to(self._here.device)
        rows = [torch.empty_like(row) for _ in range(self._here.size)]
        dist.all_gather(rows, row)
        return torch.stack(rows).cpu()

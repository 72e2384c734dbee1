"""Measurements that need GPUs: what starts each, and what it times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from taco.recipes.collective import COLLECTIVE, TRANSPORTS, CollectiveGrid, log_name
from taco.recipes.names import by_name
from taco.recipes.speed import SPEED, SpeedGrid


@dataclass(frozen=True, kw_only=True)
class GpuMeasure:
    """One log of a measurement on GPUs.

    name: of the log. arguments: of `taco measure`. ranks: processes, one a GPU. environment: what they must have.
    """

    name: str
    arguments: str
    grid: SpeedGrid | CollectiveGrid
    ranks: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The shell command that makes the log, but for its source."""
        settings = "".join(f"{name}={value} " for name, value in self.environment.items())
        ranks = f"torchrun --standalone --nproc-per-node {self.ranks}"
        return f"{settings}{ranks if self.ranks > 1 else 'python'} -m taco measure {self.arguments}"


GPU_MEASURES: dict[str, GpuMeasure] = by_name(
    GpuMeasure(name="codec_speed", arguments="codec_speed", grid=SPEED),
    *(
        GpuMeasure(
            name=log_name(transport), arguments=f"collective --transport {transport}", grid=COLLECTIVE[transport],
            ranks=COLLECTIVE[transport].ranks, environment=environment,
        )
        for transport, environment in TRANSPORTS.items()
    ),
)  # fmt: skip

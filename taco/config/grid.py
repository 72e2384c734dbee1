"""Which processes share the work, and over what they exchange."""

from __future__ import annotations

from dataclasses import dataclass

from taco.config.check import at_least, one_of, require

TRANSPORTS = ("auto", "host", "tcp")
VIRTUAL_SUMS = ("once", "reversed", "stepwise")


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """The process grid: world size = pp * dp * tp, ranks in that order (tp fastest).

    virtual_tp: one process computes this many TP ranks' partial sums and reduces them with the
        wire's numerics; needs tp = 1.
    virtual_sum: how virtual ranks add uncompressed messages: in rank order in fp32, rounded 'once'; 'reversed': the
        same from the last rank on; 'stepwise': rounded to the message's dtype after each addition. Backends do any of
        these, so that runs which differ in it alone say what rounding does.
    node_size: ranks per node for hierarchical collectives (0: one node). microbatches: pipeline microbatches per
        optimizer step and dp rank.
    transport: how GPUs of one host exchange: 'auto' the fastest way there is, 'host' through host memory (like PCIe
        GPUs without peer access), 'tcp' over loopback TCP (like Ethernet). Without effect on CPUs.
    crossover: folder of tables that `taco crossover` wrote. The compressed roles of tp and dp then take the path that
        is fastest at each message's size, from the policy's min_bytes on also a compressed one; '': min_bytes decides.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    virtual_tp: int = 1
    virtual_sum: str = "once"
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    microbatches: int = 1
    node_size: int = 0
    transport: str = "auto"
    crossover: str = ""

    def __post_init__(self) -> None:
        one_of("transport", self.transport, TRANSPORTS, "these ways are known")
        one_of("virtual_sum", self.virtual_sum, VIRTUAL_SUMS, "sums run in these orders")
        at_least(
            1,
            "it is a count",
            tp=self.tp,
            pp=self.pp,
            dp=self.dp,
            virtual_tp=self.virtual_tp,
            microbatches=self.microbatches,
        )
        at_least(0, "it counts ranks", node_size=self.node_size)
        one_of("schedule", self.schedule, ("1f1b", "interleaved"), "these schedules are supported")
        require(
            self.virtual_tp == 1 or self.tp == 1,
            f"virtual_tp={self.virtual_tp} with tp={self.tp}",
            "one of them to be 1",
            "virtual ranks replace real ones",
        )
        require(
            self.virtual_tp > 1 or self.virtual_sum == "once",
            f"virtual_sum={self.virtual_sum!r} without virtual ranks",
            "virtual_tp above 1",
            "real ranks' sums are their backend's",
        )
        require(
            self.virtual_tp == 1 or not self.sequence_parallel,
            f"virtual_tp={self.virtual_tp} with sequence_parallel",
            "one of them",
            "virtual ranks share one whole sequence",
        )
        require(
            self.pp == 1 or self.microbatches >= self.pp,
            f"microbatches={self.microbatches} with pp={self.pp}",
            f"microbatches >= {self.pp}",
            "a pipeline with fewer microbatches than stages leaves stages without work",
        )
        require(
            self.stages_per_rank == 1 or self.microbatches % self.pp == 0,
            f"microbatches={self.microbatches} with pp={self.pp} and the interleaved schedule",
            f"a multiple of {self.pp}",
            "it runs rounds of one microbatch per rank",
        )

    @property
    def world_size(self) -> int:
        return self.pp * self.dp * self.tp

    @property
    def stages_per_rank(self) -> int:
        return 2 if self.schedule == "interleaved" and self.pp > 1 else 1

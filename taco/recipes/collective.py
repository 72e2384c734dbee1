"""What `collective` times: collectives of several ranks by transport, sizes and codecs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taco.config import require

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
TRANSPORTS: dict[str, dict[str, str]] = {
    "nvlink": {},
    "host": {"NCCL_P2P_DISABLE": "1"},
    "tcp": {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
    },
}
"""Ways between the GPUs of one host, fastest first, and the environment that makes NCCL take each."""
BASELINES = ("nccl", "nccl-eager", "symm-two-shot", "symm-one-shot", "symm-copies", "gloo")
"""Arms that send the tensor uncompressed and are not ours."""
FUSED, UNFUSED, CHOSEN = "fused", "unfused", "chosen"
"""Our arms: one kernel over memory of the peers or the host (codec none: elements); packets over the backend; whichever
path a table of `taco crossover` chooses."""


def log_name(transport: str) -> str:
    """The name of a transport's log: results/<source>/<this>.jsonl."""
    return f"collective-{transport}"


@dataclass(frozen=True, kw_only=True)
class CollectiveCase:
    """One collective at one size, run by every arm.

    mib: MiB of the full tensor of `dtype`: the input of all_reduce and reduce_scatter, the output of all_gather.
    """

    collective: str
    mib: float
    dtype: str
    codecs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CollectivePart:
    """Sizes in MiB and codecs of one collective."""

    collective: str
    mib: tuple[float, ...]
    codecs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CollectiveGrid:
    """The cases of one transport; those of `COLLECTIVE` are the full ones.

    ranks: how many the workflow starts (by hand it is torchrun's number). least_rounds, most_rounds: samples of a time;
    between them as many as fit in budget_s seconds a case.
    """

    transport: str
    parts: tuple[CollectivePart, ...]
    dtype: str = "bfloat16"
    ranks: int = 2
    least_rounds: int = 15
    most_rounds: int = 25
    budget_s: float = 1.0
    seed: int = 0

    def cases(self) -> Iterator[CollectiveCase]:
        """Every collective and size."""
        for part in self.parts:
            for mib in part.mib:
                yield CollectiveCase(collective=part.collective, mib=mib, dtype=self.dtype, codecs=part.codecs)

    def narrowed(
        self, *, collectives: Sequence[str] = (), codecs: Sequence[str] = (), mib: Sequence[float] = ()
    ) -> CollectiveGrid:
        """This grid with only these collectives, codecs and sizes (none given: all). Raises `ConfigError` for others.

        Arms without a codec always run: the others are compared with them.
        """
        collectives_here = tuple(part.collective for part in self.parts)
        codecs_here = tuple(dict.fromkeys(codec for part in self.parts for codec in part.codecs))
        for name, given, known in (("collective", collectives, collectives_here), ("codec", codecs, codecs_here)):
            other = sorted(set(given) - set(known))
            require(not other, f"{name} {', '.join(other)}", f"some of {', '.join(known)}", "those are timed")
        require(all(m > 0 for m in mib), f"sizes {list(mib)}", "MiB above 0", "a tensor has that size")
        parts = [
            CollectivePart(
                collective=part.collective,
                mib=tuple(mib) or part.mib,
                codecs=tuple(codec for codec in part.codecs if not codecs or codec in codecs),
            )
            for part in self.parts
            if not collectives or part.collective in collectives
        ]
        return replace(self, parts=tuple(parts))


def _parts(reduced: tuple[float, ...], moved: tuple[float, ...], codecs: tuple[str, ...], few: tuple[str, ...]):
    """reduced, codecs: of all_reduce. moved, few: of the two others."""
    return (
        CollectivePart(collective="all_reduce", mib=reduced, codecs=codecs),
        CollectivePart(collective="reduce_scatter", mib=moved, codecs=few),
        CollectivePart(collective="all_gather", mib=moved, codecs=few),
    )


_NVLINK = _parts(
    (0.25, 1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 4, 16, 64, 256), ("taco", "int8", "fp8", "int6", "int4"),
    ("taco", "int8", "int4"),
)  # fmt: skip
_SLOW = ("taco", "int8", "int6", "int4")

COLLECTIVE: dict[str, CollectiveGrid] = {
    "nvlink": CollectiveGrid(transport="nvlink", parts=_NVLINK),
    "host": CollectiveGrid(
        transport="host", parts=_parts((1, 4, 16, 64, 256), (64,), _SLOW, _SLOW), least_rounds=7, budget_s=4.0
    ),
    "tcp": CollectiveGrid(
        transport="tcp", parts=_parts((1, 4, 16, 64), (64,), _SLOW, _SLOW), least_rounds=7, budget_s=6.0
    ),
    # for a machine without GPUs: it shows that the arms run and agree, and its times mean nothing
    "gloo": CollectiveGrid(
        transport="gloo", parts=_parts((0.0625,), (0.0625,), ("int8",), ("int8",)), least_rounds=2, most_rounds=3,
        budget_s=0.1,
    ),
}  # fmt: skip

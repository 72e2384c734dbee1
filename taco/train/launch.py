"""From an environment to a world of ranks: the only place of training that reads environment variables.

Threads: on CPU every rank computes with one thread unless told otherwise, because several ranks share
the cores, and because sums split over another number of threads round differently: a run's losses are
bit-equal only between runs with the same number of threads.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taco.config import Run, require
from taco.recipes import RUNS
from taco.recipes.collective import TRANSPORTS

RANKS_PER_CORE = 8
# what makes NCCL take a slower way between the GPUs of one host
NCCL_SETTINGS = {"auto": TRANSPORTS["nvlink"], "host": TRANSPORTS["host"], "tcp": TRANSPORTS["tcp"]}
# what keeps NCCL off a faster way than the one that is named
SLOWER = ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")
# seconds that an operation of a measurement may take: the first one sets up every connection
MEASURE_S = 120.0
# resident memory of one rank before the model: Python and torch (measured: 330 MB with torch 2.13+cpu)
BASE_BYTES = 350 << 20


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among the ranks of a run. `store` is the ranks' key-value store (None for one rank)."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    transport: str = "auto"
    store: dist.Store | None = None

    @property
    def backend(self) -> str:
        return "nccl" if self.device.type == "cuda" else "gloo"

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            dist.barrier()

    def agree(self, decide: Callable[[], Any]) -> Any:
        """What `decide` returns on rank 0, on every rank; what it raises, too: no rank goes on alone. An exception that
        cannot be sent arrives elsewhere as a RuntimeError with its text."""
        if self.size == 1:
            return decide()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = decide()
            except Exception as error:
                answer[1] = error
        own = answer[1]
        if own is not None and not _can_be_sent(own):
            answer[1] = RuntimeError(f"{type(own).__name__} on rank 0: {own}")
        dist.broadcast_object_list(answer, src=0)
        if answer[1] is not None:
            raise own or answer[1]
        return answer[0]


def _can_be_sent(error: Exception) -> bool:
    """Whether it is the same after pickling: the constructors of some exceptions do not take their own arguments."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:
        return False


def command(run_name: str, size: int) -> str:
    """The command line that starts `size` ranks of a run; RUN stands for the file of one that is no recipe."""
    run_name = run_name if run_name in RUNS else "RUN"
    taco = "-m taco train" if size > 1 else "python -m taco train"
    return f"torchrun --nproc-per-node {size} {taco} {run_name}" if size > 1 else f"{taco} {run_name}"


def ranks_from(env: Mapping[str, str]) -> dict[str, int]:
    """rank, size, local_rank and local_size as torchrun sets them; one rank without torchrun. Raises `ConfigError`."""
    names = {"rank": "RANK", "size": "WORLD_SIZE", "local_rank": "LOCAL_RANK", "local_size": "LOCAL_WORLD_SIZE"}
    found = {field: env[name] for field, name in names.items() if name in env}
    if not found:
        return {}
    missing = sorted(set(names) - set(found))
    ok = not missing and all(v.isdigit() for v in found.values())
    require(
        ok, f"environment {found}", f"whole numbers in all of {', '.join(names.values())}", "torchrun sets all four"
    )
    return {field: int(value) for field, value in found.items()}


def check_world(run: Run, *, size: int, local_size: int, device: str, gpus: int, cores: int, memory: int) -> None:
    """Refuse a world that is not the run's or that this machine cannot hold. Raises `ConfigError`.

    size, local_size: ranks in all and on this machine; gpus, cores, memory [bytes]: what this machine has.
    """
    grid = run.parallel
    require(
        size == grid.world_size,
        f"world size {size}",
        f"{grid.world_size}: `{command(run.name, grid.world_size)}`",
        f"the run's grid is pp={grid.pp} x dp={grid.dp} x tp={grid.tp}",
    )
    if device == "cuda":
        require(local_size <= gpus, f"{local_size} ranks on {gpus} GPUs", "a GPU for every rank", "NCCL needs one each")
        return
    most = RANKS_PER_CORE * cores
    require(
        local_size <= most,
        f"{local_size} ranks on {cores} CPU cores",
        f"at most {most} ranks",
        f"more than {RANKS_PER_CORE} ranks a core wait for each other longer than they compute",
    )
    bytes_needed = local_size * (BASE_BYTES + state_bytes(run))
    require(
        bytes_needed <= memory,
        f"{local_size} ranks of {bytes_needed / local_size / 2**30:.1f} GiB on a machine with {memory / 2**30:.1f} GiB",
        f"at least {bytes_needed / 2**30:.1f} GiB",
        "parameters, gradients and optimizer state live in memory",
    )


def state_bytes(run: Run) -> int:
    """Bytes a rank holds between steps: fp32 parameters, gradients and two moments of its share of the model."""
    m, p = run.model, run.parallel
    attention = 2 * m.hidden * m.hidden + 2 * m.hidden * m.head_dim * m.kv_heads
    mlp = (3 if m.arch == "qwen" else 2) * m.hidden * m.ffn
    embeddings = m.vocab * m.hidden * (1 if m.tied else 2)
    blocks = -(-m.layers // p.pp) * (attention + mlp)
    return 16 * (blocks + embeddings) // (p.tp * p.dp)


def pick_device(wanted: str, local_rank: int) -> torch.device:
    """'cpu', 'cuda' or 'auto' (CUDA where there is one) as this rank's device. Raises `ConfigError`."""
    has_cuda = torch.cuda.is_available()
    require(
        wanted != "cuda" or has_cuda, "--device cuda", "a CUDA GPU and a CUDA build of torch", "this machine shows none"
    )
    return torch.device("cuda", local_rank) if has_cuda and wanted != "cpu" else torch.device("cpu")


def use_threads(count: int) -> None:
    """Compute on the CPU with `count` threads; see the module's text for why the number matters."""
    torch.set_num_threads(count)


@contextmanager
def world(run: Run, env: Mapping[str, str], *, device: str = "auto", threads: int = 1) -> Iterator[World]:
    """The process group of a run, up while the context lasts. Every operation waits at most `run.train.timeout_s`.

    env: environment variables as torchrun sets them. Raises `ConfigError` before any rank waits for another.
    """
    ranks = ranks_from(env)
    where = pick_device(device, ranks.get("local_rank", 0))
    here = World(device=where, transport=run.parallel.transport, **ranks)
    check_world(
        run,
        size=here.size,
        local_size=here.local_size,
        device=here.device.type,
        gpus=torch.cuda.device_count(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    if here.device.type != "cuda":
        use_threads(threads)
    with connected(here, run.train.timeout_s) as here:
        yield here


@contextmanager
def connected(here: World, timeout_s: float) -> Iterator[World]:
    """The process group of these ranks, up while the context lasts. Every operation waits at most `timeout_s`."""
    if here.device.type == "cuda":
        torch.cuda.set_device(here.device)
    if here.size == 1:
        yield here
        return
    # NCCL reads the process's environment and nothing else
    os.environ.update(NCCL_SETTINGS[here.transport] if here.backend == "nccl" else {})
    timeout = timedelta(seconds=timeout_s)
    store, rank, size = next(dist.rendezvous("env://", timeout=timeout))
    bound = here.device if here.device.type == "cuda" else None
    dist.init_process_group(here.backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=bound)
    yield replace(here, store=dist.PrefixStore("taco", store))
    # only after success: NCCL would wait in here for the peers of a failed rank
    dist.destroy_process_group()


def check_transport(transport: str, env: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless `env` makes NCCL take this key of `TRANSPORTS`; gloo has one way and fits any."""
    if transport not in TRANSPORTS:
        return
    wanted = TRANSPORTS[transport]
    free = [name for name in SLOWER if name not in wanted]
    wrong = [name for name in wanted if env.get(name) != wanted[name]]
    wrong += [name for name in free if env.get(name, "0") != "0"]
    require(
        not wrong,
        ", ".join(f"{name}={env[name]}" if name in env else f"no {name}" for name in wrong),
        ", ".join([*(f"{name}={value}" for name, value in wanted.items()), *(f"no {name}" for name in free)]),
        f"NCCL takes its way from the environment, and the log says that it was {transport}",
    )


@contextmanager
def measuring(env: Mapping[str, str], transport: str) -> Iterator[World]:
    """The ranks that torchrun has started for a measurement: one a GPU, on the CPU where the transport is gloo.

    transport: a key of `TRANSPORTS` that `env` must agree with, or 'gloo'. Every operation waits at most MEASURE_S.
    Raises `ConfigError` before any rank waits for another.
    """
    check_transport(transport, env)
    ranks = ranks_from(env)
    size, local_size = ranks.get("size", 1), ranks.get("local_size", 1)
    again = f"`torchrun --nproc-per-node 2 -m taco measure collective --transport {transport}`"
    require(size > 1, "one rank", f"at least 2: {again}", "a collective is of several")
    on_gpus = transport != "gloo"
    if on_gpus:
        gpus = torch.cuda.device_count()
        require(local_size <= gpus, f"{local_size} ranks on {gpus} GPUs", "a GPU for every rank", "NCCL needs one each")
    here = World(
        device=torch.device("cuda", ranks["local_rank"]) if on_gpus else torch.device("cpu"),
        transport="auto" if transport not in NCCL_SETTINGS else transport,
        **ranks,
    )
    with connected(here, MEASURE_S) as joined:
        yield joined

"""Run a function on N gloo ranks: one pool of processes per world size, started once and reused by every test.

    def body(rank, world_size, scale):          # at module level: it travels by name
        x = torch.full((4,), float(rank)) * scale
        dist.all_reduce(x)
        return x

    results = run_ranks(4, body, 2.0)            # [result of rank 0, ..., result of rank 3]

Arguments and results are pickled (tensors by value). The default process group lives as long as the pool, so
`body` may use it and may create subgroups, collectively; it must not destroy it. A pool whose ranks failed, died
or timed out is stopped, and the next call starts a new one.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# A fork server imports torch once; each rank is then forked from it in milliseconds instead of seconds.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed"])
_MAX_POOLS = 3
_GRACE_S = 3.0
_EXIT_S = 30.0  # a busy machine writes coverage slowly
_pools: dict[tuple[int, float], _Pool] = {}


class RankError(RuntimeError):
    """A rank raised, died or did not answer. `errors` maps rank -> text (a traceback, or how it ended)."""

    def __init__(self, world_size: int, errors: dict[int, str]) -> None:
        self.errors = errors
        text = "\n".join(f"--- rank {rank} of {world_size}: {error}" for rank, error in sorted(errors.items()))
        super().__init__(text)


def run_ranks(
    world_size: int,
    fn: Callable,
    *args: Any,
    timeout: float = 60.0,
    group_timeout: float = 30.0,
    dies: Sequence[int] = (),
) -> list:
    """`fn(rank, world_size, *args)` on every rank; the results in rank order.

    timeout: seconds until every rank must have answered. group_timeout: timeout of the default process group.
    dies: ranks that are expected to exit without an answer (their result is None); the pool is stopped afterwards.
    Raises `RankError` if any other rank raises, exits or stays silent.
    """
    key = (world_size, group_timeout)
    pool = _pools.pop(key, None) or _Pool(world_size, group_timeout)
    try:
        results = pool.run(fn, args, timeout, frozenset(dies))
    except BaseException:
        pool.close(kill=True)
        raise
    if dies:
        pool.close()
        return results
    _pools[key] = pool  # last in, last out
    while len(_pools) > _MAX_POOLS:
        _pools.pop(next(iter(_pools))).close()
    return results


def close_pools() -> None:
    """Stop every pool and wait for its processes."""
    while _pools:
        _pools.popitem()[1].close()


class _Pool:
    """The processes and pipes of one world size."""

    def __init__(self, world_size: int, group_timeout: float) -> None:
        self.world_size = world_size
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = _CONTEXT.Pipe()
            store = str(Path(self._folder.name) / "store")
            process = _CONTEXT.Process(
                target=_serve, args=(theirs, rank, world_size, store, group_timeout), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, fn: Callable, args: tuple, timeout: float, dies: frozenset[int]) -> list:
        # The worker imports fn's module by name: it needs the path that pytest has given to this process.
        task = pickle.dumps((sys.path, pickle.dumps((fn, args))))
        for pipe in self._pipes:
            with contextlib.suppress(BrokenPipeError):
                pipe.send_bytes(task)
        waiting = dict(zip(self._pipes, range(self.world_size), strict=True))
        results: list = [None] * self.world_size
        errors: dict[int, str] = {}
        deadline = time.monotonic() + timeout
        while waiting and time.monotonic() < deadline:
            for pipe in wait(list(waiting), timeout=max(0.0, deadline - time.monotonic())):
                rank = waiting.pop(pipe)
                try:
                    ok, value = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionError):
                    self._processes[rank].join(_GRACE_S)
                    ok, value = rank in dies, None if rank in dies else f"exited {self._processes[rank].exitcode}"
                if ok:
                    results[rank] = value
                    continue
                errors[rank] = value
                deadline = min(deadline, time.monotonic() + _GRACE_S)  # its peers may wait for it forever
        for rank in waiting.values():
            errors[rank] = "no answer in time"
        if errors:
            raise RankError(self.world_size, errors)
        return results

    def close(self, *, kill: bool = False) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            if kill:
                process.kill()
                continue
            with contextlib.suppress(BrokenPipeError):
                pipe.send_bytes(b"")
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            process.join(_EXIT_S)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
        self._folder.cleanup()


def _serve(pipe: Connection, rank: int, world_size: int, store: str, group_timeout: float) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # the host's name need not resolve
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    init = f"file://{store}"
    wait_for = timedelta(seconds=group_timeout)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=world_size, timeout=wait_for)
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:  # the parent is gone
            break
        if not task:
            break
        sys.path[:], call = pickle.loads(task)
        try:
            fn, args = pickle.loads(call)
            random.seed(0)
            torch.manual_seed(0)
            answer = (True, fn(rank, world_size, *args))
        except BaseException:  # SystemExit too: the parent must hear of it
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()

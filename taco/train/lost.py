"""When a rank dies: who it was, said by those that are left.

A collective that fails or times out only knows that some peer is gone. So every rank has a thread that writes
"alive" into the ranks' key-value store once a second; the failing rank looks there for whoever stopped writing.
The thread lives while the main thread waits inside a collective, because that wait releases the interpreter.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch.distributed as dist

from taco.comm import CommError
from taco.train.launch import World

BEAT_S = 1.0
# a beat may be late by as much when many ranks share a core
SILENT_S = 4.0
# the unasked-for warning waits longer: a rank may be reading a file system that stalls
WARN_BEATS = 15
_NETWORK = re.compile(r"gloo|nccl|connection|timed? ?out|socket|broken pipe", re.IGNORECASE)


class RankLostError(RuntimeError):
    """A peer died or hangs. The text names this rank, what it was doing, and the silent ranks where they are known."""


def is_communication(error: BaseException) -> bool:
    """Whether an exception comes from the ranks' communication and not from the computation."""
    known = isinstance(error, (CommError, dist.DistError))
    return known or (isinstance(error, RuntimeError) and _NETWORK.search(str(error)) is not None)


class Heartbeat:
    """Says once a second that this rank lives, and finds the ranks that stopped saying so."""

    def __init__(self, here: World) -> None:
        self._here = here
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin. One rank alone has no one to tell."""
        if self._here.store is None:
            return
        # its own connection: a store client serves one caller at a time
        self._thread = threading.Thread(target=self._beat, args=(self._here.store.clone(),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, before the store goes."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self, store: dist.Store) -> None:
        # one rank looks after all, another after it: NCCL ends a waiting process without an exception to explain it
        watched = {0: list(range(1, self._here.size)), 1: [0]}.get(self._here.rank, [])
        beat, seen = 0, dict.fromkeys(watched, (b"", 0))
        while not self._stop.wait(BEAT_S):
            beat += 1
            try:
                store.set(f"beat/{self._here.rank}", str(beat))
                now = _beats(store, watched)
            except RuntimeError:
                return  # the store is gone, and with it whoever would read this
            seen = {r: (now[r], beat if now[r] != last else since) for r, (last, since) in seen.items()}
            lost = [r for r, (_, since) in seen.items() if beat - since == WARN_BEATS]
            if lost:
                print(
                    f"taco: rank {self._here.rank} of {self._here.size}: no sign of life from rank "
                    f"{', '.join(map(str, lost))} for {WARN_BEATS * BEAT_S:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )

    def silent(self) -> list[int]:
        """Ranks that give no sign of life for `SILENT_S` seconds; empty if the store cannot say."""
        store = self._here.store
        if store is None:
            return []
        others = [r for r in range(self._here.size) if r != self._here.rank]
        try:
            before = _beats(store, others)
            time.sleep(SILENT_S)
            after = _beats(store, others)
        except RuntimeError:
            return []
        return [r for r in others if before[r] == after[r]]


def _beats(store: dist.Store, ranks: list[int]) -> dict[int, bytes]:
    return {r: store.get(f"beat/{r}") if store.check([f"beat/{r}"]) else b"" for r in ranks}


def _describe(here: World, doing: str, error: BaseException) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"rank {here.rank} of {here.size}, {doing}: {first}"


@contextmanager
def naming_lost_ranks(here: World, doing: Callable[[], str]) -> Iterator[None]:
    """Turn a communication failure inside into a `RankLostError`. doing: what this rank is at, for the text.

    The first line goes out at once, because a launcher that sees any rank end stops all others within moments.
    """
    if here.size == 1:
        yield
        return
    heartbeat = Heartbeat(here)
    heartbeat.start()
    try:
        yield
    except Exception as error:
        if not is_communication(error):
            raise
        print(f"taco: {_describe(here, doing(), error)}; looking for a lost peer", file=sys.stderr, flush=True)
        silent = heartbeat.silent()
        if not silent:
            raise  # everybody lives: a deadlock or a fault of the program, whose traceback says where
        who = f"no sign of life from rank {', '.join(map(str, silent))}"
        raise RankLostError(f"{_describe(here, doing(), error)}; {who}") from error
    finally:
        heartbeat.stop()

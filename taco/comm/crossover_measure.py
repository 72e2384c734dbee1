"""Measure a crossover table: every path that can run here, at every size, on all ranks of a group together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from taco.comm.communicator import Communicator
from taco.comm.crossover import COLLECTIVES, FUSED_PATHS, MEMORY_OF, Crossover, Key, exists, key_here
from taco.comm.links import Journal
from taco.comm.peers import Peers
from taco.comm.select import PEER_PATHS, spans_nodes
from taco.config import NONE, Codec, NoCodec, require

SIZES = tuple(1 << power for power in range(14, 29))
ROLE = "crossover"
WARM_UP = 3
# a batch of calls lasts about so long, so that what starts and ends it does not count
BATCH_US, MAX_CALLS = 2000.0, 50
# bytes of memory beside each byte of a message: input, output and packets of every path, and their fp32 sums
MEMORY = 12

Say = Callable[[str], None]


def measure(
    group: dist.ProcessGroup | None,
    codec: Codec,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.bfloat16,
    transport: str = "auto",
    node_size: int = 0,
    sizes: Sequence[int] = SIZES,
    collectives: Sequence[str] = COLLECTIVES,
    repeats: int = 11,
    limit_s: float = 300.0,
    provenance: Mapping[str, str] | None = None,
    say: Say = lambda text: None,
) -> Crossover:
    """The times of all paths between the ranks of `group`: the same table on every rank. Collective.

    transport: of the process group (see `key_here`); with 'host' kernels use the host's memory and not the peers', with
    'tcp' none: they stand for GPUs that do not address each other. sizes: bytes of the full tensor, ascending; the
    table ends early where memory, or after `limit_s` seconds time, is short. say: told each size.
    A time is the largest over the ranks of their lower quartiles over `repeats` batches. All sizes take one batch after
    the other, `repeats` times over: a disturbance of the host, which lasts longer than a batch and only ever adds,
    then spoils few batches of a size and not all. Raises ConfigError for less than two ranks.
    """
    world_size = dist.get_world_size(group)
    require(world_size > 1, f"{world_size} rank", "at least two", "one rank sends nothing")
    key = key_here(device, transport, world_size, codec, dtype, node_size)
    paths = _paths(group, codec, key, device, dtype, memory=MEMORY_OF[transport])
    together = _Together(group, device)
    rounds = _Rounds(paths, collectives, together, device, dtype, world_size)
    start = time.perf_counter()
    used: list[int] = []
    for size in sizes:
        if used and together.worst(_short_of_memory(device, MEMORY * size)):
            say(f"stops before {size} bytes: memory is short")
            break
        rounds.add(size)
        used.append(size)
        say(f"{size} bytes: {time.perf_counter() - start:.0f} s so far")
        if together.worst(time.perf_counter() - start) > limit_s:
            break
    for size in used * (repeats - 1):
        if together.worst(time.perf_counter() - start) > limit_s:
            break
        rounds.add(size)
    tables: list = [Crossover(key=key, times=rounds.times(), provenance=dict(provenance or {}))]
    dist.broadcast_object_list(tables, group=group, group_src=0)
    return tables[0]


def _paths(
    group: dist.ProcessGroup | None,
    codec: Codec,
    key: Key,
    device: torch.device,
    dtype: torch.dtype,
    *,
    memory: str,
) -> dict[str, Communicator]:
    """A communicator that takes it, for each path that can run."""
    compressed = not isinstance(codec, NoCodec)
    found = {"uncompressed": Communicator(group, NONE, role=ROLE)}
    if compressed:
        found["unfused"] = Communicator(group, codec, role=ROLE, node_size=key.node_size)
    peers = Peers(group, codec, Journal(dist.get_rank(group), key.world_size, ROLE), memory or "auto")
    one_node = not spans_nodes(key.world_size, key.node_size)
    for path in PEER_PATHS if memory and one_node else ():
        if (path == "fused" and not compressed) or peers.why_not(path, device, dtype):
            continue
        if path in FUSED_PATHS:
            chosen = codec if path == "fused" else NONE
            found[path] = Communicator(group, chosen, role=ROLE, fused="require", memory=memory)
        else:
            found[path] = Communicator(group, NONE, role=ROLE, crossover=_only(key, path))
    return found


def _only(key: Key, path: str) -> Crossover:
    """A table in which an all-reduce has one path."""
    return Crossover(key=key, times={"all_reduce": {1: {path: 1.0}}})


def _operand(collective: str, size: int, world_size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The input of a collective whose full tensor has about `size` bytes: equal shards."""
    shard = max(1, size // dtype.itemsize // world_size)
    return torch.randn(shard if collective == "all_gather" else shard * world_size, device=device).to(dtype)


def _call(comm: Communicator, collective: str, x: Tensor) -> Callable[[], Tensor]:
    return lambda: getattr(comm, collective)(x)


def _short_of_memory(device: torch.device, nbytes: int) -> float:
    """1 if the GPU has less free memory than `nbytes`, else 0; of a CPU the caller chooses the sizes."""
    return float(device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < nbytes)


class _Together:
    """What the ranks find out together."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device) -> None:
        self.group, self.device = group, device

    def worst(self, value: float) -> float:
        """The largest of the ranks' values; also a barrier."""
        return self.largest([value])[0]

    def largest(self, values: Sequence[float]) -> list[float]:
        """The largest over the ranks of each value."""
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)
        return tensor.tolist()

    def batch_us(self, call: Callable[[], Tensor], count: int) -> float:
        """Microseconds of one of `count` calls, back to back, which all ranks begin together."""
        self.worst(0.0)
        if self.device.type != "cuda":
            start = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - start) * 1e6 / count
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record(torch.cuda.current_stream(self.device))
        for _ in range(count):
            call()
        last.record(torch.cuda.current_stream(self.device))
        last.synchronize()
        return first.elapsed_time(last) * 1e3 / count


class _Rounds:
    """Batches of every path of some collectives, at one size after the other."""

    def __init__(
        self,
        paths: Mapping[str, Communicator],
        collectives: Sequence[str],
        together: _Together,
        device: torch.device,
        dtype: torch.dtype,
        world_size: int,
    ) -> None:
        self.paths, self.together = paths, together
        self.device, self.dtype, self.world_size = device, dtype, world_size
        # of every collective, size and path: microseconds of a call in each batch
        self.samples: dict[str, dict[int, dict[str, list[float]]]] = {collective: {} for collective in collectives}

    def add(self, size: int) -> None:
        """One batch of every path of every collective at `size` bytes. Collective."""
        for collective, by_size in self.samples.items():
            x = _operand(collective, size, self.world_size, self.device, self.dtype)
            calls = {path: _call(comm, collective, x) for path, comm in self.paths.items() if exists(path, collective)}
            found = by_size.setdefault(size, {path: [] for path in calls})
            for path, call in calls.items():
                for _ in range(1 if found[path] else WARM_UP):
                    call()
                us = self.together.worst(min(found[path]) if found[path] else self.together.batch_us(call, 1))
                found[path].append(self.together.batch_us(call, max(1, min(MAX_CALLS, int(BATCH_US / us)))))

    def times(self) -> dict[str, dict[int, dict[str, float]]]:
        """Microseconds of a call of each path: the largest over the ranks of the batches' lower quartiles."""
        return {
            collective: {
                size: dict(zip(found, self.together.largest([_low(each) for each in found.values()]), strict=True))
                for size, found in by_size.items()
            }
            for collective, by_size in self.samples.items()
        }


def _low(samples: Sequence[float]) -> float:
    """The lower quartile; of less than four the least."""
    return sorted(samples)[len(samples) // 4]

"""What two ranks on two GPUs check together; each check returns what is wrong, and leaves the ranks in step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from fused_ranks import COLLECTIVES, PRESETS, collect, difference, expected, inputs, shared_out
from torch import Tensor

from taco.codec import cuda
from taco.comm import CommError, Communicator
from taco.comm.crossover import COMPRESSED, MEASURED, Crossover, key_here
from taco.comm.fused import ONE_SHOT, Fused
from taco.config import NONE
from taco.recipes import preset

TIMEOUT_S = 10.0  # a rank that is stuck ends by itself


def _wrong(fused: Fused, collective: str, parts: Sequence[Tensor], got: Tensor, what: str) -> list[str]:
    text = difference(got, expected(fused.codec, collective, parts)[fused.rank])
    return [f"{what}: {fused.codec.name} {collective} [{parts[0].numel()}] {parts[0].dtype}: {text}"] if text else []


def bits(rank: int, world_size: int) -> list[str]:
    """Presets, dtypes and sizes."""
    wrong = []
    for codec in PRESETS:
        fused = Fused(None, codec, timeout=TIMEOUT_S)
        for numel in (1, 127, 4097, 100_003, 3_000_001):
            for dtype in (torch.bfloat16, torch.float32):
                parts = inputs(world_size, numel, dtype)
                for collective in COLLECTIVES:
                    share = shared_out(parts, collective)
                    wrong += _wrong(fused, collective, share, collect(fused, collective, share[rank]), "bits")
        fused.check()
    return wrong


def back_to_back(rank: int, world_size: int) -> list[str]:
    """Calls without a wait among them, on two streams by turns, with a rank that lags on the GPU or on the host."""
    fused, dice = Fused(None, preset("int8"), sms=4, timeout=TIMEOUT_S), random.Random(0)
    chance, streams = random.Random(rank), [torch.cuda.Stream() for _ in range(2)]
    calls = []
    for i in range(200):
        parts = inputs(
            world_size, world_size * dice.randrange(1, 300_000), dice.choice((torch.bfloat16, torch.float32)), seed=i
        )
        calls.append((dice.choice(COLLECTIVES), parts))
    torch.cuda.synchronize()
    results = []
    for collective, parts in calls:
        with torch.cuda.stream(chance.choice(streams)):
            if chance.random() < 0.05:
                torch.cuda._sleep(chance.randrange(1_000, 5_000_000))
            if chance.random() < 0.02:
                time.sleep(0.01)
            results.append(collect(fused, collective, parts[rank]))
    torch.cuda.synchronize()
    fused.check()
    return [
        text
        for (collective, parts), got in zip(calls, results, strict=True)
        for text in _wrong(fused, collective, parts, got, "back to back")
    ]


def subgroup(rank: int, world_size: int) -> list[str]:
    """Calls of a second group between those of the first."""
    every = Fused(None, preset("int8"), timeout=TIMEOUT_S)
    other = Fused(dist.new_group([0, 1]), preset("taco"), timeout=TIMEOUT_S)
    results = []
    for i in range(40):
        for fused, numel in ((every, 50_000 + 2 * i), (other, 3000 * (i + 1))):
            collective, parts = COLLECTIVES[i % 4], inputs(world_size, numel, torch.bfloat16, seed=i)
            results.append((fused, collective, parts, collect(fused, collective, parts[rank])))
    torch.cuda.synchronize()
    return [text for entry in results for text in _wrong(*entry, "two groups")]


def delayed(rank: int, world_size: int) -> list[str]:
    """A rank whose host comes 0.2 s later."""
    fused, wrong = Fused(None, preset("taco"), timeout=TIMEOUT_S), []
    for i in range(8):
        collective, parts = COLLECTIVES[i % 4], inputs(world_size, 200_000, torch.float32, seed=i)
        torch.cuda.synchronize()
        if i // 4 == rank:
            time.sleep(0.2)
        wrong += _wrong(fused, collective, parts, collect(fused, collective, parts[rank]), "delayed")
    return wrong


def graph(rank: int, world_size: int) -> list[str]:
    """A thousand replays of two calls, with new inputs every hundred, and eager calls between."""
    fused, wrong = Fused(None, preset("int8"), timeout=TIMEOUT_S), []
    first, second = (
        torch.zeros(n, device="cuda", dtype=d) for n, d in ((100_003, torch.bfloat16), (80_000, torch.float32))
    )
    replayed = torch.cuda.CUDAGraph()
    dist.barrier()
    torch.cuda.synchronize()
    with torch.cuda.graph(replayed, capture_error_mode="thread_local"):
        total, part = fused.all_reduce(first), fused.reduce_scatter(second)
    for block in range(10):
        sums, shards = (inputs(world_size, x.numel(), x.dtype, seed=block) for x in (first, second))
        first.copy_(sums[rank])
        second.copy_(shards[rank])
        for _ in range(100):
            replayed.replay()
        wrong += _wrong(fused, "one_shot", sums, total, f"replay of block {block}")
        wrong += _wrong(fused, "reduce_scatter", shards, part, f"replay of block {block}")
        wrong += _wrong(fused, "all_gather", shards, fused.all_gather(shards[rank]), f"after block {block}")
    fused.check()
    return wrong


def first_call_in_capture(rank: int, world_size: int) -> list[str]:
    said = ""
    dist.barrier()
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        try:
            Fused(None, preset("int8"))
        except CommError as error:
            said = str(error)
        torch.zeros(1, device="cuda")  # a graph without nodes would be warned about
    return [] if "inside the capture of a CUDA graph; need one call before it" in said else [f"said {said!r}"]


def different_codecs(rank: int, world_size: int) -> list[str]:
    try:
        Fused(None, preset(("int8", "int4")[rank]), timeout=TIMEOUT_S)
    except ValueError as error:
        told = str(error)
        return [] if "need one" in told and "'int8'" in told and "'int4'" in told else [f"said {told!r}"]
    return ["ranks with different codecs went on"]


def beside_a_gemm(rank: int, world_size: int) -> list[str]:
    """On 16 SMs, while products take the others: of small integers, exact in any order."""
    fused, wrong = Fused(None, preset("int8"), sms=16, timeout=TIMEOUT_S), []
    a, b = (torch.randint(-1, 2, (4096, 4096), device="cuda").bfloat16() for _ in range(2))
    product, side = a @ b, torch.cuda.Stream()
    parts = inputs(world_size, 4_000_000, torch.bfloat16)
    want = expected(fused.codec, "one_shot", parts)[rank]
    torch.cuda.synchronize()
    totals, products = [], []
    for _ in range(10):
        with torch.cuda.stream(side):
            products += [a @ b for _ in range(4)]
        totals.append(fused.all_reduce(parts[rank], algorithm="one_shot"))
    torch.cuda.synchronize()
    wrong += [f"sum beside a product: {text}" for y in totals if (text := difference(y, want))]
    return wrong + [f"product beside a sum: {text}" for y in products if (text := difference(y, product))]


def compiled(rank: int, world_size: int) -> list[str]:
    """torch.compile's inductor keeps the operator's calls, which change one workspace, and their order."""
    fused, wrong = Fused(None, preset("int8"), timeout=60.0), []
    numbers, codec = fused.workspace.numbers, cuda.number(fused.codec)

    def step(x: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.ops.taco.collective(x * 2, token, numbers, codec, ONE_SHOT, [])
        return total + 1, torch.ops.taco.collective(total, token, numbers, codec, ONE_SHOT, [])

    run = torch.compile(step, fullgraph=True, dynamic=False)
    for i in range(4):
        parts = inputs(world_size, 30_000, torch.float32, seed=i)
        once, twice = run(parts[rank], fused.workspace.token)
        totals = expected(fused.codec, "one_shot", [2 * part for part in parts])
        for got, want in ((once, totals[rank] + 1), (twice, expected(fused.codec, "one_shot", totals)[rank])):
            wrong += [f"compiled, call {i}: {text}" for text in [difference(got, want)] if text]
        wrong += _wrong(fused, "one_shot", parts, fused.all_reduce(parts[rank]), "after a compiled call")
    return wrong


def paths(rank: int, world_size: int) -> list[str]:
    """Every path that a table may choose, waiting and asynchronous; then the choice without a table."""
    codec, x = preset("int8"), inputs(world_size, 200_000, torch.bfloat16)
    sums = [sum(part.float() for part in x).bfloat16()] * world_size
    key = key_here(x[0].device, "auto", world_size, codec, x[0].dtype)
    wrong = []
    for path in MEASURED:
        times = {"uncompressed": 2.0} | {path: 1.0}
        table = Crossover(key=key, times={"all_reduce": {1: times}})
        comm = Communicator(None, codec, role="paths", crossover=table)
        want = expected(codec, "one_shot", x) if path in COMPRESSED else sums
        for got in (comm.all_reduce(x[rank]), comm.all_reduce_async(x[rank]).wait()):
            wrong += [f"{path}: {text}" for text in [difference(got, want[rank])] if text]
        named = "one_shot" if path == "unfused" else path  # counted by its algorithm
        wrong += [f"{path}: ran {dict(comm.paths)}"] if set(comm.paths) != {named} else []
        comm.check()
    for each, path, want in ((codec, "fused", expected(codec, "one_shot", x)), (NONE, "fused_uncompressed", sums)):
        comm = Communicator(None, each, role="auto", fused="auto")
        wrong += [f"auto: {text}" for text in [difference(comm.all_reduce(x[rank]), want[rank])] if text]
        wrong += [f"auto: ran {dict(comm.paths)}"] if set(comm.paths) != {path} else []
    return wrong


CHECKS: dict[str, Callable[[int, int], list[str]]] = {
    check.__name__: check
    for check in (
        bits, back_to_back, subgroup, delayed, graph, first_call_in_capture, different_codecs, beside_a_gemm, compiled,
        paths,
    )
}  # fmt: skip


def lost(rank: int, world_size: int) -> list[str]:
    """The last check of its ranks: rank 1 does not come."""
    timeout, wrong = 1.0, []
    fused = Fused(None, preset("int8"), timeout=timeout)
    parts = inputs(world_size, 1_000_000, torch.bfloat16)
    wrong += _wrong(fused, "one_shot", parts, fused.all_reduce(parts[rank]), "before")
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        start = time.monotonic()
        y = fused.all_reduce(parts[0])
        torch.cuda.synchronize()
        if (took := time.monotonic() - start) > timeout + 1.0:
            wrong.append(f"took {took:.1f} s, need about {timeout} s")
        if not y.isnan().all():
            wrong.append("a result without rank 1 is not NaN")
        for attempt in (fused.check, lambda: fused.reduce_scatter(parts[0])):
            try:
                attempt()
                wrong.append("nothing was raised")
            except CommError as error:
                if "call 2, failed in the exchange of packets: rank 1 sent nothing for 1 s" not in str(error):
                    wrong.append(f"said {error}")
    dist.barrier()
    return wrong

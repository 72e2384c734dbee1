"""How fused collectives are used: back to back, on several streams, in CUDA graphs, compiled. On one GPU."""

from __future__ import annotations

import random

import pytest
import torch
from fused_ranks import COLLECTIVES, DTYPES, Ranks, collect, difference, differences, expected, inputs, one_gpu
from torch import Tensor

from taco.comm.fused import ONE_SHOT, REDUCE_SCATTER, Fused
from taco.recipes import preset

pytestmark = one_gpu

Call = tuple[str, list[Tensor]]  # a collective and what each rank passes


def _calls(world_size: int, count: int, seed: int) -> list[Call]:
    """Random collectives of random sizes and dtypes, half of them of a few chunks."""
    dice = random.Random(seed)
    calls = []
    for i in range(count):
        numel = dice.randrange(1, 20_000 if i % 2 else 150_000)
        parts = inputs(world_size, numel * world_size, dice.choice(DTYPES), seed=seed * 1000 + i)
        calls.append((dice.choice(COLLECTIVES), parts))
    return calls


def _compare(ranks: Ranks, calls: list[Call], results: list[list[Tensor]]) -> list[str]:
    wrong = []
    for number, ((collective, parts), got) in enumerate(zip(calls, results, strict=True)):
        want = expected(ranks.codec, collective, parts)
        wrong += differences(got, want, f"call {number}: {collective} [{parts[0].numel()}] {parts[0].dtype}")
    return wrong


@pytest.mark.parametrize("sms", [1, 8])
@pytest.mark.parametrize("name", ["none", "int8", "taco"])
def test_calls_back_to_back_with_a_rank_that_lags(name: str, sms: int) -> None:
    ranks = Ranks(3, preset(name), sms=sms)
    calls, dice = _calls(3, 200, seed=sms), random.Random(1)
    torch.cuda.synchronize()

    def call(fused: Fused, rank: int, collective: str, parts: list[Tensor]) -> Tensor:
        if dice.random() < 0.05:
            torch.cuda._sleep(dice.randrange(1_000, 3_000_000))
        return collect(fused, collective, parts[rank])

    results = [ranks.issue(lambda f, r, c=c, parts=parts: call(f, r, c, parts)) for c, parts in calls]
    ranks.finish()
    assert _compare(ranks, calls, results) == []


def test_a_rank_that_alternates_between_streams_keeps_the_order_of_its_calls() -> None:
    ranks = Ranks(2, preset("int8"))
    streams = [[torch.cuda.Stream() for _ in range(3)] for _ in ranks.fused]
    calls, dice = _calls(2, 100, seed=5), random.Random(2)
    torch.cuda.synchronize()
    results = []
    for collective, parts in calls:
        results.append([])
        for rank, fused in enumerate(ranks.fused):
            with torch.cuda.stream(dice.choice(streams[rank])):
                if dice.random() < 0.1:
                    torch.cuda._sleep(dice.randrange(1_000, 3_000_000))
                results[-1].append(collect(fused, collective, parts[rank]))
    ranks.finish()
    assert _compare(ranks, calls, results) == []


def test_a_capture_between_calls_does_not_lose_their_order() -> None:
    """The call behind the capture, on a third stream, still follows the one before it."""
    ranks = Ranks(2, preset("int8"))
    (fused, other), streams = ranks.fused, [torch.cuda.Stream() for _ in range(3)]
    first, second = (inputs(2, 50_000, torch.float32, seed=seed) for seed in (1, 2))
    captured, graph = torch.zeros(1000, device="cuda"), torch.cuda.CUDAGraph(keep_graph=True)
    # memory for the captured result: an allocation from CUDA would wait for kernels that wait for each other
    pool, before = torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.stream(streams[1]):
        before.capture_begin(pool=pool, capture_error_mode="relaxed")
        torch.empty(1000, device="cuda")
        before.capture_end()
    torch.cuda.synchronize()
    with torch.cuda.stream(ranks.streams[1]):
        theirs = [other.all_reduce(parts[1]) for parts in (first, second)]
    with torch.cuda.stream(streams[0]):
        torch.cuda._sleep(50_000_000)
        ours = [fused.all_reduce(first[0])]
    with torch.cuda.stream(streams[1]):
        graph.capture_begin(pool=pool, capture_error_mode="relaxed")  # torch.cuda.graph would wait for the GPU
        fused.all_reduce(captured)
        graph.capture_end()
    with torch.cuda.stream(streams[2]):
        ours.append(fused.all_reduce(second[0]))
    ranks.finish()
    calls = [("one_shot", first), ("one_shot", second)]
    assert _compare(ranks, calls, [list(pair) for pair in zip(ours, theirs, strict=True)]) == []


def test_two_groups_on_the_same_streams() -> None:
    """All three ranks, and the first two alone, with workspaces of their own."""
    every = Ranks(3, preset("int8"))
    pair = Ranks(2, preset("taco"), streams=every.streams[:2])
    of_every, of_pair = _calls(3, 60, seed=7), _calls(2, 60, seed=8)
    torch.cuda.synchronize()
    results: dict[Ranks, list[list[Tensor]]] = {every: [], pair: []}
    for calls in zip(of_every, of_pair, strict=True):
        for ranks, (collective, parts) in zip((every, pair), calls, strict=True):
            results[ranks].append(ranks.issue(lambda f, r, c=collective, p=parts: collect(f, c, p[r])))
    every.finish()
    pair.finish()
    assert _compare(every, of_every, results[every]) == []
    assert _compare(pair, of_pair, results[pair]) == []


# --- CUDA graphs --------------------------------------------------------------------------------------


def _capture(ranks: Ranks, calls: list[Call]) -> tuple[list[torch.cuda.CUDAGraph], list[list[Tensor]]]:
    """The calls in a graph of each rank, and their results: results[i][r] of call i and rank r."""
    graphs, results = [], []
    torch.cuda.synchronize()
    for rank, (fused, stream) in enumerate(zip(ranks.fused, ranks.streams, strict=True)):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            results.append([collect(fused, collective, parts[rank]) for collective, parts in calls])
    return graphs, list(map(list, zip(*results, strict=True)))


def _refill(calls: list[Call], seed: int) -> None:
    for _, parts in calls:
        for part, new in zip(parts, inputs(len(parts), parts[0].numel(), parts[0].dtype, seed=seed), strict=True):
            part.copy_(new)
    torch.cuda.synchronize()


@pytest.mark.parametrize("name", ["int8", "none"])
def test_graphs_replay_with_new_inputs_between_eager_calls(name: str) -> None:
    ranks = Ranks(2, preset(name))
    first = [("one_shot", inputs(2, 100_003, torch.bfloat16)), ("reduce_scatter", inputs(2, 80_000, torch.float32))]
    second = [("all_gather", inputs(2, 4097, torch.bfloat16)), ("two_shot", inputs(2, 50_001, torch.float16))]
    graphs, results = _capture(ranks, first)
    others, other_results = _capture(ranks, second)
    wrong = []
    for block in range(10):
        _refill(first, seed=block + 1)
        for _ in range(100):
            ranks.issue(lambda fused, rank: graphs[rank].replay())
        ranks.finish()
        wrong += _compare(ranks, first, results)
        wrong += ranks.wrong(COLLECTIVES[block % 4], first[1][1], f"after block {block}")
        _refill(second, seed=block + 1)
        for _ in range(5):
            ranks.issue(lambda fused, rank: others[rank].replay())
        ranks.issue(lambda fused, rank: collect(fused, "one_shot", first[0][1][rank]))
        ranks.issue(lambda fused, rank: graphs[rank].replay())
        ranks.finish()
        wrong += _compare(ranks, first, results) + _compare(ranks, second, other_results)
    assert wrong == []


# --- the rest -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", ["int8", "taco", "none"])
def test_tiny_numbers_give_the_same_bits_every_time(name: str, world_size: int) -> None:
    ranks = Ranks(world_size, preset(name))
    parts = inputs(world_size, world_size * 5000, torch.float32, scale=1e-6)
    torch.cuda.synchronize()
    results = [ranks.issue(lambda fused, rank: collect(fused, "reduce_scatter", parts[rank])) for _ in range(1000)]
    ranks.finish()
    assert differences(results[0], expected(ranks.codec, "reduce_scatter", parts), "the first") == []
    for rank in range(world_size):
        every = torch.stack([result[rank] for result in results])
        assert torch.equal(every, results[0][rank].expand_as(every))


def test_does_not_synchronise() -> None:
    ranks = Ranks(2, preset("int6"))
    parts = inputs(2, 10_000, torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for collective in COLLECTIVES:
            ranks.issue(lambda fused, rank, c=collective: collect(fused, c, parts[rank]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ranks.finish()


def test_compiles_without_graph_breaks() -> None:
    """Traced by torch.compile, run as it is: its inductor would wait for the GPU (two GPUs: test_fused_gpus.py)."""
    ranks = Ranks(2, preset("int8"), timeout=60.0)
    parts = inputs(2, 6000, torch.float32)
    compiled = []
    for fused in ranks.fused:
        numbers, codec = fused.workspace.numbers, fused._number

        def step(x: Tensor, token: Tensor, numbers: list[int] = numbers, codec: int = codec) -> tuple[Tensor, Tensor]:
            total = torch.ops.taco.collective(x * 2, token, numbers, codec, ONE_SHOT, [])
            return total + 1, torch.ops.taco.collective(total, token, numbers, codec, REDUCE_SCATTER, [])

        compiled.append(torch.compile(step, fullgraph=True, dynamic=False, backend="eager"))
    assert (parts[0] * 2 + 1).any()  # kernels that are first launched beside a waiting one may wait for it
    for _ in range(3):
        got = ranks.each(lambda fused, rank: compiled[rank](parts[rank], fused.workspace.token))
        totals = expected(ranks.codec, "one_shot", [2 * part for part in parts])
        parts_of_sums = expected(ranks.codec, "reduce_scatter", totals)
        for rank, (total, part) in enumerate(got):
            assert difference(total, totals[rank] + 1) == ""
            assert difference(part, parts_of_sums[rank]) == ""

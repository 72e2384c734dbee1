"""A rank that does not come, or comes too late: the others say so, and nobody takes a wrong number for a sum."""

from __future__ import annotations

import pytest
import torch
from fused_ranks import COLLECTIVES, Ranks, collect, differences, expected, inputs, one_gpu

from taco.comm import CommError
from taco.recipes import preset

pytestmark = one_gpu

TIMEOUT_S = 0.3
NAMES = {"one_shot": "all_reduce", "two_shot": "all_reduce"}
LARGE = 2_000_000  # on one SM many times what the slots of a workspace hold


@pytest.mark.parametrize("numel", [1000, LARGE])
@pytest.mark.parametrize("name", ["int8", "none"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_rank_that_never_comes_is_named(collective: str, name: str, numel: int) -> None:
    ranks = Ranks(2, preset(name), sms=1, timeout=TIMEOUT_S)
    parts = inputs(2, numel, torch.bfloat16)
    for _ in range(2):
        assert ranks.wrong(collective, parts) == []
    with torch.cuda.stream(ranks.streams[0]):
        y = collect(ranks.fused[0], collective, parts[0])
    torch.cuda.synchronize()
    assert (y[1] if collective == "all_gather" else y).isnan().all()
    said = f"rank 0 of 2: {NAMES.get(collective, collective)}, call 3, failed in the exchange of packets: rank 1 sent"
    with pytest.raises(CommError, match=said):
        ranks.fused[0].check()
    state = ranks.fused[0].workspace.state.clone()
    with pytest.raises(CommError, match=said):
        collect(ranks.fused[0], collective, parts[0])
    torch.cuda.synchronize()
    assert torch.equal(state, ranks.fused[0].workspace.state)  # nothing was launched
    ranks.fused[1].check()  # it has waited for nobody


def test_all_that_wait_name_the_rank_and_later_calls_in_flight_end_at_once() -> None:
    ranks = Ranks(3, preset("int8"), timeout=TIMEOUT_S)
    parts = inputs(3, 300_000, torch.float32)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    results = []
    for collective in ("two_shot", "one_shot", "reduce_scatter", "two_shot"):
        for rank in (0, 2):
            with torch.cuda.stream(ranks.streams[rank]):
                results.append(collect(ranks.fused[rank], collective, parts[rank]))
    torch.cuda.synchronize()
    end.record()
    torch.cuda.synchronize()
    assert all(y.isnan().all() for y in results)
    assert start.elapsed_time(end) < 3 * 1000 * TIMEOUT_S
    for rank in (0, 2):
        with pytest.raises(CommError, match=f"rank {rank} of 3: all_reduce, call 1, .*: rank 1 sent nothing"):
            ranks.fused[rank].check()


@pytest.mark.parametrize("numel", [1000, LARGE])
@pytest.mark.parametrize("collective", ["one_shot", "two_shot", "reduce_scatter"])
def test_a_rank_that_comes_too_late_gets_the_sum_or_nan(collective: str, numel: int) -> None:
    """Its peer has given up and gone on; packets that it has not taken yet must not be replaced by later ones."""
    ranks = Ranks(2, preset("int8"), sms=1, timeout=TIMEOUT_S)
    parts = inputs(2, numel, torch.bfloat16)
    results = []
    for rank, stream in enumerate(ranks.streams):
        with torch.cuda.stream(stream):
            results.append(collect(ranks.fused[rank], collective, parts[rank]))
        torch.cuda.synchronize()
    late, want = results[1], expected(ranks.codec, collective, parts)[1]
    assert not ((late != want) & ~late.isnan()).any()


def test_a_workspace_that_broke_leaves_others_alone() -> None:
    broken, whole = (Ranks(2, preset("int8"), timeout=TIMEOUT_S) for _ in range(2))
    parts = inputs(2, 10_000, torch.bfloat16)
    torch.cuda.synchronize()
    with torch.cuda.stream(broken.streams[0]):
        broken.fused[0].all_reduce(parts[0])
    got = whole.issue(lambda fused, rank: fused.all_reduce(parts[rank]))
    whole.finish()
    assert differences(got, expected(whole.codec, "one_shot", parts), "the other workspace") == []
    with pytest.raises(CommError, match="rank 1 sent nothing"):
        broken.fused[0].check()

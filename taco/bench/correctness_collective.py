"""The collectives' rules as checks, in one process: virtual ranks run the real ones' algorithms and arithmetic.

The authors' published two-shot (encode, all-to-all, decode to the tensor's dtype, sum in fp32, encode, all-gather,
decode) is run with their codec where a rule can be read off it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from taco.bench.correctness_codec import Outcome, Rule, Subject, gaussian, same_bits
from taco.codec.quality import sqnr_db
from taco.comm import VirtualCommunicator, wire_bytes

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def virtual(s: Subject, ways: int, **options) -> VirtualCommunicator:
    assert s.config is not None
    return VirtualCommunicator(ways, s.config, role="check", **options)


def parts_of(ways: int, *shape: int) -> list[Tensor]:
    return [gaussian(*shape, seed=r) for r in range(ways)]


def published_sum(s: Subject, parts: list[Tensor]) -> Tensor:
    """The sum that the authors' collectives form of decoded parts: each in the tensors' dtype, added in fp32."""
    return torch.stack([s.roundtrip(part).float() for part in parts]).sum(0).to(parts[0].dtype)


def published_all_reduce(s: Subject, parts: list[Tensor]) -> list[Tensor]:
    """Their two-shot all-reduce, as every rank computes its result: chunks by rank, the owner decodes its own too."""
    ways = len(parts)
    chunks = [part.reshape(-1).tensor_split(ways) for part in parts]
    sums = [published_sum(s, [mine[r] for mine in chunks]) for r in range(ways)]
    return [torch.cat([s.roundtrip(total) for total in sums]).view(parts[0].shape) for _ in range(ways)]


def reduce(s: Subject, parts: list[Tensor]) -> Tensor:
    if s.config is None:
        return published_all_reduce(s, parts)[0]
    return virtual(s, len(parts), algorithm="two_shot").all_reduce(parts)


def sum_precision(s: Subject) -> Outcome:
    """How far the bf16 sum of eight parts is from the fp32 sum of what the packets hold, rounded once."""
    parts = [part.bfloat16() for part in parts_of(8, 4096)]
    held = torch.stack([s.roundtrip(part.float()) for part in parts]).sum(0)
    if s.config is None:
        y = published_sum(s, parts)
    else:
        y = virtual(s, 8, algorithm="one_shot").all_reduce(parts)
    different = float((y != held.bfloat16()).float().mean())
    return different < 0.005, f"{100 * different:.2f} % of the elements differ from one rounding of the fp32 sum"


def accuracy(s: Subject) -> Outcome:
    parts = parts_of(4, 64, 512)
    exact = torch.stack(parts).double().sum(0)
    once, both = sqnr_db(parts[0], s.roundtrip(parts[0])), sqnr_db(exact, reduce(s, parts).double())
    return both > once - 3.5, f"one encoding {once:.1f} dB, two-shot sum of 4 ranks {both:.1f} dB (3 dB is the price)"


def any_world(s: Subject) -> Outcome:
    floor = sqnr_db(gaussian(64, 128), s.roundtrip(gaussian(64, 128))) - 5.0
    worst = {}
    for ways in (2, 3, 5, 6, 7, 8, 24):
        parts = parts_of(ways, ways * 128 * 4)
        worst[ways] = sqnr_db(torch.stack(parts).double().sum(0), reduce(s, parts).double())
    at = min(worst, key=worst.__getitem__)
    return worst[at] > floor, f"world sizes 2..24: lowest {worst[at]:.1f} dB at {at}"


def not_finite(s: Subject) -> Outcome:
    parts = parts_of(4, 1024)
    parts[2][100], parts[1][700] = math.nan, math.inf
    y = reduce(s, parts)
    return not y[
        [100, 700]
    ].isfinite().any(), f"one rank's NaN arrives as {float(y[100]):g}, its Inf as {float(y[700]):g}"


def counted(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    checked = 0
    for ways in (2, 3, 4, 8):
        for numel in (ways, 1000 * ways, 1024 * ways):
            comm = virtual(s, ways)
            for op in OPERATIONS:
                size = numel // ways if op == "all_gather" else numel
                getattr(comm, op)([torch.ones(size)] * ways)
                sent = comm.meter.take()["check"]["wire"]
                predicted = wire_bytes(op, "auto", numel, torch.float32, ways, s.config)
                if sent != predicted:
                    return False, f"{op} of {numel} on {ways} ranks sends {sent} bytes, predicted {predicted}"
                checked += 1
    return True, f"{checked} operations on 2, 3, 4 and 8 ranks, with and without tails"


def uneven(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    for sizes in ([300, 0, 7, 130], [0, 0, 0, 1], [0, 0, 0, 0]):
        parts = [list(part.split(sizes)) for part in parts_of(4, sum(sizes))]
        comm = virtual(s, 4)
        sums = comm.reduce_scatter_chunks(parts)
        rows = comm.all_gather_chunks(sums)
        if [row.numel() for row in rows] != sizes or not all(row.isfinite().all() for row in rows):
            return False, f"sizes {sizes} come back as {[row.numel() for row in rows]}"
    rows = virtual(s, 4).reduce_scatter(parts_of(4, 31936, 1))
    return len(rows[3]) == 7984, "chunks of 300, 0, 7 and 130 elements, empty ones, 31936 rows on 4 ranks"


def any_dim(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    for dim in (0, 1, -1):
        parts = parts_of(2, 4, 6, 32)
        y = virtual(s, 2).all_gather(parts, dim)
        if not same_bits(y, torch.cat([s.roundtrip(part) for part in parts], dim)):
            return False, f"gathering along dim {dim} puts elements elsewhere"
        shards = virtual(s, 2).reduce_scatter(parts, dim)
        exact = (parts[0] + parts[1]).tensor_split(2, dim)
        if any(sqnr_db(e, shard) < 12 for e, shard in zip(exact, shards, strict=True)):
            return False, f"scattering along dim {dim} puts elements elsewhere"
    return True, "gathered and scattered along the first, a middle and the last dimension"


def keeps_dtype(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for op in OPERATIONS:
            y = getattr(virtual(s, 2), op)([gaussian(8, 32).to(dtype)] * 2)
            if (y[0] if isinstance(y, list) else y).dtype != dtype:
                return False, f"{op} of {dtype} returns another dtype"
    return True, f"{', '.join(OPERATIONS)} of fp32, bf16, fp16"


def repeated(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    parts = [1e-6 * part for part in parts_of(2, 512)]
    comm = virtual(s, 2)
    first = torch.cat(comm.reduce_scatter(parts))
    for call in range(200):
        if not same_bits(torch.cat(comm.reduce_scatter(parts)), first):
            return False, f"call {call + 2} gives other bits"
    bound = float(first.abs().max() / torch.stack(parts).sum(0).abs().max())
    return bound < 1.5, "201 equal calls on values of 1e-6 give equal bits"


def exempt(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    comm = virtual(s, 2, min_bytes=4096)
    small, counts = torch.full((1023,), 0.1), torch.arange(5000)
    ok = torch.equal(comm.all_reduce([small] * 2), small * 2) and torch.equal(comm.all_reduce([counts] * 2), counts * 2)
    return ok and comm.paths == {"uncompressed": 2}, f"paths taken: {dict(comm.paths)}"


def bad_input(s: Subject) -> Outcome | None:
    if s.config is None:
        return None
    comm = virtual(s, 2)
    calls: tuple[Callable[[], object], ...] = (
        lambda: comm.reduce_scatter([torch.ones(5)] * 2),
        lambda: comm.all_gather([torch.ones(5)] * 2, 1),
        lambda: comm.all_reduce([torch.ones(5)] * 3),
        lambda: comm.all_reduce([torch.ones(5, dtype=torch.float64)] * 2),
    )
    texts = []
    for call in calls:
        try:
            call()
        except ValueError as error:
            texts.append(str(error))
    ok = len(texts) == len(calls) and all("got" in t and "need" in t and "because" in t for t in texts)
    return ok and not comm.meter.totals(), f"{len(texts)} of {len(calls)} refused, nothing sent"


def _rule(name: str, statement: str, check: Callable[[Subject], Outcome | None]) -> Rule:
    return Rule(name=name, section="collective", statement=statement, check=check)


RULES = (
    _rule("sum-precision", "bf16 parts are summed in fp32 and rounded once", sum_precision),
    _rule("two-shot-error", "A two-shot sum loses 3 dB to one encoding", accuracy),
    _rule("any-world-size", "World sizes that are not powers of two work", any_world),
    _rule("collective-non-finite", "One rank's NaN or Inf reaches every rank", not_finite),
    _rule("counted-bytes", "Bytes counted on the wire equal the formula", counted),
    _rule("uneven-chunks", "Uneven and empty chunks work", uneven),
    _rule("any-dim", "Every dimension can be gathered and scattered", any_dim),
    _rule("keeps-dtype", "Results keep the dtype of their inputs", keeps_dtype),
    _rule("repeated-tiny", "Repeated calls on tiny values give equal bits", repeated),
    _rule("exempt", "Small messages and integers travel exactly", exempt),
    _rule("bad-input", "Bad input is refused before anything is sent", bad_input),
)

"""What a codec keeps of a sum over ranks: each part is coded, and in two shots the sum, too."""

from __future__ import annotations

import torch
from torch import Tensor

from taco.bench import captures as capture_files
from taco.codec import coder
from taco.codec.quality import sqnr_db
from taco.config import Codec, NoCodec


def sums_db(codec: Codec, parts: list[Tensor]) -> tuple[float, float]:
    """SQNR in dB of the one-shot and the two-shot all-reduced sum of the ranks' parts against their fp64 sum.

    parts: equal shapes; coded as fp32.
    """
    chosen, numel = coder(codec), parts[0].numel()
    packets = torch.stack([chosen.encode(p.float(), seed=rank) for rank, p in enumerate(parts)])
    once = chosen.decode_sum(packets, numel, torch.float32)
    twice = chosen.decode(
        chosen.decode_sum_encode(packets, numel, torch.float32, seed=len(parts)), numel, torch.float32
    )
    exact = torch.stack([p.double().reshape(-1) for p in parts]).sum(0)
    return sqnr_db(exact, once), sqnr_db(exact, twice)


def two_shot_sqnr_db(codec: Codec, parts: list[Tensor]) -> float:
    """The two-shot part of `sums_db`."""
    return sums_db(codec, parts)[1]


def mean_sums_db(codec: Codec | None, collectives: list[list[Tensor]]) -> dict[str, float | int | None]:
    """ranks, and the means of `sums_db` over collectives: one_shot_sqnr_db and two_shot_sqnr_db.

    None where there is one rank, or no codec that sums (codec None, or none).
    """
    ranks = len(collectives[0])
    if codec is None or isinstance(codec, NoCodec) or ranks == 1:
        return {"ranks": ranks, "one_shot_sqnr_db": None, "two_shot_sqnr_db": None}
    once, twice = zip(*(sums_db(codec, parts) for parts in collectives), strict=True)
    return {
        "ranks": ranks,
        "one_shot_sqnr_db": capture_files.mean(once),
        "two_shot_sqnr_db": capture_files.mean(twice),
    }

"""What the tensors that a run sends look like: spread, tails, crest factor, and where the paper's alpha ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from taco.bench import captures as capture_files
from taco.bench.captures import Captured
from taco.codec import reference
from taco.codec.quality import crest_db
from taco.config import require
from taco.log import LogWriter
from taco.recipes import PRESETS

GROUP = 128
NEAR_ZERO = 0.1
# histogram of x / rms; what lies outside is counted apart
EDGES = tuple(0.25 * i for i in range(-32, 33))


def measure_distribution(
    source: str, captures: Sequence[Path], out: Path, provenance: dict, *, limit: int = 1 << 20
) -> None:
    """Write a row for every captured tensor and a histogram for every run, role and layer.

    limit: elements used of each tensor. Crest in dB over groups of 128, before and after the signed rotation.
    Raises `ConfigError` without captures.
    """
    require(bool(captures), "no captures", "files of `taco train RUN --capture FILE`", "they are what is described")
    config = {"source": source, "limit": limit, "group": GROUP}
    log = LogWriter(out, {"name": "distribution", "config": config, "provenance": provenance})
    histograms: dict[tuple[str, int, str, int], Tensor] = {}
    outside: dict[tuple[str, int, str, int], int] = {}
    for c in capture_files.read(captures, limit):
        row = statistics(c)
        log.write("row", **row)
        if not row["rms"] > 0:
            continue
        scaled = c.tensor.reshape(-1).float() / row["rms"]
        counts = torch.histc(scaled, bins=len(EDGES) - 1, min=EDGES[0], max=EDGES[-1]).long()
        key = (c.run, c.step, c.role, c.layer)
        histograms[key] = histograms.get(key, torch.zeros_like(counts)) + counts
        outside[key] = outside.get(key, 0) + scaled.numel() - int(counts.sum())
    for (run, step, role, layer), counts in histograms.items():
        log.write(
            "histogram",
            run=run,
            step=step,
            role=role,
            layer=layer,
            edges=list(EDGES),
            counts=counts.tolist(),
            outside=outside[run, step, role, layer],
        )
    log.close()


def statistics(c: Captured) -> dict:
    """The row of one captured tensor. kurtosis: fourth central moment over squared variance, 3 for a Gaussian."""
    x = c.tensor.reshape(-1).double()
    rms = float(x.square().mean().sqrt())
    central = x - x.mean()
    groups = reference.columns(c.tensor.reshape(-1), GROUP)
    whole = groups[:, : x.numel() // GROUP]
    rotated = reference.rotate(whole, PRESETS["int8"]).t().reshape(-1) if whole.numel() else x[:0]
    alpha = reference.alphas(groups, x.numel(), PRESETS["taco"].payload)
    crest = crest_db(x, GROUP)
    return {
        "run": c.run,
        "step": c.step,
        "role": c.role,
        "layer": c.layer,
        "name": c.name,
        "rank": c.rank,
        "numel": x.numel(),
        "rms": rms,
        "absmax_over_rms": _ratio(float(x.abs().max()), rms),
        "kurtosis": _ratio(float(central.pow(4).mean()), float(central.square().mean()) ** 2),
        "near_zero_fraction": float((x.abs() < NEAR_ZERO * rms).double().mean()),
        "crest_db_mean": float(crest.nanmean()),
        "crest_db_max": float(crest.nan_to_num(nan=-math.inf).max()) if crest.numel() else math.nan,
        "crest_rotated_db_mean": float(crest_db(rotated, GROUP).nanmean()),
        "alpha_clamped_fraction": float((alpha == reference.ALPHA_HIGH).double().mean()),
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else math.nan

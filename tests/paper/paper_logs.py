"""Invented logs of every experiment, written with taco.log: input for tests of tables, figures and claims."""

from __future__ import annotations

import math
import random
from dataclasses import asdict
from pathlib import Path

from taco import recipes
from taco.config import ROLES, Run, to_dict
from taco.log import LogWriter

PROVENANCE = {
    "commit": "0123456789abcdef0123", "dirty": False, "date": "2026-01-02T03:04:05+00:00",
    "hardware": "test machine, 2 cores", "device": "cpu", "transport": "gloo", "seed": 1,
}  # fmt: skip
SETS = ("gauss", "gauss-mean", "laplace", "outliers-100x", "outliers-1000x", "student-t3")
SQNR = {
    "int8": 43.7,
    "int6": 31.5,
    "int4": 20.3,
    "flash-int8": 44.6,
    "flash-int4": 20.0,
    "tahquant": 20.9,
    "fp8-cast": 25.0,
}
BYTES = {
    "none": 2.0, "taco": 1.0625, "int8": 1.015625, "int6": 0.765625, "int4": 0.5625, "fp8": 1.0078125, "fp8-cast": 1.0,
    "fp8-tensor": 1.0, "mxfp8": 1.03125, "tahquant": 0.54, "flash-int8": 1.03125, "flash-int4": 0.625,
}  # fmt: skip
GPU = {"device": "cuda", "hardware": "8 x test GPU", "transport": "nccl 2.28"}


def write(
    path: Path,
    records: list[tuple[str, dict]],
    *,
    config: dict | None = None,
    end: dict | None = None,
    **changes,
) -> Path:
    """One finished log. `changes` replace provenance fields."""
    log = LogWriter(path, {"name": path.stem, "config": config or {}, "provenance": PROVENANCE | changes})
    for kind, record in records:
        log.write(kind, **record)
    log.close(**(end or {}))
    return path


def run_log(
    folder: Path, run: Run, *, val_loss: float = 2.0, steps: int = 8, tokens_per_s: float = 1000.0, ratio: float = 1.88,
    comm: float = 0.4, loss_shift: float = 0.0, **changes,
) -> Path:  # fmt: skip
    """A training log: constant speed, equal wire bytes in every role whose axis has ranks, losses that fall from 4."""
    grid = run.parallel
    sizes = {"tp": grid.tp * grid.virtual_tp, "dp": grid.dp, "pp": grid.pp}
    wire = {}
    for role in ROLES:
        if sizes[role[:2]] > 1:
            k = ratio if getattr(run.policy, role).name != "none" else 1.0
            wire[role] = {"wire": int(2**20 / k), "raw": 2**20, "messages": 4}
    records = []
    for step in range(1, steps + 1):
        slow = 0.1 if step <= 3 else 1.0
        loss = 2 + 2 * math.exp(-step / steps) * (1 + loss_shift * step)
        records.append(("step", {
            "step": step, "loss": loss, "tokens_per_s": tokens_per_s * slow, "step_ms": 100 / slow, "wire": wire,
            "phases_ms": {"data": 1.0, "forward_backward": 50.0, "optimizer": 2.0, "comm": 100 / slow * comm},
        }))  # fmt: skip
    records.append(("eval", {"step": steps, "val_loss": val_loss, "tokens": 1}))
    return write(
        folder / f"{run.name}.jsonl", records, config=to_dict(run), end={"steps": steps, "val_loss": val_loss},
        seed=run.train.seed, **changes,
    )  # fmt: skip


def fidelity_rows(seed: int = 0) -> list[tuple[str, dict]]:
    noise = random.Random(seed)
    rows = []
    places = [("synthetic", s, "") for s in SETS] + [("captured", "gpt-mini", r) for r in ("tp_forward", "tp_backward")]
    for codec, bytes_per_element in BYTES.items():
        for tensors, dataset, role in places:
            sqnr = math.inf if codec == "none" else SQNR.get(codec, 31.7) + noise.uniform(-1, 1)
            if codec == "fp8-cast" and role == "tp_backward":
                sqnr = 0.0
            rows.append(("row", {
                "codec": codec, "label": "ours", "dataset": dataset, "tensors": tensors, "role": role,
                "bytes_per_element": bytes_per_element, "ratio_to_bf16": 2 / bytes_per_element, "sqnr_db": sqnr,
                "bulk_sqnr_db": sqnr - 10 if "outliers" in dataset else math.nan, "max_error": 0.01,
            }))  # fmt: skip
    return rows


def distribution_rows() -> list[tuple[str, dict]]:
    rows = []
    edges = [-6 + 0.25 * i for i in range(49)]
    for role in ("tp_forward", "tp_backward"):
        for layer in range(4):
            rows.append(("row", {
                "run": "gpt-mini-vtp4-none-s1", "role": role, "layer": layer, "name": "attention", "rank": 0,
                "numel": 4096, "rms": 0.05 if role == "tp_forward" else 1e-6, "absmax_over_rms": 8.0 + layer,
                "kurtosis": 3.0 + layer,
                "near_zero_fraction": 0.1 if role == "tp_forward" else 0.18, "crest_db_mean": 8.7, "crest_db_max": 12.0,
                "crest_rotated_db_mean": 8.9, "alpha_clamped_fraction": 1.0,
            }))  # fmt: skip
            width = 1.0 - 0.15 * layer
            counts = [int(1e5 * math.exp(-abs(low + 0.125) / width)) for low in edges[:-1]]
            rows.append(("histogram", {"role": role, "layer": layer, "edges": edges, "counts": counts}))
    return rows


def ablation_rows() -> list[tuple[str, dict]]:
    rows = []
    arms = [("taco", "rotation", v, 31.8) for v in ("none", "hadamard", "signed")]
    arms += [("taco", "adaptive_scale", v, 31.8) for v in (True, False)] + [
        ("taco", "group", v, 31.8) for v in (32, 64, 128, 256, 512)
    ]
    arms += [
        ("taco", "payload", v, s)
        for v, s in (("e4m3", 31.8), ("e5m2", 25.8), ("int8", 43.7), ("int6", 31.5), ("int4", 18.6))
    ]
    arms += [("int8", "rotation", v, s) for v, s in (("none", 37.0), ("hadamard", 43.0), ("signed", 43.7))]
    arms += [("int8", "scale", v, s) for v, s in (("fp32", 43.8), ("bf16", 43.7), ("e8m0", 40.8))]
    arms += [("int8", "rounding", v, s) for v, s in (("nearest", 43.7), ("stochastic", 40.7))]
    for base, axis, value, sqnr in arms:
        for dataset, role in (("gauss", ""), ("gpt-mini", "tp_forward"), ("gpt-mini", "tp_backward")):
            rows.append(("row", {
                "base": base, "axis": axis, "value": value, "dataset": dataset, "role": role, "bytes_per_element": 1.03,
                "sqnr_db": sqnr + 0.1 * len(role), "two_shot_sqnr_db": sqnr - 3,
            }))  # fmt: skip
    return rows


def correctness_rows() -> list[tuple[str, dict]]:
    rules = (
        ("rank-identity", "5", "All ranks end with identical tensors"),
        ("non-finite", "4.4", "NaN and Inf survive"),
        ("tail", "4.3", "A tail is as exact as a full group"),
        ("deterministic", "4.6", "Encoding is deterministic"),
    )
    return [
        ("row", {"rule": rule, "section": section, "statement": statement, "subject": subject, "codec": "taco",
                 "passed": subject == "ours" or rule == "deterministic", "detail": f"checked {rule}"})
        for rule, section, statement in rules
        for subject in ("ours", "authors")
    ]  # fmt: skip


def speed_case(us: float, nbytes: int, *, op: str = "encode", codec: str = "taco", mib: float = 64, **more) -> dict:
    """A row of codec_speed; a copy of the same bytes takes 10 us less."""
    return {
        "part": "operation", "op": op, "codec": codec, "dtype": "bfloat16", "mib": mib, "parts": 1, "arm": "ours",
        "path": "cuda", "timing": "graph", "us": us, "us_iqr": 0.1, "calls": 9, "replays": 25, "bytes": nbytes,
        "copy_us": us - 10, "copy_us_iqr": 0.2,
    } | more  # fmt: skip


def speed_rows() -> list[tuple[str, dict]]:
    """Every case of the full grid, small calls, three arms of others, one of which did not run."""
    rows = []
    for i, case in enumerate(recipes.SPEED.cases()):
        nbytes = int(case.mib * 2**20 * (1 + 0.6 * case.parts))
        rows.append(("row", speed_case(nbytes / 4e6 + 12 + i % 5, nbytes, **asdict(case))))
    for op in ("encode", "decode"):
        for arm, us in (("compile", 90.0), ("coccl-fused", 60.0)):
            rows.append(("row", speed_case(us, 100_000_000, op=op, arm=arm, source="somewhere", note="as it is")))
        broken = {"part": "operation", **asdict(recipes.SpeedCase(op=op, codec="taco", dtype="bfloat16", mib=64))}
        rows.append(("failed", broken | {"arm": "other", "reason": "no GPU of its kind", "source": "x", "note": ""}))
    rows.append(("row", speed_case(20.0, 100_000_000, op="copy", codec="", dtype="uint8", mib=47.7, arm="copy")))
    for case in recipes.SPEED.launches():
        for arm, us in (("eager", 9.0), ("graph", 2.0)):
            row = speed_case(us + len(case.op) / 9, 4096, **asdict(case)) | {"part": "launch", "arm": arm}
            rows.append(("row", {k: v for k, v in row.items() if not k.startswith("copy")}))
    return rows


def source_of(experiment: str) -> str:
    """The source whose invented logs have this experiment."""
    return "mini" if recipes.EXPERIMENTS[experiment].logs("mini") else "fresh"


def all_logs(folder: Path, source: str = "mini", **changes) -> Path:
    """Logs of every experiment of a source, in `folder`."""
    noise = random.Random(7)
    shifts = {"none": 0.0, "fp8-cast": 0.2, "int4": 0.01, "tahquant": 0.012, "flash-int4": 0.011}
    for experiment in recipes.EXPERIMENTS.values():
        for name in experiment.runs(source):
            run = recipes.RUNS[name]
            codec = run.policy.tp_forward.name
            loss = 2.0 + shifts.get(codec, 0.001) + (0.012 if run.train.seed == 2 else 0) + noise.uniform(0, 1e-3)
            speed = 1000 * run.parallel.world_size**0.5 * (1.0 if codec == "none" else 1.15)
            run_log(
                folder,
                run,
                val_loss=loss,
                tokens_per_s=speed,
                steps=40,
                loss_shift=shifts.get(codec, 0.001) / 10,
                **changes,
            )
    write(folder / "codec_fidelity.jsonl", fidelity_rows(), **changes)
    write(folder / "distribution.jsonl", distribution_rows(), **changes)
    write(folder / "ablation.jsonl", ablation_rows(), **changes)
    write(folder / "correctness.jsonl", correctness_rows(), **changes)
    return folder

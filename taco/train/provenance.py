"""Where a number comes from: the facts that every log header carries."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import torch

from taco.comm.machine import cpu_name
from taco.train.launch import World

REPOSITORY = Path(__file__).resolve().parents[2]


def _git(*arguments: str) -> str:
    """Output of a git command in this package's repository; empty outside of one (an installed package)."""
    if not (REPOSITORY / ".git").exists():
        return ""
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def commit() -> str:
    """HEAD of this package's repository; where git knows none, what the tree's file `.commit` says; else empty."""
    exported = REPOSITORY / ".commit"
    return _git("rev-parse", "HEAD") or (exported.read_text().strip() if exported.exists() else "")


def _transport(here: World) -> str:
    if here.size == 1:
        return "none"
    if here.backend == "gloo":
        return "gloo"
    way = {"auto": "", "host": " through host memory", "tcp": " over loopback TCP"}[here.transport]
    return "nccl " + ".".join(map(str, torch.cuda.nccl.version())) + way


def collect(here: World, seed: int) -> dict:
    """Provenance of what these ranks measure with this seed: JSON data.

    dirty says whether tracked files differ from it, None where git cannot tell (an exported tree); date is UTC.
    """
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpu = torch.cuda.get_device_name(here.device) if here.device.type == "cuda" else ""
    return {
        "commit": commit(),
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no")) if _git("rev-parse", "HEAD") else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{here.local_size} x {gpu}" if gpu else f"{cpu_name()}, {cores} cores",
        "device": here.device.type,
        "transport": _transport(here),
        "world_size": here.size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seed": seed,
        "host_cores": cores,
        "host_memory_gib": round(memory / 2**30, 1),
    }

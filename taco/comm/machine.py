"""What a machine's devices are called."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def cpu_name() -> str:
    """The processor's model name as Linux reports it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def device_name(device: torch.device) -> str:
    """The GPU's name, or the processor's for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()

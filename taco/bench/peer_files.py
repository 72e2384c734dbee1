"""Files of the user's that list other implementations to time beside ours. Their code is never in this repository."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from taco.config import require


def listed(path: Path, name: str) -> list[Any]:
    """The list `name` of a Python file, which is run. Raises `ConfigError` for a missing file or one without it."""
    require(path.is_file(), f"no file {path}", f"a Python file with {name}", "its implementations are timed")
    spec = importlib.util.spec_from_file_location("taco_bench_peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    require(isinstance(found, list), f"{path} without a list {name}", "that list", "it names the implementations")
    return found


def failure(error: Exception) -> str:
    """One line for a log's field `reason`."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]

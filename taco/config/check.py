"""The checks that every configuration shares: errors say what was got, what is needed, and why."""

from __future__ import annotations

import math
from typing import Any


class ConfigError(ValueError):
    """A configuration that cannot work. The text says: got, need, why."""


def require(ok: bool, got: str, need: str, why: str) -> None:
    """Raise `ConfigError` unless `ok`."""
    if not ok:
        raise ConfigError(f"got {got}; need {need}; because {why}")


def one_of(name: str, value: Any, allowed: tuple, why: str) -> None:
    """Raise `ConfigError` unless `value` of field `name` is in `allowed`."""
    require(value in allowed, f"{name}={value!r}", f"one of {', '.join(map(str, allowed))}", why)


def at_least(low: int, why: str, **values: Any) -> None:
    """Raise `ConfigError` unless every field in `values` is an integer (and no bool) >= low."""
    for name, value in values.items():
        require(
            isinstance(value, int) and not isinstance(value, bool) and value >= low,
            f"{name}={value!r}",
            f"an integer >= {low}",
            why,
        )


def positive(why: str, **values: float) -> None:
    """Raise `ConfigError` unless every field in `values` is a finite number > 0."""
    for name, value in values.items():
        require(0 < value < math.inf, f"{name}={value!r}", "a finite number > 0", why)


def file_name(what: str, name: str, why: str) -> None:
    """Raise ConfigError unless `name` can be a file's in any folder and leads into no other."""
    plain = name.strip(".") and not set(name) & set("/\\\0\n")
    require(bool(plain), f"{what} {name!r}", "a plain file name", why)

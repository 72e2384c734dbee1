"""Lookup by name, shared by every list of recipes."""

from __future__ import annotations

from typing import Any


def by_name(*items: Any) -> dict[str, Any]:
    """A dict from each item's `name` to the item, in order. Raises ValueError for a name given twice."""
    named = {item.name: item for item in items}
    if len(named) != len(items):
        names = [item.name for item in items]
        twice = sorted({n for n in names if names.count(n) > 1})
        raise ValueError(f"got {', '.join(twice)} twice; need distinct names; because a recipe is found by its name")
    return named

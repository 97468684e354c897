"""A transformation, as users write it: at the top of a module."""

from __future__ import annotations

from typing import Any


def adults(item: dict[str, Any]) -> dict[str, Any] | None:
    """Leaves out everybody under 18, and keys the others by name."""
    return {"name": item["name"], "born": 2026 - item["age"]} if item["age"] >= 18 else None


def nameless(item: dict[str, Any]) -> dict[str, Any]:
    return {"age": item["age"]}

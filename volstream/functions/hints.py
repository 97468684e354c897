"""Resolves each annotation of a function separately: one that cannot be resolved does not hide the others."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any


def hints_of(function: Any) -> Mapping[str, Any]:
    """Returns the resolved annotations of a function's parameters and of its result (``return``), in order."""
    hints: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, getattr(function, "__globals__", {}))
        except Exception:  # noqa: BLE001  # resolving text can raise anything
            continue
    return hints

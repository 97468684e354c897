"""Calls a function on several items at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


def map_at_once(act: Callable[[Item], T], items: Iterable[Item], at_once: int) -> list[T]:
    """Calls a function on each item, in up to ``at_once`` threads; returns the results in order. One item needs no thread."""
    todo = list(items)
    if len(todo) < 2:
        return list(map(act, todo))
    with ThreadPoolExecutor(at_once, thread_name_prefix="at-once") as pool:
        return list(pool.map(act, todo))

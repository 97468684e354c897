"""Splits work into portions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields items in lists of ``size`` (the last may be shorter, but not empty); reads items only when needed."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some

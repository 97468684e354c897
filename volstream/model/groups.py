"""Work in portions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def groups(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields items in lists of ``size``, the last one of at least one; takes none before it is needed."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some

"""How much may come of a file: of rows, and of what is printed meanwhile. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volstream.model.units import format_size

#: What a value counts that has no length: a number, a time.
_VALUE_BYTES = 8


@dataclass(frozen=True)
class Bounds:
    """Bounds of one file, and of what is kept of a batch.

    Attributes:
        row_bytes: of the values of a row. The engine holds several copies of it at once, in each slot.
        file_bytes: of all rows of a file, which are in the worker's memory until the last one has come.
        log_file_bytes: of what a call prints; the last lines are kept.
        log_batch_bytes: of what is kept of a batch, by each worker and in all.
        row_rule: what says how large a row may be.
    """

    row_bytes: int = 64 << 20
    file_bytes: int = 512 << 20
    log_file_bytes: int = 16 << 10
    log_batch_bytes: int = 1 << 20
    row_rule: str = "setting result_row_bytes"


class TooLargeError(Exception):
    """The rows of a file are larger than they may be."""


class Measured:
    """The size of a file's rows, one after the other."""

    def __init__(self, bounds: Bounds) -> None:
        self.bytes = 0
        self._bounds = bounds
        self._rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row. Raises TooLargeError."""
        size = sum(map(size_of, row.values()))
        if size > self._bounds.row_bytes:
            raise TooLargeError(
                f"Row {self._rows} has {format_size(size)} of values, and a row may have "
                f"{format_size(self._bounds.row_bytes)} ({self._bounds.row_rule})."
            )
        self._rows += 1
        self.bytes += size
        if self.bytes > self._bounds.file_bytes:
            raise TooLargeError(
                f"The first {self._rows} rows have {format_size(self.bytes)} of values, and the rows of a file may have "
                f"{format_size(self._bounds.file_bytes)} (setting result_file_bytes)."
            )


def size_of(value: object) -> int:
    """How many bytes a value takes in a table, about; of text and bytes exactly."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if value is None or isinstance(value, int | float):  # early: most values are
        return _VALUE_BYTES
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(value).nbytes
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return _VALUE_BYTES * len(value)  # a vector: not to be looked at number by number
        return sum(map(size_of, value))
    if isinstance(value, Mapping):
        return sum(map(size_of, value)) + sum(map(size_of, value.values()))
    size = getattr(value, "nbytes", _VALUE_BYTES)  # arrays have it
    return size if isinstance(size, int) else _VALUE_BYTES

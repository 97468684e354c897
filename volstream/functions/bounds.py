"""Limits on a file's results: its rows, and the output printed during the call. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volstream.base.model.units import format_size

#: Size assumed for a value without a length: a number, a time.
_VALUE_BYTES = 8


@dataclass(frozen=True)
class Bounds:
    """Limits for one file, and for a batch's stored output.

    Attributes:
        row_bytes: size of a row's values. Each slot of the engine holds several copies of a row at once.
        file_bytes: size of all rows of a file, which stay in the worker's memory until the last row is complete.
        log_file_bytes: output kept from a call: its last lines.
        log_batch_bytes: output kept from a batch, by each worker and in total.
        row_rule: the origin of ``row_bytes``, for messages.
    """

    row_bytes: int = 64 << 20
    file_bytes: int = 512 << 20
    log_file_bytes: int = 16 << 10
    log_batch_bytes: int = 1 << 20
    row_rule: str = "setting result_row_bytes"


class TooLargeError(Exception):
    """The rows of a file exceed the limits."""


class RowMeter:
    """Measures a file's rows one by one."""

    def __init__(self, bounds: Bounds) -> None:
        self.bytes = 0
        self._bounds = bounds
        self._rows = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Counts a row. Raises TooLargeError."""
        size = sum(map(size_of, row.values()))
        if size > self._bounds.row_bytes:
            raise TooLargeError(
                f"Row {self._rows} has {format_size(size)} of values, but a row may have at most "
                f"{format_size(self._bounds.row_bytes)} ({self._bounds.row_rule})."
            )
        self._rows += 1
        self.bytes += size
        if self.bytes > self._bounds.file_bytes:
            raise TooLargeError(
                f"The first {self._rows} rows have {format_size(self.bytes)} of values, but the rows of a file may have at most "
                f"{format_size(self._bounds.file_bytes)} (setting result_file_bytes)."
            )


def size_of(value: object) -> int:
    """Returns the approximate size of a value in a table; exact for text and bytes."""
    if isinstance(value, str):
        return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
    if value is None or isinstance(value, int | float):  # first, because most values are one of these
        return _VALUE_BYTES
    if isinstance(value, bytes | bytearray | memoryview):
        return memoryview(value).nbytes
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], int | float):
            return _VALUE_BYTES * len(value)  # a vector: not inspected number by number
        return sum(map(size_of, value))
    if isinstance(value, Mapping):
        return sum(map(size_of, value)) + sum(map(size_of, value.values()))
    size = getattr(value, "nbytes", _VALUE_BYTES)  # arrays have it
    return size if isinstance(size, int) else _VALUE_BYTES

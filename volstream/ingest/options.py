"""The operations of real-time streams, and their options with a builder.

Names, units and defaults match the hosted platforms' SDKs, so that programs written for them carry over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from volstream.base.model.arguments import checked
from volstream.errors import InvalidValueError


class RealtimeOperation(StrEnum):
    """The kind of a stream. APPEND_ONLY is for tables without a primary key, CDC for tables with one."""

    APPEND_ONLY = "append_only"
    CDC = "cdc"


class RowOperator(StrEnum):
    """The operation of a row. INSERT is for APPEND_ONLY, the others are for CDC.

    UPSERT replaces the row with the same key or inserts one. DELETE_IGNORE deletes the row if it exists.
    """

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE_IGNORE = "delete"


class FlushMode(StrEnum):
    """Who sends full buffers: a background thread, the caller of ``apply``, or nobody until ``flush()``."""

    AUTO_FLUSH_BACKGROUND = "background"
    AUTO_FLUSH_SYNC = "sync"
    MANUAL_FLUSH = "manual"


class RetryStatus(StrEnum):
    """Why a flush failed.

    THROTTLED: too many rows await their commit. INTERNAL_ERROR: an unexpected error. FAILED: something that
    volstream needs is unavailable. PRECHECK_FAILED: the table was dropped or no longer fits.
    """

    THROTTLED = "throttled"
    INTERNAL_ERROR = "internal_error"
    FAILED = "failed"
    PRECHECK_FAILED = "precheck_failed"


@dataclass(frozen=True)
class RealtimeOptions:
    """The options of a real-time stream.

    Attributes:
        flush_mode: see :class:`FlushMode`.
        mutation_buffer_lines_num: rows after which a buffer is full.
        mutation_buffer_space: bytes of values after which a buffer is full.
        mutation_buffer_max_num: number of full buffers that may wait to be sent.
        flush_interval: maximum age of a row in a buffer, in milliseconds.
        request_failed_retry_enable: retry failed flushes.
        request_failed_retry_times: maximum number of retries of one flush.
        request_failed_retry_internal_ms: pause before each retry, in milliseconds.
        request_failed_retry_log_debug_enable: log each retry at level debug.
        request_failed_retry_status: failures that are retried.
        truncate: cut text that is too long for its CHAR or VARCHAR column. Otherwise it is an error.
    """

    flush_mode: FlushMode = FlushMode.AUTO_FLUSH_BACKGROUND
    mutation_buffer_lines_num: int = 1000
    mutation_buffer_space: int = 10 << 20
    mutation_buffer_max_num: int = 50
    flush_interval: int = 10_000
    request_failed_retry_enable: bool = True
    request_failed_retry_times: int = 5
    request_failed_retry_internal_ms: int = 5000
    request_failed_retry_log_debug_enable: bool = True
    request_failed_retry_status: frozenset[RetryStatus] = frozenset(RetryStatus)
    truncate: bool = True

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUMS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise InvalidValueError(f"{name} cannot be {value!r}.", f"Give a whole number of at least {minimum}.")


#: Numeric options and their minimum.
_MINIMUMS = {
    "mutation_buffer_lines_num": 1,
    "mutation_buffer_space": 1,
    "mutation_buffer_max_num": 1,
    "flush_interval": 1,
    "request_failed_retry_times": 0,
    "request_failed_retry_internal_ms": 0,
}


@checked
class RealtimeOptionsBuilder:
    """Collects options. See :class:`RealtimeOptions` for their meaning. A stream accepts the builder as well
    as its result.

    Raises:
        InvalidValueError: each method raises it for an invalid value.
    """

    def __init__(self) -> None:
        self._options = RealtimeOptions()

    def build(self) -> RealtimeOptions:
        """Returns the options collected so far."""
        return self._options

    def with_flush_mode(self, mode: FlushMode) -> Self:
        """Sets who sends full buffers."""
        return self._with(flush_mode=mode)

    def with_mutation_buffer_lines_num(self, rows: int) -> Self:
        """Sets the rows after which a buffer is full."""
        return self._with(mutation_buffer_lines_num=rows)

    def with_mutation_buffer_space(self, size: int) -> Self:
        """Sets the bytes after which a buffer is full."""
        return self._with(mutation_buffer_space=size)

    def with_mutation_buffer_max_num(self, count: int) -> Self:
        """Sets how many full buffers may wait to be sent."""
        return self._with(mutation_buffer_max_num=count)

    def with_flush_interval(self, milliseconds: int) -> Self:
        """Sets the maximum age of a row in a buffer, in milliseconds."""
        return self._with(flush_interval=milliseconds)

    def with_request_failed_retry_enable(self, enable: bool) -> Self:
        """Sets whether failed flushes are retried."""
        return self._with(request_failed_retry_enable=bool(enable))

    def with_request_failed_retry_times(self, times: int) -> Self:
        """Sets the maximum number of retries of one flush."""
        return self._with(request_failed_retry_times=times)

    def with_request_failed_retry_internal_ms(self, milliseconds: int) -> Self:
        """Sets the pause before each retry, in milliseconds."""
        return self._with(request_failed_retry_internal_ms=milliseconds)

    def with_request_failed_retry_log_debug_enable(self, enable: bool) -> Self:
        """Sets whether each retry is logged."""
        return self._with(request_failed_retry_log_debug_enable=bool(enable))

    def with_request_failed_retry_status(self, statuses: Iterable[RetryStatus]) -> Self:
        """Sets which failures are retried."""
        return self._with(request_failed_retry_status=frozenset(statuses))

    def with_truncation(self, enable: bool) -> Self:
        """Sets whether text too long for its CHAR or VARCHAR column is cut. Otherwise it is an error."""
        return self._with(truncate=bool(enable))

    def _with(self, **values: Any) -> Self:
        self._options = replace(self._options, **values)
        return self

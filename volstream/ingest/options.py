"""What a real-time stream is asked to do: operations, and options with their builder.

Names, units and defaults are those of the hosted platforms' SDKs, so that programs written for one carry over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

from volstream.base.model.arguments import checked
from volstream.errors import InvalidValueError


class RealtimeOperation(StrEnum):
    """The kind of a stream: APPEND_ONLY adds rows to a table without a primary key, CDC changes rows of one with a key."""

    APPEND_ONLY = "append_only"
    CDC = "cdc"


class RowOperator(StrEnum):
    """What a row does. INSERT is for APPEND_ONLY, the others are for CDC.

    UPSERT replaces the row with its key or inserts it; DELETE_IGNORE deletes it, if it is there.
    """

    INSERT = "insert"
    UPSERT = "upsert"
    DELETE_IGNORE = "delete"


class FlushMode(StrEnum):
    """Who sends full buffers: a background thread, the caller of ``apply``, or nobody until ``flush`` is called."""

    AUTO_FLUSH_BACKGROUND = "background"
    AUTO_FLUSH_SYNC = "sync"
    MANUAL_FLUSH = "manual"


class RetryStatus(StrEnum):
    """Why a flush failed: too much has arrived and is not committed; an unexpected error; something that volstream needs is
    not available; the table was dropped or no longer fits."""

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
        request_failed_retry_enable: retry flushes that failed.
        request_failed_retry_times: maximum number of retries of one flush.
        request_failed_retry_internal_ms: pause before each retry, in milliseconds.
        request_failed_retry_log_debug_enable: log each retry at level debug.
        request_failed_retry_status: failures that are retried.
        truncate: cut text that is longer than its CHAR or VARCHAR column; otherwise it is an error.
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
        for name, minimum in _LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
                raise InvalidValueError(f"{name} cannot be {value!r}.", f"Give a whole number of at least {minimum}.")


#: Options that are numbers, and the smallest value of each.
_LEAST = {
    "mutation_buffer_lines_num": 1,
    "mutation_buffer_space": 1,
    "mutation_buffer_max_num": 1,
    "flush_interval": 1,
    "request_failed_retry_times": 0,
    "request_failed_retry_internal_ms": 0,
}


@checked
class RealtimeOptionsBuilder:
    """Collects options; see :class:`RealtimeOptions` for their meaning. A stream takes the builder as well as its result.

    Raises:
        InvalidValueError: a value that cannot be accepted, by each method.
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
        """Sets whether flushes that failed are retried."""
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
        """Sets whether text that is longer than its CHAR or VARCHAR column is cut; otherwise it is an error."""
        return self._with(truncate=bool(enable))

    def _with(self, **values: Any) -> Self:
        self._options = replace(self._options, **values)
        return self

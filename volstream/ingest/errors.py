"""Errors that real-time streams raise in addition to those in ``volstream.errors``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from volstream.errors import DependencyError, InvalidStateError

if TYPE_CHECKING:
    from volstream.ingest.stream import Row


class BufferFullError(InvalidStateError):
    """All buffers of a stream with MANUAL_FLUSH are full; the row was not taken. Call ``flush()``."""


class RowsNotSentError(DependencyError):
    """Rows could not be sent, with all the retries that the options allow.

    The stream takes no more rows. None of ``rows`` is known to have arrived; those of the flush that failed may have, if only
    the answer was lost. Upserts and deletes can be applied again, to another stream, without harm.

    Attributes:
        rows: the rows that were not sent, in order.
    """

    def __init__(self, message: str, remedy: str = "", rows: Sequence[Row] = ()) -> None:
        super().__init__(message, remedy)
        self.rows = list(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.remedy, self.rows))

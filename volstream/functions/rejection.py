"""Errors by which functions report more than a failure: volstream's rejection of a file, and any function's
wish to be called later.

Pickled functions name this module.
"""

from __future__ import annotations

from volstream.base.model.work import FailureKind
from volstream.errors import InvalidValueError


class FileRejectedError(Exception):
    """A file has no rows because of its content. Retries cannot change that.

    Args:
        message: what is wrong, and what the user can do.
        new_columns: DDL of columns that the file has and the result lacks, if that is the reason.
    """

    def __init__(self, message: str, new_columns: str | None = None) -> None:
        super().__init__(message)
        self.new_columns = new_columns

    @property
    def kind(self) -> FailureKind:
        """The kind of the file's failure."""
        return FailureKind.MALFORMED if self.new_columns is None else FailureKind.NEW_COLUMNS


class RetryLater(Exception):  # noqa: N818  # not an error
    """A function raises this to be called again later for the file, for example after a 429 or a 503 of a
    model's API.

    The file waits without a failure, and keeps its ``retries``. After waiting for ``retry_later_max_seconds``
    it fails.

    Args:
        reason: shown while the file waits.
        after: minimum seconds until the next call.

    Raises:
        InvalidValueError: ``after`` is not a positive number.
    """

    #: A subclass that does not call ``__init__`` has this value.
    after: float = 60.0

    def __init__(self, reason: str = "", after: float = 60.0) -> None:
        super().__init__(reason)
        if not isinstance(after, int | float) or not 0 < after < float("inf"):
            raise InvalidValueError(f"A function cannot be called again after {after!r} seconds.")
        self.after = float(after)

"""What functions raise to say more than that they failed: volstream's own about a file, any to be called later."""

from __future__ import annotations

from volstream.errors import InvalidValueError
from volstream.model.work import FailureKind


class FileRejectedError(Exception):
    """A file has no rows because of its content; no retry changes that.

    Args:
        message: what is wrong, and what the user can do.
        new_columns: DDL of the columns that the file has and the result lacks, if that is why.
    """

    def __init__(self, message: str, new_columns: str | None = None) -> None:
        super().__init__(message)
        self.new_columns = new_columns

    @property
    def kind(self) -> FailureKind:
        """The kind of the file's failure."""
        return FailureKind.MALFORMED if self.new_columns is None else FailureKind.NEW_COLUMNS


class RetryLater(Exception):  # noqa: N818  # it is no error
    """Raised by a function to be called for the file again later, for example after a 429 or a 503 of a model's API.

    The file waits: it has not failed, and its ``retries`` stay. One that has waited for ``retry_later_max_seconds`` fails.

    Args:
        reason: why; shown while the file waits.
        after: seconds until the next call, at least.

    Raises:
        InvalidValueError: ``after`` is not a positive number.
    """

    #: Of a subclass that does not call ``__init__``, too.
    after: float = 60.0

    def __init__(self, reason: str = "", after: float = 60.0) -> None:
        super().__init__(reason)
        if not 0 < after < float("inf"):
            raise InvalidValueError(f"A function cannot be called again after {after} seconds.")
        self.after = float(after)

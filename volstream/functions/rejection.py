"""The verdict of volstream's own functions on a file, which they raise."""

from __future__ import annotations

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

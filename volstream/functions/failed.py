"""Determines what an error of a call means for its file. Runs on executors."""

from __future__ import annotations

import os
import traceback

from volstream.base.model.units import format_duration
from volstream.base.model.work import FailureKind
from volstream.errors import StorageDeniedError, StorageError, StorageThrottledError
from volstream.functions.bounds import TooLargeError
from volstream.functions.limits import TimeLimitError
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.rejection import FileRejectedError, RetryLater
from volstream.functions.rows import NotRowsError

#: A file that a store refused to serve for now is tried again after this long, as if its function had asked for it.
_THROTTLED_SECONDS = 30.0

#: Modules between a call and the user's code in a traceback.
_BETWEEN = {
    "volstream.functions.call",
    "volstream.functions.concurrency",
    "volstream.functions.output",
    "volstream.functions.rows",
    "concurrent.futures._base",
}


def failed(task: FileTask, error: BaseException, seconds: float | None) -> FileOutcome:
    """Returns the outcome of a file whose function raised an error, or returned one as the file's entry.

    Args:
        seconds: the time limit of the call.
    """
    outcome = FileOutcome(task)
    match error:
        case TimeLimitError():
            outcome.kind = FailureKind.TIMED_OUT
            outcome.message = f"The function ran longer than {format_duration(seconds or 0)}."
        case NotRowsError():
            outcome.kind, outcome.message = FailureKind.WRONG_RESULT, str(error)
        case TooLargeError():
            outcome.kind, outcome.message = FailureKind.TOO_LARGE, str(error)
        case RetryLater() if (after := _asked(error)) is not None:
            outcome.kind, outcome.message, outcome.retry_after = FailureKind.RETRY_LATER, _said(error), after
        case FileRejectedError():
            outcome.kind, outcome.message, outcome.new_columns = error.kind, str(error), error.new_columns
        case StorageThrottledError():
            outcome.kind, outcome.message, outcome.retry_after = FailureKind.RETRY_LATER, str(error), _THROTTLED_SECONDS
        case StorageDeniedError():
            outcome.kind, outcome.message = FailureKind.DENIED, str(error)
        case StorageError():
            outcome.kind, outcome.message = FailureKind.UNREADABLE, str(error)
        case _:  # the function may raise anything: SystemExit, CancelledError
            outcome.kind = _kind(error)
            outcome.message, outcome.traceback = message_of(error), traceback_of(error)
    return outcome


def message_of(error: BaseException) -> str:
    """Returns an error's class and message."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # its __str__ is user code, too
        return f"{type(error).__name__} (its message cannot be shown)"


def traceback_of(error: BaseException) -> str:
    """Returns the traceback starting at the first frame of the user's code."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_globals.get("__name__") in _BETWEEN and frames.tb_next is not None:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _kind(error: BaseException) -> FailureKind:
    if isinstance(error, MemoryError):
        return FailureKind.OUT_OF_MEMORY
    return FailureKind.CODE if _is_of_code(error) else FailureKind.RAISED


def _is_of_code(error: BaseException) -> bool:
    """True if the error means that a module cannot be found or compiled, which affects all files permanently."""
    if isinstance(error, SyntaxError):  # in text read from the file, the file is to blame
        return error.filename is not None and error.filename.endswith(".py") and os.path.isfile(error.filename)
    return isinstance(error, ImportError)


def _asked(error: RetryLater) -> float | None:
    """Returns after how many seconds a function asks to be called again; None: it set ``after`` to something invalid."""
    try:
        after = float(error.after)
    except Exception:  # noqa: BLE001  # a subclass is user code
        return None
    return after if 0 < after < float("inf") else None


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  # see message_of
        return message_of(error)

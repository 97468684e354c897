"""Explains failures to users: what happens next automatically, and what they can do. Pure."""

from __future__ import annotations

import shlex
from datetime import datetime

from volstream.base.definitions import FileJob, TriggerKind
from volstream.base.model.units import about
from volstream.base.model.work import Failure, FailureKind, FailureState
from volstream.functions.printing import PRINTED_LAST

#: Usual remedy, besides another version of the file.
_HELPS = {
    FailureKind.RAISED: "Fix the function or the file",
    FailureKind.CODE: "Fix what the function imports, or install it",
    FailureKind.WRONG_RESULT: "Fix the function, or alter-job --returns",
    FailureKind.UNEXPECTED: "Fix the function or the file, or expect something else (alter-job --expect)",
    FailureKind.TOO_LARGE: "Return less (a path instead of contents), or raise the setting",
    FailureKind.TIMED_OUT: "Raise the limit (alter-job --timeout)",
    FailureKind.WORKER_DIED: "Fix the function or the file; the message says what killed the worker",
    FailureKind.UNREADABLE: "Check that the store answers",
    FailureKind.MALFORMED: "Fix the file, or how it is read (alter-job --arg)",
    FailureKind.NEW_COLUMNS: "Accept new columns (alter-job --arg new_columns=add)",
    FailureKind.DENIED: "Grant read access to the user in the message",
}


def automatic_action(failure: Failure, job: FileJob, now: datetime) -> str:
    """Describes what happens to a failed file automatically."""
    match failure.state:
        case FailureState.RETRYING:
            done = f"({failure.attempts} of {job.retries + 1} attempts done)"
            if job.trigger.kind is TriggerKind.MANUAL:
                return f"retried by the next run {done}"
            return f"retry {_when(failure, now)} {done}"
        case FailureState.WAITING if failure.kind is FailureKind.RETRY_LATER:
            return f"called again {_when(failure, now)}, as it requested"
        case FailureState.WAITING if failure.kind is FailureKind.HELD:
            return "waits for more files" if failure.next_try is None else f"checked again {_when(failure, now)}"
        case FailureState.WAITING:
            return "waits until the directory shows the change"
        case FailureState.SKIPPED:
            return "skipped; processed when it changes"
        case _:
            return "no automatic retry; processed when it changes"


def _when(failure: Failure, now: datetime) -> str:
    seconds = 0.0 if failure.next_try is None else (failure.next_try - now).total_seconds()
    return f"in {about(seconds)}" if seconds > 0 else "at the next run"


def where_printed(failure: Failure, job: FileJob) -> str | None:
    """Returns the command that shows the function's output for the file; None if there is none."""
    trace = failure.traceback or ""
    last_words = failure.kind in (FailureKind.WORKER_DIED, FailureKind.TIMED_OUT) and trace
    if PRINTED_LAST not in trace and not last_words:
        return None
    return f"volstream logs {job.name} --file {shlex.quote(failure.path)}"


def remedy(failure: Failure, job: FileJob, volume: str | None) -> str:
    """Describes what the user can do about it.

    Args:
        volume: name of the file's volume; None: it was dropped.
    """
    again = f"volstream retry {job.name} {shlex.quote(failure.path)}"
    match failure.state:
        case FailureState.WAITING if failure.kind is FailureKind.RETRY_LATER:
            return f"Sooner: {again}"
        case FailureState.WAITING if failure.kind is FailureKind.HELD:
            if failure.next_try is not None:
                return "Nothing to do: it is processed once it has not changed for a while."
            return f"Add its missing files, or: volstream alter-job {job.name} --group-complete ..."
        case FailureState.WAITING:
            return f"volstream refresh {volume}" if volume else "The volume was dropped: drop the job."
        case FailureState.SKIPPED:
            return f"Changed your mind? {again}"
        case _:
            shown = where_printed(failure, job)
            more = f" Full output: {shown}" if shown else ""
            skip = again.replace("volstream retry", "volstream skip", 1)
            return f"{_HELPS.get(failure.kind, 'Look at the file')}, then {again}; or: {skip}{more}"

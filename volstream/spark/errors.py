"""Maps PySpark and gRPC errors to volstream's. Imports pyspark late: if it raised an error, it is already
imported."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from volstream.base.processes import disk_error
from volstream.errors import DiskError, EngineEndedError, EngineError, EngineLostError, SqlError, VolstreamError
from volstream.spark.jvm.log_file import ENDED, remedy_of
from volstream.spark.loading import load

#: Delta's errors for conflicting writers, after which the same statement can be retried. Conditions have
#: suffixes such as ``.WITHOUT_HINT``. ``DELTA_CONCURRENT_TRANSACTION`` is not among them: it means that the
#: statement was executed before.
_CONFLICTS = (
    "DELTA_CONCURRENT_APPEND",
    "DELTA_CONCURRENT_DELETE_DELETE",
    "DELTA_CONCURRENT_DELETE_READ",
    "DELTA_CONCURRENT_WRITE",
    "DELTA_METADATA_CHANGED",
    "DELTA_PROTOCOL_CHANGED",
)

#: The reason for the loss of an engine that was restarted, or that ended a session.
FORGOTTEN = "it no longer knows this session"

#: Prefixes of the conditions with which a server refuses calls of a session that it ended or lost in a
#: restart.
SESSION_ENDED = "INVALID_HANDLE.SESSION_"
_SESSION_LOST = (SESSION_ENDED, "NO_ACTIVE_SESSION")

#: gRPC raises a bare ValueError for a call on a closed channel.
_CLOSED_CHANNEL = re.compile(r"Cannot invoke RPC.*closed", re.IGNORECASE)
#: Spark's messages for statements that run while its JVM ends.
_STOPPED = re.compile(r"stopped SparkContext|SparkContext was shut down|SparkContext has been shutdown", re.IGNORECASE)
#: Beginning of Java's part of a message.
_STACK = re.compile(r"\n\nJVM stacktrace:|\n+Driver stacktrace:|\n\tat ")
#: Prefix of an error's message without a condition: its class and, from Delta's Kernel, the table's location.
_CLASS = re.compile(r"^(?:\((?:[a-z]\w*\.)+\w+\) (?:file:\S+: )?|(?:[a-z]\w*\.)+(?=[A-Z]\w*: ))")
#: A message that is meaningless without the name of its class, such as a path.
_ONE_WORD = re.compile(r"^\((?:[a-z]\w*\.)+(\w+)\) (\S+)$")
#: A time in a message of Delta's Kernel.
_MILLISECONDS = re.compile(r"\b\d+ ms \((\d{4,}-[^)]*)\)")
#: Patterns of messages, and volstream's messages and remedies in their place.
_REPLACEMENTS = (
    (
        r"\[DELTA_VERSION_NOT_FOUND\].* version (\d+)\. Available versions: \[(\d+), (\d+)\]",
        (r"The table has no version \1.", r"Its history goes from \2 to \3."),
    ),
    (
        r"\[DELTA_TIMESTAMP_EARLIER_[A-Z_]+\].*",  # in the zone of the engine's process, whatever it is
        ("The history of the table begins after that time.", "Give a later time, or a version: see DESCRIBE HISTORY."),
    ),
    (
        r"\[DELTA_TIMESTAMP_GREATER_[A-Z_]+\].*",
        ("The newest version of the table is older than that time.", "Give an earlier time, or leave it out."),
    ),
    (
        r"\[DELTA_CONCURRENT_[A-Z_]+.*",
        (
            "Other writers kept changing the table while the statement ran.",
            "Run it again, if need be when fewer writers are active.",
        ),
    ),
    (
        r".*Could not initialize class.*",
        (
            "The engine could not load one of its classes, which happens after a full disk.",
            "Restart the engine (volstream engine stop, or restart the daemon if the engine is the daemon's), then run it again.",
        ),
    ),
    (
        r"\[FAILED_READ_FILE\b.*?(?:file:/*)?((?:/|\w+://)\S*/directories/[0-9a-f-]{36})/",
        (
            r"A file of a directory is missing or damaged, in \1.",
            "Delete this folder, then: volstream refresh VOLUME, and volstream heal JOB for its jobs.",
        ),
    ),
    (
        r"\[(?:FAILED_READ_FILE|DELTA_[A-Z_]*DELETION_VECTOR)\b.*?(?:file:/*)?((?:/|\w+://)\S*/)([^/\s]+?)\.?(?:\s|$)",
        (
            r"The file \1\2 cannot be read; it may be missing or damaged.",
            "If a job writes the table: volstream verify JOB --fix. If it is a dynamic table: CREATE OR REPLACE DYNAMIC TABLE.",
        ),
    ),
    (
        r"\[DELTA_NOT_NULL_CONSTRAINT_VIOLATED\].*column: (\S+?)\.?$",
        (
            r"A row has no value for the column \1, which is NOT NULL.",
            r'In a job, --expect "\1 IS NOT NULL" makes only the files of such rows fail.',
        ),
    ),
    (
        r"^\[TABLE_OR_VIEW_NOT_FOUND\] The table or view (\S+) cannot be found\.",
        (r"There is no table, stream or view \1.", "See: volstream list tables. A name without a schema is one of public."),
    ),
    # From volstream's own code on a worker. The message is already meant for users.
    (r"^.*\[PYTHON_EXCEPTION\].*\nvolstream\.errors\.InvalidValueError: (.*?)\s*(?:SQLSTATE: \d+)?$", (r"\1", "")),
    (r"^\[USER_RAISED_EXCEPTION\] (.*?)(?: SQLSTATE: P0001.*)?$", (r"\1", "")),
    (
        r"\[PARSE_SYNTAX_ERROR\].* 'VOLSTREAM'",  # the guard of spark/guard.py
        (
            "The Spark server does not have volstream's extension, which keeps queries from reading files.",
            "Add volstream.NoReflection to its spark.sql.extensions, or use volstream sql.",
        ),
    ),
)
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (\[[A-Z][^\n]*)", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\]")


def engine_lost(reason: str) -> EngineLostError:
    """Returns the error for an engine lost for this reason."""
    kind = EngineEndedError if reason == ENDED else EngineLostError
    return kind(f"The Spark engine was lost: {reason}.", remedy_of(reason))


def means_engine_lost(error: BaseException) -> bool:
    """True if an error means that the engine does not respond."""
    return isinstance(error if isinstance(error, VolstreamError) else _translated(error), EngineLostError)


@contextmanager
def map_spark_errors() -> Iterator[None]:
    """Maps errors that mean that the engine or its disk failed. Other errors pass unchanged.

    Raises:
        EngineLostError: the connection broke or was closed, or the server lost the session.
        EngineError: the server rejected the token.
        DiskError: Spark could not write to its disk.
    """
    try:
        yield
    except Exception as error:
        ours = _translated(error) if _may_be_spark_error(error) else None
        if ours is None:
            raise
        raise ours from error


def _may_be_spark_error(error: Exception) -> bool:
    """True if PySpark or gRPC may have raised the error, without importing them."""
    if isinstance(error, VolstreamError) or "pyspark" not in sys.modules:
        return False
    load()
    import grpc
    from pyspark.errors import PySparkException

    return isinstance(error, PySparkException | grpc.RpcError | ValueError)


def condition_of(error: BaseException | None) -> str | None:
    """Returns Spark's or Delta's error condition, such as ``DELTA_CONCURRENT_APPEND.WITHOUT_HINT``, or None.

    For a volstream error, returns the condition of its cause.
    """
    from pyspark.errors import PySparkException

    while isinstance(error, VolstreamError):
        error = error.__cause__
    if not isinstance(error, PySparkException):
        return None
    condition = error.getCondition()
    if condition:
        return condition
    match = _CONDITION.search(str(error))
    return match[1] if match else None


def is_conflict(condition: str | None) -> bool:
    """True if the condition means that another writer was faster and the statement can be retried."""
    return condition is not None and condition.startswith(_CONFLICTS)


def sql_error(error: BaseException) -> SqlError:
    """Returns Spark's error for a user's statement, without plan and JVM stack."""
    text = _STACK.split(str(error), maxsplit=1)[0]
    if condition_of(error) == "TASK_WRITE_FAILED":  # its cause is only in the stack
        text = [text, *_CAUSE.findall(_text(error))][-1]
    text = text.split(";\n'", 1)[0]  # the unresolved plan, which begins with a quote
    text = _ONE_WORD.sub(r"\1: \2", text)
    text = _CLASS.sub("", text)
    for pattern, (message, remedy) in _REPLACEMENTS:
        if match := re.search(pattern, text, re.DOTALL):
            return SqlError(match.expand(message), match.expand(remedy))
    return SqlError(_MILLISECONDS.sub(r"\1", text).strip())


@contextmanager
def as_sql_errors() -> Iterator[None]:
    """Maps errors like :func:`map_spark_errors`, and Spark's errors for a statement to SqlError."""
    try:
        with map_spark_errors():
            yield
    except VolstreamError:
        raise
    except Exception as error:
        if not _may_be_spark_error(error):
            raise
        from pyspark.errors import PySparkException

        if not isinstance(error, PySparkException):
            raise
        raise sql_error(error) from error


def _translated(error: BaseException) -> VolstreamError | None:
    import grpc

    if isinstance(error, ValueError) and _CLOSED_CHANNEL.search(str(error)):
        return engine_lost("the connection to it was closed")
    status = _grpc_status(error)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
        return engine_lost("it died or stopped answering")
    if status == grpc.StatusCode.UNAUTHENTICATED:
        return EngineError(
            "The Spark engine rejected the token.", "Check the one in spark_remote, or run: volstream engine status"
        )
    if (condition_of(error) or "").startswith(_SESSION_LOST) or "server side session identifier" in str(error):
        return engine_lost(FORGOTTEN)
    if _STOPPED.search(str(error)):
        return engine_lost(ENDED)
    disk = disk_error(_text(error), "the engine")
    return disk and DiskError(f"{disk.message} Spark said: {_first_line(error)}", disk.remedy)


def _grpc_status(error: BaseException) -> object:
    """Returns the transport's status, or None if Spark itself replied with an error."""
    import grpc
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    if isinstance(error, grpc.RpcError):
        return error.code()
    # Exactly this class: its subclasses carry a Spark error and a meaningless status.
    if type(error) is SparkConnectGrpcException:
        return error.getGrpcStatusCode()
    return None


def _text(error: BaseException) -> str:
    """Returns the message, with the causes reported by the server."""
    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    causes = error.getStackTrace() if isinstance(error, SparkConnectGrpcException) else None
    return f"{error}\n{causes or ''}"


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")

"""Every error that volstream raises on purpose.

::

    VolstreamError                    exit 1: ours
    ├── UserError                     exit 3: the user's input or state
    │   ├── InvalidValueError             a value that cannot be accepted
    │   ├── NotFoundError                 no such object
    │   ├── AlreadyExistsError            the name is taken
    │   ├── ObjectInUseError              something else depends on the object
    │   ├── InvalidStateError             the object is not in a state that allows this
    │   │   └── JobChangedError               somebody else changed the job meanwhile
    │   ├── FunctionLoadError             a per-file function cannot be imported
    │   ├── SqlError                      a statement is wrong
    │   ├── StreamError
    │   │   ├── StreamBusyError           another consumption of the stream is open
    │   │   ├── StreamStaleError          changes after the offset can no longer be read
    │   │   └── StreamSchemaChangedError  the source's columns changed inside the range
    │   └── TargetLostError               a consumption's target table disappeared or was replaced
    ├── DependencyError               exit 4: a dependency of volstream
    │   ├── StorageError                  (transient)
    │   │   └── StorageDeniedError        not transient: permission
    │   ├── QueueError                    (transient)
    │   ├── BrokerError                   a Kafka broker (transient)
    │   ├── CatalogError                  (transient)
    │   │   └── CatalogDiskError              its disk is full or read-only; also a DiskError
    │   ├── TailFullError                 rows arrive for a table faster than they are committed (transient)
    │   ├── DiskError                     a disk is full, or read-only (transient)
    │   ├── JavaError                     no usable Java
    │   ├── PortInUseError                a port to listen on is taken
    │   └── EngineError                   the home's Spark engine
    │       ├── EngineLostError           it died or stopped answering
    │       └── EngineBusyError           another process owns the home and does not yield
    ├── FencedError                   another process took over this work; nothing of ours was kept (transient)
    ├── FilesFailedError              exit 5: finished, but some files failed
    └── InterruptedByUserError        exit 130

Two axes: whose fault it is, by class and exit code, and whether a retry can help, by :attr:`VolstreamError.transient`.
All of them can be pickled, because they cross process boundaries.
"""

from __future__ import annotations

from typing import Any

#: Maximum length of a one-line message, in characters.
_BRIEF = 160

#: Packages of the plug-ins loaded here, by their top-level modules.
PLUGINS: dict[str, str] = {}


class VolstreamError(Exception):
    """The root of all errors that volstream raises on purpose.

    Args:
        message: the problem and its cause, with the offending value.
        remedy: what the user can do, in one sentence; empty if unknown.
    """

    exit_code = 1
    transient = False

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    @property
    def brief(self) -> str:
        """The message shortened to one line, for tables and notes."""
        line = " ".join(self.message.partition("\n")[0].split())
        return line if len(line) <= _BRIEF else f"{line[: _BRIEF - 3]}..."

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.remedy))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of the frames of volstream and Spark: the caller's line, and the message."""
        import traceback  # late: only notebooks need it here

        frames = traceback.extract_tb(self.__traceback__)
        line = next((frame.line for frame in reversed(frames) if "ipykernel" in frame.filename), None)
        return [*([] if not line else [f"---> {line}", ""]), f"{type(self).__name__}: {self}"]


def plugin_of(error: BaseException) -> str | None:
    """Returns the package of a plug-in that raised an error, or let it pass; None: none did."""
    trace = error.__traceback__
    while trace is not None:
        package = PLUGINS.get(str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0])
        if package is not None:
            return package
        trace = trace.tb_next
    return None


def reason_of(error: BaseException) -> str:
    """Returns the message of any error, prefixed with its type, and with a plug-in's package, unless it is one of ours."""
    if isinstance(error, VolstreamError):
        return str(error)
    package, said = plugin_of(error), f"{type(error).__name__}: {error}"
    return said if package is None else f"The package {package} failed: {said}"


def in_brief(error: BaseException) -> str:
    """Returns the message of any error, shortened to one line."""
    return (error if isinstance(error, VolstreamError) else VolstreamError(reason_of(error))).brief


def with_remedy(error: BaseException) -> str:
    """Returns the message of any error, shortened to one line, and its remedy, if it has one, on a second line."""
    return f"{in_brief(error)}\n{getattr(error, 'remedy', '')}".rstrip()


def unexpected(error: BaseException | None) -> BaseException | None:
    """Returns an error that is not one of ours, to log its traceback; None for ours, whose message says enough."""
    return None if isinstance(error, VolstreamError) else error


class UserError(VolstreamError):
    """The user's input or the state of the user's objects."""

    exit_code = 3


class InvalidValueError(UserError):
    """A value that cannot be accepted."""


class NotFoundError(UserError):
    """No object has that name."""


class AlreadyExistsError(UserError):
    """The name is taken."""


class ObjectInUseError(UserError):
    """Something else depends on the object."""


class InvalidStateError(UserError):
    """The object is not in a state that allows the requested operation."""


class JobChangedError(InvalidStateError):
    """A job was altered, retried or dropped after it was read, so what was found with its earlier definition does not count."""


class FunctionLoadError(UserError):
    """A per-file function cannot be found or imported."""


class SqlError(UserError):
    """A SQL statement is rejected by volstream or by Spark."""


class StreamError(UserError):
    """A stream cannot be read or consumed as requested."""


class StreamBusyError(StreamError):
    """Another consumption of the stream is open; the message names it."""


class StreamStaleError(StreamError):
    """Changes after the stream's offset can no longer be read."""


class StreamSchemaChangedError(StreamError):
    """Columns of the source were dropped, or got another type, inside the range."""


class TargetLostError(UserError):
    """The target table of a consumption disappeared or was replaced by another table."""


class DependencyError(VolstreamError):
    """Something that volstream needs is not available."""

    exit_code = 4


class StorageError(DependencyError):
    """The object store or directory of a volume failed; may be temporary."""

    transient = True


class StorageThrottledError(StorageError):
    """The store answered that it gets too many requests, also after the client's own retries."""


class StorageDeniedError(StorageError):
    """Permission to read an object or a listing was denied."""

    transient = False


class QueueError(DependencyError):
    """A queue failed; may be temporary."""

    transient = True


class WatchLimitError(QueueError):
    """The operating system has no more watches of directories."""


class BrokerError(DependencyError):
    """A Kafka broker failed, or cannot be reached; may be temporary."""

    transient = True


class CatalogError(DependencyError):
    """The catalog database failed; may be temporary."""

    transient = True


class TailFullError(DependencyError):
    """Rows arrive for a table faster than they are committed, or commits fail."""

    transient = True


class DiskError(DependencyError):
    """The disk of the warehouse, the catalog or a scratch directory is full, or read-only."""

    transient = True


class CatalogDiskError(CatalogError, DiskError):
    """The catalog's disk takes nothing more. Callers that tolerate an unavailable catalog tolerate this as well."""


class JavaError(DependencyError):
    """No usable Java, or the engine's jars are missing."""


class PortInUseError(DependencyError):
    """A requested port is already in use."""


class EngineError(DependencyError):
    """The Spark engine of the home could not be started or used."""


class EngineLostError(EngineError):
    """The engine died or stopped answering during use."""

    transient = True


class NoExecutorError(EngineError):
    """Spark answers, but nothing runs its tasks."""

    transient = True


class EngineEndedError(EngineLostError):
    """The engine was asked to end, by a daemon that starts or ``volstream engine stop``, and did not wait any longer."""


class EngineBusyError(EngineError):
    """Another process owns the home's engine and does not yield."""


class FencedError(VolstreamError):
    """Another process took over this work; nothing from this attempt was kept."""

    transient = True
    exit_code = 4


class FilesFailedError(VolstreamError):
    """The command finished, but some files failed."""

    exit_code = 5


class InterruptedByUserError(VolstreamError):
    """SIGINT or SIGTERM ended the command before it finished."""

    exit_code = 130

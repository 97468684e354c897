"""Every error that volstream raises on purpose.

::

    VolstreamError                    exit 1: ours
    ├── UserError                     exit 3: the user's input or state
    │   ├── InvalidValueError             a value that cannot be accepted
    │   ├── NotFoundError                 no such object
    │   ├── AlreadyExistsError            the name is taken
    │   ├── ObjectInUseError              something else depends on the object
    │   ├── InvalidStateError             the object is not in a state that allows this
    │   ├── FunctionLoadError             a per-file function cannot be imported
    │   ├── SqlError                      a statement is wrong
    │   ├── StreamError
    │   │   ├── StreamBusyError           another consumption of the stream is open
    │   │   ├── StreamStaleError          changes after the offset can no longer be read
    │   │   └── StreamSchemaChangedError  the source's columns changed inside the range
    │   └── TargetLostError               a consumption's target table vanished or was replaced
    ├── DependencyError               exit 4: something that volstream needs
    │   ├── StorageError                  (transient)
    │   │   └── StorageDeniedError        not transient: permission
    │   ├── QueueError                    (transient)
    │   ├── CatalogError                  (transient)
    │   │   └── CatalogFullError              its disk is full, a DiskFullError, too
    │   ├── DiskFullError                 the warehouse cannot take more (transient)
    │   ├── JavaError                     no usable Java
    │   ├── PortInUseError                a port to listen on is taken
    │   └── EngineError                   the home's Spark engine
    │       ├── EngineLostError           it died or stopped answering
    │       └── EngineBusyError           another process owns the home and does not yield
    ├── FencedError                   somebody else took over this work; nothing of ours was kept (transient)
    ├── FilesFailedError              exit 5: finished, but some files failed
    └── InterruptedByUserError        exit 130

Two axes: whose fault it is, by class and exit code, and whether trying again can help, by :attr:`VolstreamError.transient`.
All of them can be pickled: they cross process boundaries.
"""

from __future__ import annotations

from typing import Any

#: Characters of a message in one line.
_BRIEF = 160


class VolstreamError(Exception):
    """The root of all errors that volstream raises on purpose.

    Args:
        message: the problem and its cause, with the offending value.
        remedy: what the user can do, one sentence; empty where nothing is known.
    """

    exit_code = 1
    transient = False

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    @property
    def brief(self) -> str:
        """The message in one short line, for tables and notes."""
        line = " ".join(self.message.partition("\n")[0].split())
        return line if len(line) <= _BRIEF else f"{line[: _BRIEF - 3]}..."

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message, self.remedy))


def reason_of(error: BaseException) -> str:
    """What an error of any kind says, for people: with its type where it is not one of ours."""
    return str(error) if isinstance(error, VolstreamError) else f"{type(error).__name__}: {error}"


def in_brief(error: BaseException) -> str:
    """What an error of any kind says, in one short line."""
    return (error if isinstance(error, VolstreamError) else VolstreamError(reason_of(error))).brief


class UserError(VolstreamError):
    """The user's input or the state of the user's objects."""

    exit_code = 3


class InvalidValueError(UserError):
    """A value that cannot be accepted."""


class NotFoundError(UserError):
    """No object of that name."""


class AlreadyExistsError(UserError):
    """The name is taken."""


class ObjectInUseError(UserError):
    """Something else depends on the object."""


class InvalidStateError(UserError):
    """The object is not in a state that allows what was asked."""


class FunctionLoadError(UserError):
    """A per-file function cannot be found or imported."""


class SqlError(UserError):
    """A SQL statement is wrong, by volstream's or by Spark's judgement."""


class StreamError(UserError):
    """A stream cannot be read or consumed as asked."""


class StreamBusyError(StreamError):
    """Another consumption of the stream is open; the message names it."""


class StreamStaleError(StreamError):
    """Changes after the stream's offset can no longer be read."""


class StreamSchemaChangedError(StreamError):
    """Columns of the source were dropped, renamed or retyped inside the range."""


class TargetLostError(UserError):
    """The target table of a consumption vanished or is another table now."""


class DependencyError(VolstreamError):
    """Something that volstream needs is not available."""

    exit_code = 4


class StorageError(DependencyError):
    """The object store or directory of a volume failed; may pass."""

    transient = True


class StorageDeniedError(StorageError):
    """Permission to an object or listing was refused."""

    transient = False


class QueueError(DependencyError):
    """A queue failed; may pass."""

    transient = True


class CatalogError(DependencyError):
    """The catalog database failed; may pass."""

    transient = True


class DiskFullError(DependencyError):
    """The warehouse, the catalog or a scratch directory cannot take more data."""

    transient = True


class CatalogFullError(CatalogError, DiskFullError):
    """The catalog cannot take more data. Whoever can do without a catalog for a while can do without room in it."""


class JavaError(DependencyError):
    """No usable Java, or the engine's jars are missing."""


class PortInUseError(DependencyError):
    """A port that was asked for is taken."""


class EngineError(DependencyError):
    """The Spark engine of the home could not be started or used."""


class EngineLostError(EngineError):
    """The engine died or stopped answering while it was used."""

    transient = True


class EngineBusyError(EngineError):
    """Another process owns the home's engine and does not yield."""


class FencedError(VolstreamError):
    """Another process took this work over; nothing that this attempt did was kept."""

    transient = True
    exit_code = 4


class FilesFailedError(VolstreamError):
    """The command finished, but some files failed."""

    exit_code = 5


class InterruptedByUserError(VolstreamError):
    """SIGINT or SIGTERM ended the command before it was done."""

    exit_code = 130

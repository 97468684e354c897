"""The tables of a home that this process writes in real time: their tails and their background commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.base.processes import new_owner
from volstream.base.tracing import span
from volstream.catalog import Catalog
from volstream.catalog.leases import lease, of_columns, of_commits
from volstream.errors import DependencyError, NotFoundError, ObjectInUseError, TailFullError, VolstreamError, in_brief
from volstream.tables.delta import places
from volstream.tables.delta.ownership import check_writable
from volstream.tables.tails.tail import tail_exists
from volstream.tables.tails.writer import Flush, TailWriter, commit_tail

if TYPE_CHECKING:
    from volstream.home import Home
    from volstream.spark.session import SparkGateway

_log = get("ingest")

#: Length of the commit lease. If it is lost, two processes make the same commit at once, which is harmless.
_LEASE_SECONDS = 60.0

#: Maximum bytes of batches that wait for one table.
_WAITING_BYTES = 256 << 20


@dataclass
class _Request:
    """A request that waits for its turn, or the outcome of one."""

    batches: Sequence[Flush]
    size: int
    done: bool = False
    error: Exception | None = None


class LocalTable:
    """The receiver of this process's streams. See :class:`volstream.ingest.stream.FlushReceiver`.

    Waiting requests of several streams are appended together: a commit takes as long for many as for one.
    """

    def __init__(self, writer: TailWriter, on_arrival: Callable[[], object]) -> None:
        self.columns: pa.Schema = writer.columns
        self.location = writer.target
        self._writer = writer
        self._on_arrival = on_arrival
        self._lock = threading.Lock()  #: guards ``_waiting``
        self._waiting: list[_Request] = []
        self._turn = threading.Lock()  #: its holder appends all waiting requests

    def append(self, batches: Sequence[Flush]) -> None:
        """See ``TailWriter.append``. If every flush is committed, also raises what the commit raises."""
        request = _Request(batches, sum(batch.rows.nbytes for batch in batches))
        with self._lock:
            if self._waiting and sum(waiting.size for waiting in self._waiting) + request.size > _WAITING_BYTES:
                raise TailFullError(f"Too many rows wait to be written to {self.location}.", "Try again later, or send fewer.")
            self._waiting.append(request)
        with self._turn:
            if not request.done:
                self._append_waiting(request)
        if request.error is not None:
            raise request.error
        self._on_arrival()

    def close(self) -> None:
        """Does nothing: other streams use the table as well."""

    def _append_waiting(self, request: _Request) -> None:
        with self._lock:
            requests, self._waiting = self._waiting, []
        try:
            self._append_together(requests)
        except BaseException:  # raised in this thread only
            with self._lock:
                self._waiting = [*(other for other in requests if other is not request and not other.done), *self._waiting]
            raise

    def _append_together(self, requests: Sequence[_Request]) -> None:
        """Appends requests together, or one at a time if a request makes that fail."""
        error: Exception | None = None
        try:
            self._writer.append([batch for request in requests for batch in request.batches])
        except Exception as raised:  # noqa: BLE001  # raised where the request was made
            if len(requests) > 1 and not isinstance(raised, DependencyError):  # which no request causes
                for request in requests:
                    self._append_together([request])
                return
            error = raised
        for request in requests:
            request.error, request.done = error, True


class LocalTables:
    """Tables by name. Thread-safe.

    While open, commits their new rows every ``commit_seconds`` unless another process does.

    Args:
        commits: False if something else in this process commits.
    """

    def __init__(self, home: Home, *, commits: bool = True) -> None:
        self._home = home
        self._commits = commits
        self._lock = threading.Lock()
        self._tables: dict[Name, LocalTable] = {}
        self._committer: threading.Thread | None = None
        self._closed = threading.Event()

    def table(self, name: Name) -> LocalTable:
        """Returns the table, with its current columns.

        Raises:
            NotFoundError: there is no such table.
            InvalidStateError: a job keeps the table.
            ObjectInUseError: its columns are being changed.
            InvalidStateError, StorageError, DependencyError: see
                :class:`volstream.tables.tails.writer.TailWriter`.
        """
        location = places.table_location(self._home.warehouse, name)
        try:
            writer = writer_of(self._home, name, location)
        except NotFoundError:
            suggestion = places.like_one(self._home.warehouse, name)
            raise NotFoundError(f"There is no table {name}.", f"{suggestion}First: CREATE TABLE {name} (...).") from None
        check_writable(self._home.catalog, name, location, self._home.warehouse)
        immediate = self._home.settings.commit_seconds == 0
        with self._lock:
            local = self._tables[name] = LocalTable(
                writer, (lambda: commit_tail(location, lambda: self._home.gateway)) if immediate else lambda: None
            )
            if self._committer is None and self._commits and not immediate:
                self._committer = threading.Thread(target=self._commit_all, name="commits", daemon=True)
                self._committer.start()
        self._home.catalog.tails.put(name, location)
        return local

    def close(self) -> None:
        """Commits what can be committed without starting an engine.

        The rest stays queryable, and is committed later: by a daemon, by the next connection that writes the
        table, or before a statement that changes it.
        """
        self._closed.set()
        if self._committer is not None:
            self._committer.join()
        for name, local in self._tables.items():
            try:
                commit(self._home.catalog, name, local.location, lambda: self._home.connected_gateway)
            except VolstreamError as error:
                _log.info("commit_left_to_others", table=str(name), error=in_brief(error))

    def _commit_all(self) -> None:
        while not self._closed.wait(self._home.settings.commit_seconds):
            with self._lock:
                tables = dict(self._tables)
            for name, local in tables.items():
                try:
                    commit(self._home.catalog, name, local.location, lambda: self._home.gateway)
                except VolstreamError as error:  # retried at the next interval; the rows are durable
                    _log.warning("commit_failed", table=str(name), error=in_brief(error))
                except Exception:  # noqa: BLE001  # a bug in volstream; other tables and later commits go on
                    _log.exception("commit_failed", table=str(name))


def writer_of(home: Home, name: Name, location: str) -> TailWriter:
    """Returns a writer of a table's tail.

    Raises ObjectInUseError if the table's columns are being changed, and as
    :class:`volstream.tables.tails.writer.TailWriter` does.
    """

    def check() -> None:
        if not home.catalog.leases.is_free(of_columns(location), home.settings.lease_seconds):
            raise ObjectInUseError(f"The columns of {name} are being changed.", "Try again later.")

    return TailWriter(location, check)


def commit(catalog: Catalog, name: Name, location: str, spark: Callable[[], SparkGateway]) -> int:
    """Commits a table's new rows unless another process is doing so. Returns their number.

    Raises:
        VolstreamError: as :func:`volstream.tables.tails.writer.commit_tail`.
    """
    if not tail_exists(location):
        return 0
    purpose = f"committing rows of {name}"
    commit_lease = lease(catalog.leases, of_commits(location), new_owner(), purpose, _LEASE_SECONDS)
    with commit_lease as other, span("commit", table=str(name)) as current:
        count = 0 if other is not None else commit_tail(location, spark)
        current.set(rows=count)
    if count:
        _log.info("committed", table=str(name), rows=count)
    return count

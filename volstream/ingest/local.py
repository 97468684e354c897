"""Tables of a home that this process writes in real time: their tails, and their commits in the background."""

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

#: If it is lost, two processes make the same commit at once, which does no harm.
_LEASE_SECONDS = 60.0

#: Bytes of batches that may wait for one table.
_WAITING_BYTES = 256 << 20


@dataclass
class _Request:
    """A request that waits for its turn, or its outcome."""

    batches: Sequence[Flush]
    size: int
    done: bool = False
    error: Exception | None = None


class LocalTable:
    """The receiver of streams of this process; see :class:`volstream.ingest.stream.FlushReceiver`.

    Requests of several streams that wait at once are appended together: a commit takes as long for many as for one.
    """

    def __init__(self, writer: TailWriter, arrived: Callable[[], object]) -> None:
        self.columns: pa.Schema = writer.columns
        self.location = writer.target
        self._writer = writer
        self._arrived = arrived
        self._lock = threading.Lock()  #: guards what waits
        self._waiting: list[_Request] = []
        self._turn = threading.Lock()  #: its holder appends for all

    def append(self, batches: Sequence[Flush]) -> None:
        """See ``TailWriter.append``; raises what the commit raises if each flush is committed."""
        mine = _Request(batches, sum(batch.rows.nbytes for batch in batches))
        with self._lock:
            if self._waiting and sum(request.size for request in self._waiting) + mine.size > _WAITING_BYTES:
                raise TailFullError(f"Too many rows wait to be written to {self.location}.", "Try again later, or send fewer.")
            self._waiting.append(mine)
        with self._turn:
            if not mine.done:
                self._append_waiting(mine)
        if mine.error is not None:
            raise mine.error
        self._arrived()

    def close(self) -> None:
        """Does nothing: other streams use the table as well."""

    def _append_waiting(self, mine: _Request) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        try:
            self._try(taken)
        except BaseException:  # of this thread alone
            with self._lock:
                self._waiting = [*(request for request in taken if request is not mine and not request.done), *self._waiting]
            raise

    def _try(self, requests: Sequence[_Request]) -> None:
        """Appends requests together; if one of them cannot be appended, each by itself."""
        error: Exception | None = None
        try:
            self._writer.append([batch for request in requests for batch in request.batches])
        except Exception as raised:  # noqa: BLE001  # raised where the request was made
            if len(requests) > 1 and not isinstance(raised, DependencyError):  # of which no request is the cause
                for request in requests:
                    self._try([request])
                return
            error = raised
        for request in requests:
            request.error, request.done = error, True


class LocalTables:
    """Tables by name. Commits what arrives for them every ``commit_seconds``, while it is open, unless another process does.

    Thread-safe.

    Args:
        commits: False: something else in this process commits.
    """

    def __init__(self, home: Home, *, commits: bool = True) -> None:
        self._home = home
        self._commits = commits
        self._lock = threading.Lock()
        self._tables: dict[Name, LocalTable] = {}
        self._committer: threading.Thread | None = None
        self._closed = threading.Event()

    def table(self, name: Name) -> LocalTable:
        """Returns the table, whose columns are looked at again.

        Raises:
            NotFoundError: there is no such table.
            InvalidStateError: a job keeps the table.
            ObjectInUseError: its columns are being changed.
            InvalidStateError, StorageError, DependencyError: see :class:`volstream.tables.tails.writer.TailWriter`.
        """
        location = places.table_location(self._home.warehouse, name)
        try:
            writer = writer_of(self._home, name, location)
        except NotFoundError:
            near = places.like_one(self._home.warehouse, name)
            raise NotFoundError(f"There is no table {name}.", f"{near}First: CREATE TABLE {name} (...).") from None
        check_writable(self._home.catalog, name, location, self._home.warehouse)
        at_once = self._home.settings.commit_seconds == 0
        with self._lock:
            local = self._tables[name] = LocalTable(
                writer, (lambda: commit_tail(location, lambda: self._home.gateway)) if at_once else lambda: None
            )
            if self._committer is None and self._commits and not at_once:
                self._committer = threading.Thread(target=self._commit_all, name="commits", daemon=True)
                self._committer.start()
        self._home.catalog.tails.put(name, location)
        return local

    def close(self) -> None:
        """Commits what can be committed without starting an engine. The rest stays queryable, and is committed later: by a
        daemon, by the next connection that writes the table, or before a statement that changes it."""
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
                except VolstreamError as error:  # reported, and retried at the next turn; the rows are safe
                    _log.warning("commit_failed", table=str(name), error=in_brief(error))
                except Exception:  # noqa: BLE001  # a fault of volstream's; other tables, and later commits, must not suffer
                    _log.exception("commit_failed", table=str(name))


def writer_of(home: Home, name: Name, location: str) -> TailWriter:
    """Returns a writer of the tail of a table. Raises ObjectInUseError if the table's columns are being changed; and as
    :class:`volstream.tables.tails.writer.TailWriter`."""

    def check() -> None:
        if not home.catalog.leases.is_free(of_columns(location), home.settings.lease_seconds):
            raise ObjectInUseError(f"The columns of {name} are being changed.", "Try again later.")

    return TailWriter(location, check)


def commit(catalog: Catalog, name: Name, location: str, spark: Callable[[], SparkGateway]) -> int:
    """Commits what has arrived for a table, unless another process is doing that; returns the number of rows.

    Raises:
        VolstreamError: as :func:`volstream.tables.tails.writer.commit_tail`.
    """
    if not tail_exists(location):
        return 0
    purpose = f"committing rows of {name}"
    held = lease(catalog.leases, of_commits(location), new_owner(), purpose, _LEASE_SECONDS)
    with held as other, span("commit", table=str(name)) as current:
        count = 0 if other is not None else commit_tail(location, spark)
        current.set(rows=count)
    if count:
        _log.info("committed", table=str(name), rows=count)
    return count

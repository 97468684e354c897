"""Appends rows to the tail of a source's table; durable on return."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import pyarrow as pa

from volstream.base.log import get
from volstream.base.model.names import Name
from volstream.errors import DependencyError, TailFullError
from volstream.ingest.local import LocalTable, commit
from volstream.jobs.home import Home
from volstream.tables.tails.writer import Flush

_log = get("sources")

#: Rows of one flush at most.
_ROWS = 50_000


@dataclass
class _Sender:
    """The numbering of flushes that come one after the other: those of two threads may arrive in any order."""

    stream_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 0


class Appender:
    """Writes to one table. Thread-safe: what several threads append at once is written together."""

    def __init__(self, home: Home, name: Name, table: LocalTable) -> None:
        self._home = home
        self._name = name
        self._table = table
        self._idle: list[_Sender] = []  # as many as there were threads at once: the tail keeps the number of each

    def append(self, rows: pa.Table) -> None:
        """Appends rows with their operations (``table.OPERATION``), in order. If many have arrived, commits them first.

        Raises:
            VolstreamError: they cannot be written. Some of more than 50,000 rows may have been.
        """
        try:
            sender = self._idle.pop()
        except IndexError:
            sender = _Sender()
        try:
            for start in range(0, rows.num_rows, _ROWS):
                sender.sequence += 1
                self._append(Flush(sender.stream_id, sender.sequence, rows.slice(start, _ROWS)))
        finally:
            self._idle.append(sender)

    def _append(self, flush: Flush) -> None:
        try:
            self._table.append([flush])
            return
        except TailFullError:
            commit(self._home.catalog, self._name, self._table.location, lambda: self._home.gateway)
        except DependencyError as error:  # what fails after the commit does not say that the rows have arrived
            _log.info("append_repeated", table=str(self._name), cause=str(error))
        self._table.append([flush])  # does nothing if they have

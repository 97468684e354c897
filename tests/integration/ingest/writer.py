"""Processes that write a table in real time and say what has arrived; for tests that kill them."""

from __future__ import annotations

import random
from pathlib import Path

from tests.forked import Forked
from tests.tails import no_spark
from volstream.ingest import FlushMode, RealtimeOperation, RealtimeOptions, RealtimeStream
from volstream.ingest.local import LocalTable
from volstream.tables.tails.writer import TailWriter, commit_tail


class Writer(Forked):
    """A process that appends rows ``NAME-n`` in flushes of one to seven, and commits after every third of them."""

    def __init__(self, location: str, name: str, rows: int, fault: str = "") -> None:
        self._told = Path(f"{location}-{name}.txt")
        self._told.touch()
        super().__init__(_write, location, name, rows, self._told, fault=fault)

    def acknowledged(self) -> set[str]:
        """The rows that it said had arrived, so far."""
        told = self._told.read_text()
        return {*told[: told.rfind("\n") + 1].split()}  # it may have been killed in the middle of a line


def _write(location: str, name: str, count: int, told: Path) -> None:
    options = RealtimeOptions(flush_mode=FlushMode.MANUAL_FLUSH, request_failed_retry_internal_ms=10)
    table = LocalTable(TailWriter(location), lambda: None)
    stream = RealtimeStream(table, "t", RealtimeOperation.APPEND_ONLY, options)
    chosen = random.Random(name)
    number = flushes = 0
    with told.open("a", buffering=1) as arrived:
        while number < count:
            mine = range(number, min(count, number + chosen.randint(1, 7)))
            for one in mine:
                row = stream.create_row()
                row.set_values({"id": f"{name}-{one:04}", "n": one})
                stream.apply(row)
            stream.flush()
            for one in mine:
                arrived.write(f"{name}-{one:04}\n")
            number, flushes = mine.stop, flushes + 1
            if flushes % 3 == 0:
                commit_tail(location, no_spark)

"""Queries from the console's SQL page: one at a time, read-only, with few rows and a limit of time."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from volstream.errors import InvalidStateError
from volstream.functions.values import python_values
from volstream.inspection.tables import brief
from volstream.model.units import format_duration
from volstream.session import Session
from volstream.spark.errors import as_sql_errors
from volstream.sql.readonly import one_query

#: A query that takes longer is ended.
_MAX_SECONDS = 60.0

#: Characters of a value that are shown.
_MAX_VALUE = 1000


class Queries:
    """Runs the queries of all pages, in a thread whose session Spark keeps warm."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-sql")
        self._busy = threading.Lock()
        self._spark: Any = None

    def run(self, text: str, limit: int) -> dict[str, Any]:
        """Returns columns and the first rows of a query.

        Raises:
            SqlError: it is no query, or is wrong.
            InvalidStateError: another query is running, or this one took too long.
            EngineError: Spark is not there.
        """
        statement = one_query(text)
        if not self._busy.acquire(blocking=False):
            raise InvalidStateError("Another query is being run.", "Try again when it has ended.")
        working: Future[dict[str, Any]] = self._thread.submit(self._run, statement, limit)
        working.add_done_callback(lambda _: self._busy.release())
        try:
            return working.result(_MAX_SECONDS)
        except FutureTimeoutError:
            if self._spark is not None:
                self._spark.interruptAll()
            raise InvalidStateError(
                f"The query took longer than {format_duration(_MAX_SECONDS)} and was ended.", "Use volstream sql."
            ) from None

    def stop(self) -> None:
        """Takes no more queries. Idempotent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, statement: str, limit: int) -> dict[str, Any]:
        began = time.monotonic()
        with self._session.home.gateway.explaining(), as_sql_errors():
            self._spark = self._session.spark
            found = self._session.sql(statement).limit(limit + 1).toArrow()
        columns = [python_values(column) for column in found.columns]
        rows = [[brief(value, _MAX_VALUE) for value in row] for row in zip(*columns, strict=True)]
        return {
            "columns": found.column_names,
            "rows": rows[:limit],
            "more": len(rows) > limit,
            "seconds": round(time.monotonic() - began, 3),
        }

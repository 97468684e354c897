"""Pathway: a table of the folder's files, whose changes are written to SQLite. Runs in its own environment.

    python -m benchmarks.others.with_pathway FOLDER STATE

A later run resumes from its persisted state.
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pathway as pw

from benchmarks.functions import summary_of

_FOLDER, _STATE = map(Path, sys.argv[1:])


class _Rows(pw.io.python.ConnectorObserver):  # type: ignore[misc]  # untyped
    """Applies changes to SQLite, including removals from Pathway's table."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(_STATE / "rows.sqlite", check_same_thread=False)
        self._connection.execute("CREATE TABLE IF NOT EXISTS summaries (path TEXT, sha256 TEXT, words INT, first_line TEXT)")
        self._connection.execute("CREATE INDEX IF NOT EXISTS by_path ON summaries (path)")

    def on_change(self, key: object, row: dict[str, Any], time: int, is_addition: bool) -> None:
        del key, time
        values = row["path"], *row["summary"]
        if is_addition:
            self._connection.execute("INSERT INTO summaries VALUES (?, ?, ?, ?)", values)
        else:
            self._connection.execute("DELETE FROM summaries WHERE path = ? AND sha256 = ?", values[:2])

    def on_end(self) -> None:
        self._connection.commit()
        self._connection.close()


@pw.udf(deterministic=True)
def _summary(data: bytes) -> tuple[str, int, str]:
    return astuple(summary_of(data))


@pw.udf(deterministic=True)
def _path(metadata: pw.Json) -> str:
    return str(metadata["path"].as_str())


if __name__ == "__main__":
    files = pw.io.fs.read(str(_FOLDER), format="binary", mode="static", with_metadata=True, name="files")
    rows = files.select(path=_path(pw.this._metadata), summary=_summary(pw.this.data))
    pw.io.python.write(rows, _Rows())
    backend = pw.persistence.Backend.filesystem(str(_STATE / "persisted"))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=pw.persistence.Config(backend))

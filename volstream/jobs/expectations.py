"""What a job expects of the rows of a file, in SQL: a file whose rows break it fails, or is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.base.definitions import FileJob
from volstream.base.model.text import counted
from volstream.functions.schema import key_column
from volstream.jobs.conditions import names_in
from volstream.spark.errors import map_spark_errors
from volstream.spark.frames import relation
from volstream.sql.text import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

    from volstream.jobs.staged import Staged

#: In an expectation: how many rows the file has. Such a one is on each file, the others on each row.
ROWS = "rows"


def broken(session: SparkSession, job: FileJob, expected: Sequence[str], staged: Staged) -> Mapping[str, list[tuple[str, int]]]:
    """Returns the expectations that files break, each with the number of rows that do, by path. NULL breaks none.

    Raises:
        SqlError: Spark cannot evaluate one.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    rows, files = staged.rows(session), relation(session, staged.counts())
    key = key_column(job)
    asked: list[DataFrame] = []
    for number, condition in enumerate(expected):
        breaks = f"NOT coalesce(({condition}), true)"
        if ROWS in names_in(condition):
            asked.append(files.where(breaks).selectExpr("path", f"{number} AS number", "0L AS count"))
        else:
            of_file = rows.where(breaks).groupBy(key).count()
            asked.append(of_file.selectExpr(f"{key} AS path", f"{number} AS number", "count"))
    frame = asked[0]
    for other in asked[1:]:
        frame = frame.union(other)
    with map_spark_errors():
        answer: pa.Table = frame.toArrow()
    for path, number, count in zip(*(answer[name].to_pylist() for name in ("path", "number", "count")), strict=True):
        found.setdefault(path, []).append((expected[number], count))
    return found


def judged(session: SparkSession, job: FileJob, staged: Staged) -> tuple[Staged, Mapping[str, float]]:
    """Returns outcomes in which the files that break an expectation failed; and how many files break one that only warns, by
    the name under which they are counted."""
    if job.expect and (wrong := broken(session, job, job.expect, staged)):
        staged = staged.with_failed({path: _message(breaks) for path, breaks in wrong.items()}, unexpected=True)
    warned: dict[str, float] = {}
    if job.expect_warn:
        for breaks in broken(session, job, job.expect_warn, staged).values():
            for condition, _ in breaks:
                name = f"unexpected: {condition}"
                warned[name] = warned.get(name, 0.0) + 1
    return staged, warned


def _message(breaks: Sequence[tuple[str, int]]) -> str:
    said = [
        f"{counted(count, 'row')} {'breaks' if count == 1 else 'break'} {literal(condition)}"
        if count
        else f"its rows break {literal(condition)}"
        for condition, count in sorted(breaks)
    ]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."

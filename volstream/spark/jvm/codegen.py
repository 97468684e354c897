"""Settings that make Spark compile or interpret a session's queries.

The engine interprets by default: a commit to a small table takes some twenty queries on few rows, and compiling Java for each
takes longer than running it, two to three seconds for a session's first commit. But reading a row takes five times as long, so
sessions that read large tables compile; Spark keeps compiled code for the lifetime of the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

#: Settings of an engine that interprets, and of a session that compiles, which are Spark's defaults.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}

#: Reading one column of this many rows, or a table of this many bytes, takes as long interpreted as compiling does.
LARGE_ROWS = 250_000
LARGE_BYTES = 16 << 20


def compile_in(session: SparkSession) -> None:
    """Makes Spark compile the session's queries from now on."""
    for key, value in COMPILED.items():
        session.conf.set(key, value)

"""Whether Spark compiles what a session runs, or interprets it.

The engine interprets: a commit to a small table is some twenty queries of few rows, and compiling Java for each takes
longer than running it, two to three seconds for the first commit of a session. A row that is read takes five times as long,
though, so that sessions which read large tables compile; Spark keeps what it compiled for as long as the session lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

#: Settings of an engine that interprets, and of a session that compiles: what Spark itself does unless it is told.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}

#: Reading one column of so many rows, or a table of so many bytes, takes as long interpreted as compiling.
LARGE_ROWS = 250_000
LARGE_BYTES = 16 << 20


def compile_in(session: SparkSession) -> None:
    """From now on Spark compiles what the session runs."""
    for key, value in COMPILED.items():
        session.conf.set(key, value)

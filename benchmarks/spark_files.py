"""Spark's own file source: a stream of ``binaryFile`` with ``availableNow`` into a Delta table, and a Python function.

Warm, it runs on volstream's engine and so with its settings, which suit small tables better than Spark's defaults. Cold, it is
a script with its own session::

    python -m benchmarks.spark_files FOLDER TABLE

It is not tested beyond its guarantees: it does not see overwritten and deleted files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.functions import Summary, summary_of

if TYPE_CHECKING:
    from volstream.api.session import Session

#: Columns of ``binaryFile``; a stream requires them to be declared.
_FILES = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"

_DDL = "path STRING, sha256 STRING, words BIGINT, first_line STRING"
_SCHEMA = pa.schema([("path", pa.string()), ("sha256", pa.string()), ("words", pa.int64()), ("first_line", pa.string())])


def ingest(spark: Any, folder: Path, table: Path) -> None:
    """Ingests the files that the stream has not seen. ``spark`` is a session, classic or Connect."""
    source = spark.readStream.format("binaryFile").schema(_FILES).option("recursiveFileLookup", "true")
    summaries = source.load(str(folder)).select("path", "content").mapInArrow(_summarise, _DDL)
    query = (
        summaries.writeStream.format("delta")
        .option("checkpointLocation", f"{table}.checkpoint")
        .trigger(availableNow=True)
        .start(str(table))
    )
    query.awaitTermination()


def rows(session: Session, folder: Path, table: Path) -> dict[str, Summary]:
    """Returns the rows of the table, by relative path."""
    found = session.sql(f"SELECT * FROM delta.`{table}`").toArrow().to_pylist()
    prefix = f"file:{os.path.realpath(folder)}/"
    return {row["path"].removeprefix(prefix): Summary(row["sha256"], row["words"], row["first_line"]) for row in found}


def _summarise(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        summaries = [summary_of(content) for content in batch["content"].to_pylist()]
        columns = [
            batch["path"],
            *([getattr(summary, name) for summary in summaries] for name in ("sha256", "words", "first_line")),
        ]
        yield pa.RecordBatch.from_pydict(dict(zip(_SCHEMA.names, columns, strict=True)), schema=_SCHEMA)


def _main(folder: Path, table: Path) -> None:
    from pyspark.sql import SparkSession

    from volstream.base import config
    from volstream.spark.jvm import install

    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(map(str, install.cached_jars(config.cache_directory()))))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    ingest(spark, folder, table)
    spark.stop()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))

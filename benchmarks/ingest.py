"""Rows that arrive one by one: 100,000 rows of ten columns, against pyarrow and Spark doing the same with the same rows.

``python -m benchmarks --part ingest``. Flushes of 1,000 rows against batches that pyarrow writes to a file with an fsync each;
commits against Spark's own append and MERGE; and the time from a flush to a query that shows its rows.
"""

from __future__ import annotations

import os
import time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa

from benchmarks.report import BASE, Figures
from benchmarks.scenarios import WrongRowsError
from volstream.api import dbapi
from volstream.api.dbapi import Connection
from volstream.ingest import FlushMode, RealtimeOperation, RealtimeOptions
from volstream.sql.text import table_at
from volstream.tables.tails.writer import commit_tail

ROWS, FLUSH = 100_000, 1_000

SENT, COMMITTED, MERGED, SEEN = (
    "100 flushes of 1,000 rows",
    "rows appended by a commit",
    "rows upserted by a commit",
    "flush to query",
)

_COLUMNS = (
    "id STRING NOT NULL, n BIGINT, price DOUBLE, amount DECIMAL(12, 2), at TIMESTAMP, day DATE, open BOOLEAN, "
    "name STRING, note STRING, code INT"
)


def rows() -> pa.Table:
    """The rows, made once."""
    numbers = pa.array(range(ROWS), pa.int64())
    texts = numbers.cast(pa.string())
    return pa.table(
        {
            "id": texts,
            "n": numbers,
            "price": numbers.cast(pa.float64()),
            "amount": pa.array([Decimal(number) for number in range(ROWS)], pa.decimal128(12, 2)),
            "at": numbers.cast(pa.timestamp("us", tz="UTC")),
            "day": numbers.cast(pa.int32()).cast(pa.date32()),
            "open": pa.array([number % 2 == 0 for number in range(ROWS)]),
            "name": pa.array([f"the name of number {number}" for number in range(ROWS)]),
            "note": pa.array([f"a note of some length on number {number}" for number in range(ROWS)]),
            "code": numbers.cast(pa.int32()),
        }
    )


def measure(home: Path, rounds: int, figures: Figures) -> None:
    """Runs all rounds."""
    made = rows()
    with dbapi.connect(str(home), commit_seconds=3600) as connection:
        for number in range(rounds):
            _flushes(connection, made, number, home.parent, figures)
            _commits(connection, made, number, figures)
            _visible(connection, number, figures)


def _flushes(connection: Connection, made: pa.Table, number: int, folder: Path, figures: Figures) -> None:
    started = time.perf_counter()
    with (folder / "raw.arrow").open("wb") as file, pa.ipc.new_stream(file, made.schema) as writer:
        for batch in made.to_batches(FLUSH):
            writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
    figures.note(SENT, ROWS, BASE, time.perf_counter() - started)
    connection.cursor().execute(f"CREATE TABLE sent{number} ({_COLUMNS})")
    with connection.get_realtime_stream(table=f"sent{number}") as stream:
        started = time.perf_counter()
        stream.apply_arrow(made)
        stream.flush()
        figures.note(SENT, ROWS, "apply_arrow", time.perf_counter() - started)
    connection.cursor().execute(f"CREATE TABLE rows{number} ({_COLUMNS})")
    values = made.to_pylist()
    with connection.get_realtime_stream(table=f"rows{number}") as stream:
        started = time.perf_counter()
        for value in values:
            row = stream.create_row()
            row.set_values(value)
            stream.apply(row)
        stream.flush()
        figures.note(SENT, ROWS, "apply", time.perf_counter() - started)
    _check(connection, f"rows{number}", ROWS)


def _commits(connection: Connection, made: pa.Table, number: int, figures: Figures) -> None:
    """A commit of appended rows, without Spark and by Spark, and one of upserted rows; each against Spark with the same rows."""
    home = connection.session.home
    spark = connection.session.spark
    tables = f"{home.warehouse}/tables/public"
    staged = f"{home.warehouse}/staged{number}"
    frame = spark.createDataFrame(made.to_pandas(), _COLUMNS.replace(" NOT NULL", ""))
    frame.write.parquet(staged)
    for kind, properties in (("", ""), (", tracked", " TBLPROPERTIES ('change_tracking' = 'true')")):
        table = f"sent{number}" if not kind else f"tracked{number}"
        if kind:
            connection.cursor().execute(f"CREATE TABLE {table} ({_COLUMNS}){properties}")
            with connection.get_realtime_stream(table=table) as stream:
                stream.apply_arrow(made)
        connection.cursor().execute(f"CREATE TABLE own_{table} ({_COLUMNS}){properties}")
        started = time.perf_counter()
        spark.read.parquet(staged).write.format("delta").mode("append").save(f"{tables}/own_{table}")
        figures.note(f"{COMMITTED}{kind}", ROWS, BASE, time.perf_counter() - started)
        started = time.perf_counter()
        commit_tail(f"{tables}/{table}", lambda: home.gateway)
        figures.note(f"{COMMITTED}{kind}", ROWS, "commit", time.perf_counter() - started)
        _check(connection, table, ROWS)
    keyed = "(id STRING NOT NULL PRIMARY KEY" + _COLUMNS.removeprefix("id STRING NOT NULL") + ")"
    for table in (f"keyed{number}", f"own_keyed{number}"):
        connection.cursor().execute(f"CREATE TABLE {table} {keyed} TBLPROPERTIES ('change_tracking' = 'true')")
        spark.read.parquet(staged).write.format("delta").mode("append").save(f"{tables}/{table}")
    with connection.get_realtime_stream(table=f"keyed{number}", operate=RealtimeOperation.CDC) as stream:
        stream.apply_arrow(made)
    started = time.perf_counter()
    spark.sql(
        f"MERGE INTO {table_at(f'{tables}/own_keyed{number}')} t USING parquet.`{staged}` s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    figures.note(MERGED, ROWS, BASE, time.perf_counter() - started)
    started = time.perf_counter()
    commit_tail(f"{tables}/keyed{number}", lambda: home.gateway)
    figures.note(MERGED, ROWS, "commit", time.perf_counter() - started)
    _check(connection, f"keyed{number}", ROWS)


def _visible(connection: Connection, number: int, figures: Figures) -> None:
    options = RealtimeOptions(FlushMode.MANUAL_FLUSH)
    with connection.get_realtime_stream(table=f"sent{number}", options=options) as stream:
        row = stream.create_row()
        row.set_value("id", "new")
        stream.apply(row)
        stream.flush()
        started = time.perf_counter()
        _check(connection, f"sent{number}", 1, "WHERE id = 'new'")
        figures.note(SEEN, ROWS, "query", time.perf_counter() - started)


def _check(connection: Connection, table: str, wanted: int, where: str = "") -> None:
    found = connection.cursor().execute(f"SELECT count(*) FROM {table} {where}").fetchone()
    if found != (wanted,):
        raise WrongRowsError(f"{table} has {found} rows, not {wanted}.")

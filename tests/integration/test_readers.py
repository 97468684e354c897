"""What volstream writes, others read: Spark, deltalake, polars and pandas, old and new. And what they write, volstream reads.

A reader that does not support a table's features refuses it. None may return other rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyarrow import parquet as pq

from tests.installed import environment_with
from tests.integration.conftest import Place, session_on
from tests.integration.ingest.test_realtime import append, commit, upsert
from tests.readers import foreign
from volstream.api.dbapi import Connection, _OpenHome
from volstream.base.config import Settings
from volstream.base.definitions import QueueType, Write
from volstream.spark.session import SparkGateway
from volstream.sql.text import table_at

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: Packages of each environment. pandas reads what deltalake gives it.
ENVIRONMENTS = {
    "deltalake-0.25": ("deltalake==0.25.5", "pyarrow==19.0.1", "polars==1.29.0", "pandas==2.2.3"),
    "deltalake-1.0": ("deltalake==1.0.2", "pyarrow==20.0.0", "polars==1.31.0", "pandas==2.3.3"),
    "deltalake-1.6": ("deltalake==1.6.6", "pyarrow>=20", "polars>=1.40", "pandas>=3"),
}

#: The readers of tables with deletion vectors. Others refuse them.
_WITH_VECTORS = (("deltalake-1.6", "query"), ("deltalake-1.6", "polars"))

COLUMNS = (
    "b BOOLEAN, n BIGINT, i INT, f DOUBLE, r FLOAT, d DECIMAL(38,9), t TIMESTAMP, day DATE, bin BINARY, "
    "a ARRAY<STRING>, s STRUCT<x: INT, y: STRING>, m MAP<STRING, INT>"
)

#: Values at all ends, the same for all ways into a table.
VALUES: Sequence[dict[str, Any]] = [
    {
        "b": True,
        "n": 2**63 - 1,
        "i": -(2**31),
        "f": -0.0,
        "r": 0.5,
        "d": Decimal("12345678901234567890123456789.000000001"),
        "t": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
        "day": date(9999, 12, 31),
        "bin": b"\x00\xff",
        "a": ["", None, "\U00020bb7"],
        "s": {"x": 1, "y": None},
        "m": {"\U0010ffff": 1, "": None},
    },
    {
        "b": False,
        "n": -(2**63),
        "i": 2**31 - 1,
        "f": float("nan"),
        "r": float("inf"),
        "d": Decimal("-0.000000001"),
        "t": datetime(1677, 1, 1, tzinfo=UTC),
        "day": date(1, 1, 1),
        "bin": b"",
        "a": [],
        "s": {"x": None, "y": "\u2028"},
        "m": {},
    },
    dict.fromkeys(("b", "n", "i", "f", "r", "d", "t", "day", "bin", "a", "s", "m")),
    {"b": True, "n": 0, "i": 0, "f": 5e-324, "r": -1.5, "d": Decimal(0), "t": datetime(2026, 1, 1, 0, 0, 0, 1, UTC)}
    | {"day": date(1969, 12, 31), "bin": b"x" * 100, "a": ["x" * 100], "s": None, "m": {"k": -1}},
]

KEYS = ["plain", "\U00020bb7\u91ce.txt", "\U0010fffe", "'; --", "\u0130\ufffd", "x" * 200, "", "\n\t\\"]

#: A function of a job, whose file has the number of the values.
FUNCTION = (
    f"""
from datetime import *
from decimal import Decimal
UTC = timezone.utc
nan, inf = float("nan"), float("inf")
VALUES = {VALUES!r}

def f(file):
    for number in file.read_text().split():
        yield VALUES[int(number)]
""".replace("datetime.datetime", "datetime")
    .replace("datetime.date", "date")
    .replace("datetime.timezone", "timezone")
)


@pytest.fixture(scope="module")
def environments() -> dict[str, str]:
    """The Python of each environment, which is made once."""
    return {name: str(environment_with(packages, f"readers/{name}") / "python") for name, packages in ENVIRONMENTS.items()}


def _run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [python, foreign.__file__, *arguments], env=plain, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def place(tmp_path: Path, settings: Settings, gateway: SparkGateway) -> Iterator[Place]:
    """As the one of all tests, with a schema of its own: the engine knows one table by each name."""
    folder = tmp_path / "files"
    folder.mkdir()
    with session_on(gateway, settings.model_copy(update={"commit_seconds": 3600.0})) as session:
        session.volumes.create("v", str(folder), queue_type=QueueType.NONE)
        yield Place(session, folder, gateway)


def _files(place: Place, **options: object) -> str:
    """A job's table, of files that changed and went."""
    place.session.jobs.create("j", _function(place), _table(place, "t"), volume="v", returns=COLUMNS, **options)  # type: ignore[arg-type]
    names = [key.replace("\n\t\\", "back") for key in KEYS if key]
    for number, name in enumerate(names):
        place.put(name, f"{number % len(VALUES)} 0")
    place.refresh()
    place.run()
    place.put(names[0], "3")
    place.put(names[1], "1 2 3")
    place.delete(names[2])
    place.refresh()
    place.run()
    return _location(place, "t")


def _function(place: Place) -> str:
    code = place.folder.parent / "job.py"
    code.write_text(FUNCTION)
    return f"{code}:f"


def _table(place: Place, name: str) -> str:
    schema = f"s{zlib.crc32(place.folder.as_posix().encode()):x}"
    (Path(place.session.home.warehouse) / "tables" / schema).mkdir(parents=True, exist_ok=True)
    return f"{schema}.{name}"


def _location(place: Place, name: str) -> str:
    return f"{place.session.home.warehouse}/tables/{_table(place, name).replace('.', '/')}"


def _connection(place: Place) -> Connection:
    schema = _table(place, "t").partition(".")[0]
    place.session.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    return Connection(_OpenHome(place.session), schema)


def _keyed(place: Place, *, flat: bool = False) -> str:
    """A table with a key, whose rows arrived and were committed; ``flat``: without what polars cannot write."""
    connection = _connection(place)
    columns = COLUMNS.partition(", s STRUCT")[0] if flat else COLUMNS
    connection.cursor().execute(f"CREATE TABLE t (id STRING PRIMARY KEY, {columns})")
    for number in (1, 0):
        rows = [{"id": key, **VALUES[(at + number) % len(VALUES)]} for at, key in enumerate(KEYS)]
        for row in rows if flat else ():
            del row["s"], row["m"]
        upsert(connection, "t", *rows)
        commit(connection, "t")
    upsert(connection, "t", {"id": KEYS[1]}, {"id": KEYS[3]}, delete=True)
    commit(connection, "t")
    return _location(place, "t")


def _added(place: Place) -> str:
    """A table without a key."""
    connection = _connection(place)
    connection.cursor().execute(f"CREATE TABLE t (id STRING, {COLUMNS})")
    append(connection, "t", *({"id": key, **VALUES[at % len(VALUES)]} for at, key in enumerate(KEYS)))
    commit(connection, "t")
    return _location(place, "t")


def _events(place: Place) -> str:
    stream = place.session.source.create_stream(_table(place, "t"))
    for key in KEYS:
        stream.upload({"key": key})
    place.session.source.close()
    return _location(place, "t")


def _items(place: Place) -> str:
    table = place.session.source.create_table(_table(place, "t"), "id")
    for key in KEYS:
        table.insert({"id": key, "n": [1, {"x": key}]})
    table.insert({"id": KEYS[0], "n": 2})
    table.delete(KEYS[1])
    place.session.source.close()
    return _location(place, "t")


def _loaded(place: Place) -> str:
    for number, key in enumerate(KEYS):
        place.put(f"{number}.json", json.dumps({"id": key, "n": number, "f": number / 3, "a": [key]}))
    place.refresh()
    place.session.create_table_from_volume(_table(place, "t"), "v")
    return _location(place, "t")


def _dynamic(place: Place) -> str:
    _keyed(place)
    source, name = _table(place, "t"), _table(place, "d")
    place.session.sql(f"ALTER TABLE {source} SET PROPERTIES ('change_tracking' = 'true')")
    place.session.sql(f"CREATE DYNAMIC TABLE {name} AS SELECT * EXCEPT (m) FROM {source} WHERE n IS NOT NULL")
    place.session.sql(f"DELETE FROM {source} WHERE n = 0")
    place.session.sql(f"REFRESH DYNAMIC TABLE {name}")
    return _location(place, "d")


TABLES: dict[str, Callable[[Place], str]] = {
    "upsert": _files,
    "append": lambda place: _files(place, write=Write.APPEND),
    "keyed": _keyed,
    "added": _added,
    "events": _events,
    "items": _items,
    "loaded": _loaded,
    "dynamic": _dynamic,
}


@pytest.mark.parametrize("table", TABLES)
def test_other_readers_return_the_rows_of_a_table_or_refuse_it(table: str, place: Place, environments: dict[str, str]) -> None:
    """The table in docs/limits.md says who reads which tables."""
    location = TABLES[table](place)
    frame = place.gateway.session().sql(f"SELECT * FROM {table_at(location)}")
    wanted = foreign.lines(frame.toArrow().to_pylist())
    assert wanted
    vectors = "deletionVectors" in (DeltaTable(location).protocol().reader_features or ())
    for name, python in environments.items():
        for library in ("deltalake", "query", "pandas", "polars"):
            if (name, library) == ("deltalake-0.25", "query"):
                continue  # ignores deletion vectors, rather than refusing them
            done = _run(python, "read", library, location)
            if vectors and (name, library) not in _WITH_VECTORS:
                assert done.returncode, (name, library)
                assert "deletionvectors" in done.stderr.lower(), (name, library, done.stderr)
            else:
                assert (done.stderr, done.stdout.splitlines()) == ("", wanted), (name, library)


def test_rows_that_other_writers_add_are_replaced_removed_and_read(
    place: Place, environments: dict[str, str], tmp_path: Path
) -> None:
    location = _keyed(place, flat=True)
    connection = _connection(place)
    frame = place.gateway.session().sql(f"SELECT * FROM {table_at(location)} WHERE id = ''")
    [template] = frame.toArrow().to_pylist()
    wanted = {row["id"]: row for row in _rows(place, location)}
    for name, python in environments.items():
        for library in ("deltalake", "polars"):
            keys = [f"{name} {library} {character}" for character in ("a", "\U00020bb7", "\U0010fffe")]
            file = tmp_path / f"{name}-{library}.parquet"
            rows = [{**template, "id": key, "f": -0.0} for key in keys]
            pq.write_table(pa.Table.from_pylist(rows, schema=frame.toArrow().schema), file)
            done = _run(python, "append", library, location, str(file))
            assert done.returncode == 0, (name, library, done.stderr)
            upsert(connection, "t", {"id": keys[1], "n": 5})
            upsert(connection, "t", {"id": keys[2]}, delete=True)
            commit(connection, "t")
            wanted[keys[0]] = {**template, "id": keys[0], "f": -0.0}
            wanted[keys[1]] = {**dict.fromkeys(template), "id": keys[1], "n": 5}
            assert foreign.lines(_rows(place, location)) == foreign.lines(wanted.values()), (name, library)
    found = place.session.sql(f"SELECT count(*) FROM {_table(place, 't')} WHERE f = 0").collect()[0][0]
    assert found == sum(row["f"] == 0 for row in wanted.values())


def _rows(place: Place, location: str) -> list[dict[str, Any]]:
    return list(place.gateway.session().sql(f"SELECT * FROM {table_at(location)}").toArrow().to_pylist())

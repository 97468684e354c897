"""Values at all ends and names of all kinds through every way in and every way out: what comes out is what went in."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest
from pydantic import SecretStr

import volstream
from tests import corpus
from tests.integration.conftest import Place, session_on
from volstream.api.dbapi import Connection, _OpenHome
from volstream.api.objects.sql import rows as sql_rows
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.base.model.text import to_json
from volstream.cli.output import shown
from volstream.errors import InvalidValueError
from volstream.ingest import RealtimeOperation
from volstream.ops.inspection.file_history import tell
from volstream.server.console.queries import Queries
from volstream.server.daemon.ingest import IngestServer
from volstream.spark.session import SparkGateway
from volstream.tables.tails.writer import commit_tail

pytestmark = pytest.mark.timeout(240)

#: A job's functions. The file is on the path of tests, as the workers' processes are given it.
FUNCTIONS = """
from tests import corpus

def dicts(file):
    return corpus.rows()

def pairs(file):
    for row in corpus.rows():
        yield {**corpus.as_arrow(row), "list": row["list"] and tuple(row["list"])}

def arrow(file):
    return corpus.table()
"""


TOKEN = "a long enough token"


class Ways:
    """A home, whose tables of this module are in a schema of their own, and the ways into it."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.connection = connection
        self.session: Session = connection.session
        self.folder = folder

    def name(self, table: str) -> str:
        return f"{self.connection.get_schema()}.{table}"

    def create(self, table: str, properties: str = "") -> None:
        self.session.sql(f"CREATE TABLE {self.name(table)} ({corpus.ddl()}){properties}").collect()

    def job(self, table: str) -> None:
        self.session.jobs.create(
            table, f"{self.folder / 'functions.py'}:{table}", self.name(table), volume="v", returns=corpus.ddl()
        )
        self.session.jobs.run(table)
        assert [failure.message for failure in self.session.jobs.failures(table)] == []

    def realtime(self, table: str) -> None:
        self.create(table)
        with self.connection.get_realtime_stream(table=table) as stream:
            for values in corpus.rows():
                row = stream.create_row()
                row.set_values(values)
                stream.apply(row)

    def realtime_arrow(self, table: str, properties: str = "") -> None:
        self.create(table, properties)
        with self.connection.get_realtime_stream(table=table) as stream:
            stream.apply_arrow(corpus.table())

    def parameters(self, table: str) -> None:
        """Structs have no parameters: they are written in the statement."""
        self.create(table)
        cursor, names = self.connection.cursor(), [name for name in corpus.schema().names if name != "struct"]
        fields = [field.name for field in corpus.schema().field("struct").type]
        struct = f"named_struct({', '.join(f'{name!r}, ?' for name in fields)})"
        for row in corpus.rows():
            row["list"] = row["list"] and tuple(row["list"])
        whole = corpus.rows()
        values = [value for row in whole for value in (*(row[name] for name in names), *_fields(row["struct"], fields))]
        each = ", ".join([*"?" * len(names), f"IF(?, {struct}, NULL)"])
        listed = ", ".join(f"`{name}`" for name in (*names, "struct"))
        cursor.execute(f"INSERT INTO {table} ({listed}) SELECT * FROM VALUES {', '.join([f'({each})'] * len(whole))}", values)

    def server(self, table: str) -> None:
        """Rows and parameters by Flight, as a client without Java sends them."""
        self.create(table)
        server = IngestServer(self.session)
        server.start()
        try:
            with volstream.connect(server.location, token=TOKEN, schema=self.connection.get_schema()) as client:
                with client.get_realtime_stream(table=table) as stream:
                    for values in corpus.rows():
                        row = stream.create_row()
                        row.set_values(values)
                        stream.apply(row)
                found = client.cursor().execute(f"SELECT * FROM {table}").fetch_arrow_table()
        finally:
            server.stop()
        assert corpus.differences(corpus.of_arrow(found)) == []

    def load(self, table: str) -> None:
        """Parquet files, whose times without a zone are in UTC."""
        (self.folder / "rows").mkdir()
        pq.write_table(corpus.table(), self.folder / "rows" / "a.parquet")
        self.session.volumes.create("rows", str(self.folder / "rows"), queue_type=QueueType.NONE)
        self.session.create_table_from_volume(self.name(table), "rows", schema=corpus.ddl().replace("_NTZ", ""))

    def upload(self, table: str) -> None:
        """As :meth:`load`."""
        file = self.folder / "upload.parquet"
        pq.write_table(corpus.table(), file)
        self.session.connector.upload_file(str(file), name=self.name(table), primary_key="k")

    def arrow(self, table: str) -> list[dict[str, Any]]:
        return corpus.of_arrow(self.session.sql(f"SELECT * FROM {self.name(table)}").toArrow())


def _fields(struct: dict[str, Any] | None, fields: list[str]) -> list[Any]:
    return [struct is not None, *((struct or {}).get(name) for name in fields)]


@contextmanager
def zone(name: str) -> Iterator[None]:
    """Has this process in a time zone: PySpark's rows, and what is shown to people, have local times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory, gateway: SparkGateway) -> Iterator[Ways]:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "files").mkdir()
    (folder / "files" / "a").write_text("x")
    (folder / "functions.py").write_text(FUNCTIONS)
    schema = f"s{uuid.uuid4().hex[:8]}"
    settings = config.load(folder / "home", settle_seconds=0.05, commit_seconds=3600.0).model_copy(
        update={"ingest_address": "127.0.0.1:0", "ingest_token": SecretStr(TOKEN)}
    )
    with zone("UTC"), Connection(_OpenHome(session_on(gateway, settings)), schema) as connection:
        connection.cursor().execute(f"CREATE SCHEMA {schema}")
        connection.session.volumes.create("v", str(folder / "files"), queue_type=QueueType.NONE)
        yield Ways(connection, folder)


#: Those without Spark, or with one statement of it, are short.
INTO: dict[str, Callable[[Ways, str], None]] = {
    "dicts": Ways.job,
    "realtime": Ways.realtime,
    "pairs": Ways.job,
    "arrow": Ways.job,
    "parameters": Ways.parameters,
    "upload": Ways.upload,
    "server": Ways.server,
    "load": Ways.load,
}


@pytest.mark.parametrize(
    "way", [way if way in ("dicts", "realtime") else pytest.param(way, marks=pytest.mark.long) for way in INTO]
)
def test_all_values_of_a_way_in_are_in_the_table(ways: Ways, way: str) -> None:
    INTO[way](ways, way)
    wanted = corpus.rows()
    for row in wanted if way in ("load", "upload") else ():
        row["local"] = row["local"] and row["local"].replace(tzinfo=UTC)
    assert corpus.differences(ways.arrow(way), wanted) == []


@pytest.fixture(scope="module")
def filled(ways: Ways) -> str:
    """A table of the whole corpus, whose changes are tracked, and a stream on it."""
    ways.realtime_arrow("filled", " TBLPROPERTIES ('change_tracking' = 'true')")
    ways.session.sql(f"CREATE TABLE STREAM {ways.name('s')} ON TABLE {ways.name('filled')}").collect()
    commit_tail(
        f"{ways.session.home.warehouse}/tables/{ways.name('filled').replace('.', '/')}", lambda: ways.session.home.gateway
    )
    return f"SELECT * FROM {ways.name('filled')} ORDER BY k"


def _no_json(text: str) -> NoReturn:
    raise AssertionError(f"JSON has no {text}")


def parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_no_json)


def documents() -> list[dict[str, Any]]:
    return [{name: corpus.in_json(value) for name, value in row.items()} for row in corpus.rows()]


def test_all_values_come_back_by_every_way_out(ways: Ways, filled: str) -> None:
    wanted, cursor = corpus.rows(), ways.connection.cursor()
    assert corpus.differences(corpus.of_arrow(cursor.execute(filled).fetch_arrow_table())) == []
    names = [column[0] for column in cursor.execute(filled).description or ()]
    found = [
        {name: one.asDict() if hasattr(one, "asDict") else one for name, one in zip(names, row, strict=True)}
        for row in cursor.fetchall()
    ]
    assert corpus.differences(found, wanted) == []
    with zone("America/New_York"):
        columns, rows = sql_rows(ways.session, filled)
        text = f"[{', '.join(map(to_json, rows))}]"
        assert columns == names
    assert corpus.differences(parsed(text), documents()) == []
    changes = ways.session.sql(f"SELECT * FROM {ways.name('s')}").toArrow().select(names)
    assert corpus.differences(corpus.of_arrow(changes)) == []


def test_pandas_keeps_whole_numbers_beside_null(ways: Ways, filled: str) -> None:
    frame = ways.connection.cursor().execute(filled).fetch_df()
    for row, found in zip(corpus.rows(), frame["big"], strict=True):
        assert corpus.written(found) == corpus.written(row["big"])


def test_the_console_shows_all_values(ways: Ways, filled: str) -> None:
    queries = Queries(ways.session)
    try:
        found = parsed(to_json(queries.run(filled, 1000)))
    finally:
        queries.stop()
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
    wanted = documents()
    for one in [*rows, *wanted]:
        del one["raw"]  # its size
        for name, value in one.items():  # long ones are cut
            one[name] = "long" if len(str(value)) > 500 else value
    assert corpus.differences(rows, wanted) == []


@pytest.mark.long
def test_a_dynamic_table_has_all_values(ways: Ways, filled: str) -> None:
    names = [name for name, kind, *_ in corpus.COLUMNS if "MAP" not in kind]
    listed = ", ".join(f"`{name}`" for name in ("k", *names))
    ways.session.dynamic_tables.create(ways.name("d"), f"SELECT {listed} FROM {ways.name('filled')}")
    ways.session.dynamic_tables.refresh(ways.name("d"))
    found = ways.session.sql(f"SELECT * FROM {ways.name('d')}").toArrow().to_pylist()
    wanted = [{name: row[name] for name in ("k", *names)} for row in corpus.rows()]
    for row in wanted:  # -0.0 and 0.0 are one content in SQL
        row |= {name: 0.0 for name in ("float", "double") if row[name] == 0}
        row["doubles"] = row["doubles"] and [0.0 if one == 0 else one for one in row["doubles"]]
    assert corpus.differences(found, wanted) == []


def test_every_text_is_a_key_of_its_own(ways: Ways) -> None:
    table = ways.session.source.create_table(ways.name("items"), "id")
    for turn in range(2):
        table.insert_all({"id": text, "text": text, "turn": turn} for text in corpus.TEXTS)
        assert [table.get(text) for text in corpus.TEXTS] == [{"id": text, "text": text, "turn": turn} for text in corpus.TEXTS]
        commit_tail(
            f"{ways.session.home.warehouse}/tables/{ways.name('items').replace('.', '/')}", lambda: ways.session.home.gateway
        )
    found = ways.session.sql(f"SELECT id FROM {ways.name('items')}").toArrow()["id"].to_pylist()
    assert sorted(found) == sorted(corpus.TEXTS)


@pytest.mark.long
def test_columns_may_have_any_name_that_delta_accepts(ways: Ways) -> None:
    wanted = {name: at for at, name in enumerate(corpus.COLUMN_NAMES)}
    columns = ", ".join(f"{quoted(name)} INT" for name in wanted)
    ways.session.sql(f"CREATE TABLE {ways.name('names')} (id STRING PRIMARY KEY, {columns})").collect()
    for _ in range(2):
        with ways.connection.get_realtime_stream(table="names", operate=RealtimeOperation.CDC) as stream:
            row = stream.create_row()
            row.set_values({"id": "x", **wanted})
            stream.apply(row)
        query = f"SELECT {', '.join(map(quoted, wanted))} FROM {ways.name('names')}"
        assert ways.session.sql(query).toArrow().to_pylist() == [wanted]
        commit_tail(
            f"{ways.session.home.warehouse}/tables/{ways.name('names').replace('.', '/')}", lambda: ways.session.home.gateway
        )


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def test_a_table_for_people_has_all_digits(ways: Ways) -> None:
    query = (
        "SELECT TIMESTAMP'0001-01-01 00:00:00Z' AS a, TIMESTAMP'2026-10-25 01:30:00.000001Z' AS b, "
        "TIMESTAMP_NTZ'2026-03-29 02:30:00' AS c, 0.1D + 0.2D AS d, 123456789.125D AS e, CAST('-0.0' AS DOUBLE) AS f, 1e23D AS g"
    )
    with zone("Europe/Berlin"):
        (row,) = sql_rows(ways.session, query)[1]
        text = [shown(one, exact=True) for one in row.values()]
    assert text[1:] == [
        "2026-10-25 02:30:00.000001",
        "2026-03-29 02:30:00",
        "0.30000000000000004",
        "123456789.125",
        "-0",
        "1e+23",
    ]
    assert text[0].startswith("0001-01-01 00:5")


def test_every_text_is_an_event(ways: Ways) -> None:
    stream = ways.session.source.create_stream(ways.name("events"))
    stream.upload_all([*corpus.TEXTS, *({text: text} for text in corpus.TEXTS)])
    stream.upload_all([text.encode() for text in corpus.TEXTS], format="bytes")
    found = ways.session.sql(f"SELECT event, payload FROM {ways.name('events')}").toArrow().to_pylist()
    events = [json.loads(row["event"]) for row in found if row["event"] is not None]
    assert sorted(event for event in events if isinstance(event, str)) == sorted(corpus.TEXTS)
    assert sorted(next(iter(event.items())) for event in events if isinstance(event, dict)) == [
        (text, text) for text in sorted(corpus.TEXTS)
    ]
    assert sorted(row["payload"].decode() for row in found if row["payload"] is not None) == sorted(corpus.TEXTS)


def test_no_two_columns_of_a_result_are_taken_for_one(ways: Ways) -> None:
    columns, rows = sql_rows(ways.session, "SELECT 1 AS a, 2 AS a, 3 AS a_2, 4 AS A")
    assert columns == ["a", "a_3", "a_2", "A"]
    assert [*rows] == [{"a": 1, "a_3": 2, "a_2": 3, "A": 4}]


@pytest.mark.parametrize("columns", ["`a b` INT", "`a;b` INT", "`${x}` INT", "a STRUCT<b: ARRAY<STRUCT<`c=d`: INT>>>"])
def test_a_column_that_delta_refuses_is_refused_by_a_job(ways: Ways, columns: str) -> None:
    with pytest.raises(InvalidValueError, match="cannot be in a table"):
        ways.session.jobs.create("refused", f"{ways.folder / 'functions.py'}:dicts", ways.name("r"), volume="v", returns=columns)


def test_no_name_of_a_file_is_taken_for_another(place: Place) -> None:
    place.session.volumes.create("odd", str(place.folder), queue_type=QueueType.NONE, ignores=())
    for at, name in enumerate(corpus.FILES):
        file = place.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(at))
    place.job(
        "def f(file):\n    return {'n': int(file.read_text()), 'p': file.relative_path}\n",
        returns="n INT, p STRING",
        volume="odd",
    )
    for turn in range(2):
        place.run()
        assert place.session.jobs.failures("j") == []
        wanted = [(name, name, at + 1000 * turn) for at, name in enumerate(corpus.FILES)]
        assert place.table("_file_path, p, n") == sorted(wanted)
        for at, name in enumerate(corpus.FILES):
            (place.folder / name).write_text(str(at + 1000))
        place.session.volumes.refresh("odd")
    for name in corpus.FILES:
        assert [one.what for one in tell(place.session.home, "odd", name)][-1] == "exists now", name

"""``session.source.create_stream``: events in each format, their retention, and what reads them.

All tests share one engine, whose catalog knows tables by name: each that reads by SQL has names of its own.
"""

from __future__ import annotations

import io
import json
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from deltalake import DeltaTable

from tests.integration.conftest import shared
from tests.waiting import eventually
from volstream.api.objects.sources import RETENTION_POLICY
from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.errors import (
    AlreadyExistsError,
    DependencyError,
    EngineLostError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
)
from volstream.ingest.sources.tables import expire_events
from volstream.server.daemon.arrivals import Committer
from volstream.spark.session import SparkGateway
from volstream.tables.delta import durable, places
from volstream.tables.tails.tail import TailedTable


def events(session: Session, name: str) -> list[Any]:
    found = session.sql(f"SELECT event FROM {name} ORDER BY arrived_at, event").collect()
    return [None if row.event is None else json.loads(row.event) for row in found]


def test_the_snippet_of_the_document_runs(session: Session) -> None:
    stream = session.source.create_stream(name="MyStream")
    stream.upload({"key": "value"}, format="json")
    (row,) = session.sql("SELECT * FROM MyStream").collect()
    assert (row.format, json.loads(row.event), row.payload) == ("json", {"key": "value"}, None)
    assert datetime.now(UTC) - timedelta(minutes=5) < row.arrived_at.astimezone(UTC) <= datetime.now(UTC)


def test_events_have_the_formats_that_were_given(session: Session) -> None:
    stream = session.source.create_stream("formats")
    stream.upload(["a", 1, None, {"ü": 0.5}])
    stream.upload({"at": datetime(2026, 1, 2, tzinfo=UTC), "cost": Decimal("1.50"), "raw": b"\x00"})
    stream.upload(b"\x00\xff", format="bytes")
    avro = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "long"]}]}
    fastavro.writer(avro, schema, [{"n": 1}, {"n": None}])
    stream.upload(avro.getvalue(), format="avro")
    found = session.sql("SELECT format, event, payload FROM formats ORDER BY arrived_at, event").collect()
    assert [(row.format, row.event and json.loads(row.event), row.payload) for row in found] == [
        ("json", ["a", 1, None, {"ü": 0.5}], None),
        ("json", {"at": "2026-01-02T00:00:00+00:00", "cost": "1.50", "raw": "AA=="}, None),
        ("bytes", None, b"\x00\xff"),
        ("avro", {"n": 1}, None),
        ("avro", {"n": None}, None),
    ]


def an_avro_file() -> bytes:
    """A file with one compressed block."""
    buffer = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
    fastavro.writer(buffer, schema, [{"a": str(one)} for one in range(50)], codec="deflate", sync_marker=b"-" * 16)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("event", "format_", "reason"),
    [
        ({"a": float("nan")}, "json", "Out of range float"),
        ({"a": object()}, "json", "cannot be stored as JSON: object"),
        ({"a": 1}, "bytes", "is bytes, not dict"),
        ("text", "avro", "is bytes, not str"),
        (b"text", "avro", "is not an Avro file"),
        (
            an_avro_file()[:-80] + b"\xff" * 20 + an_avro_file()[-60:],
            "avro",
            "is not an Avro file: error: Error -3 while decompressing",
        ),
        (an_avro_file().replace(b'"name"', b'"nama"'), "avro", "is not an Avro file: SchemaParseException"),
        ({}, "xml", "'xml' is not a format of events"),
    ],
)
def test_an_event_that_does_not_have_its_format_is_refused(
    without_engine: Session, event: object, format_: str, reason: str
) -> None:
    stream = without_engine.source.create_stream("s")
    with pytest.raises(InvalidValueError, match=reason):
        stream.upload_all([event], format_)


@pytest.mark.long
def test_half_a_character_in_an_event_is_stored_escaped(without_engine: Session) -> None:
    stream = without_engine.source.create_stream("s")
    stream.upload({"a": "\ud800é"})
    stream.upload({"a": "é"})
    location = places.table_location(without_engine.home.warehouse, stream.source.name)
    found = TailedTable.open(location)
    assert found is not None
    stored = found.tail.rows(0, found.tail.newest)["event"].to_pylist()
    assert stored == [r'{"a":"\ud800\u00e9"}', '{"a":"é"}']


@pytest.mark.long
def test_streams_and_dynamic_tables_follow_events(session: Session) -> None:
    stream = session.source.create_stream("clicks")
    session.sql("CREATE STREAM new_clicks ON TABLE clicks").collect()
    session.sql("CREATE DYNAMIC TABLE counted AS SELECT count(*) AS n FROM clicks").collect()
    stream.upload_all({"n": number} for number in range(12_000))
    assert len(events(session, "clicks")) == 12_000
    session.source.close()  # commits
    assert session.sql("SELECT count(*) AS n FROM new_clicks WHERE __change_type = 'INSERT'").collect()[0].n == 12_000
    session.dynamic_tables.refresh("counted")
    assert session.sql("SELECT n FROM counted").collect()[0].n == 12_000


def test_a_source_that_a_stream_reads_is_dropped_by_no_command(session: Session) -> None:
    session.source.create_stream("watched")
    session.sql("CREATE STREAM watching ON TABLE watched").collect()
    with pytest.raises(ObjectInUseError, match="The stream watching reads the table watched"):
        session.source.drop("watched")
    with pytest.raises(ObjectInUseError, match="The stream watching reads the table watched"):
        session.sql("DROP TABLE watched").collect()
    session.sql("DROP STREAM watching").collect()
    session.sql("DROP TABLE watched").collect()
    assert session.source.list() == []


def test_events_are_received_and_committed_without_an_engine(without_engine: Session, settings: Settings) -> None:
    session = without_engine
    stream = session.source.create_stream("s")

    def upload() -> None:
        for number in range(10):
            stream.upload({"n": number})

    threads = [threading.Thread(target=upload) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    session.source.close()
    assert DeltaTable(f"{session.home.warehouse}/tables/public/s").count() == 40


@pytest.mark.long
def test_old_events_are_deleted_once_the_engine_is_up_and_others_stay(settings: Settings, gateway: SparkGateway) -> None:
    asked, up = threading.Event(), threading.Event()

    def connect() -> SparkGateway:
        if up.is_set():
            return shared(gateway)
        asked.set()
        raise EngineLostError("The Spark engine is starting.")

    with Session(settings.model_copy(update={"commit_seconds": 0.1}), connect) as session:
        stream = session.source.create_stream("fading", retention_policy="1 second")
        kept = session.source.create_stream("kept", retention_policy=timedelta(days=30))
        for one in (stream, kept):
            one.upload({"n": 1})
        stop = Stop()
        time.sleep(1.1)
        stream.upload({"n": 2})
        session.source.close()
        committer = threading.Thread(target=Committer(session.home, session.home.settings, stop).run)
        committer.start()
        try:
            assert asked.wait(30)
            up.set()
            eventually(lambda: len(events(session, "fading")) <= 1, 60)
        finally:
            stop.set()
            committer.join()
        assert len(events(session, "kept")) == 1
        assert not expire_events(session.home, session.home.catalog.sources.get(Name.parse("kept")))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30 days", 30 * 86400), ("1 week", 7 * 86400), ("12 hours", 43200), ("90s", 90), ("forever", None), (None, None)],
)
def test_a_retention_is_a_duration(text: str | None, seconds: int | None) -> None:
    assert RETENTION_POLICY.read(text) == seconds


@pytest.mark.parametrize("given", [timedelta(0), timedelta(seconds=-1), timedelta(milliseconds=1), "500ms", timedelta.max])
def test_a_retention_has_bounds(given: str | timedelta) -> None:
    with pytest.raises(InvalidValueError):
        RETENTION_POLICY.read(given)


def test_what_is_wrong_with_a_source_is_told(without_engine: Session) -> None:
    source = without_engine.source
    source.create_stream("s")
    with pytest.raises(AlreadyExistsError, match="already a table or stream s"):
        source.create_stream("S")
    source.create_stream("s", if_not_exists=True).upload(1)
    with pytest.raises(NotFoundError, match="There is no source none"):
        source.get_stream("none")
    with pytest.raises(InvalidValueError, match="s is not a table of items"):
        source.get_table("s")
    with pytest.raises(InvalidValueError, match="'soon' is not a duration"):
        source.create_stream("t", retention_policy="soon")
    assert [str(one.name) for one in source.list()] == ["s"]
    assert source.drop("s")
    assert not source.drop("s", if_exists=True)
    source.create_stream("s").upload(2)


def test_an_immutable_source_cannot_be_written_by_sql(session: Session) -> None:
    session.source.create_table("still", "id", [{"id": 1}], immutable=True)
    with pytest.raises(InvalidStateError, match="still is immutable"):
        session.sql("INSERT INTO still VALUES ('2', '{}')").collect()
    with pytest.raises(InvalidStateError, match="still is immutable"):
        session.sql("DELETE FROM still").collect()


def test_events_whose_commit_stands_are_not_sent_again(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails after the commit would make the caller repeat the call, and store the events twice."""
    stream = session.source.create_stream("repeated")
    stream.upload({"n": 1})
    failures = iter([DependencyError("The log is away for a moment.")])

    def record_commit(_table_id: str, _version: int) -> None:
        if (failure := next(failures, None)) is not None:
            raise failure

    monkeypatch.setattr(durable, "record_commit", record_commit)
    stream.upload({"n": 2})
    assert next(failures, None) is None
    stream.upload({"n": 3})
    assert events(session, "repeated") == [{"n": 1}, {"n": 2}, {"n": 3}]

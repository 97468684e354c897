"""Topics of a real broker: every message is in the table, once, whatever the brokers do and whoever reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests import raw_kafka
from tests.integration.files.kafka.conftest import Kept
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.catalog.leases import of_commits, of_source
from volstream.errors import AlreadyExistsError, FencedError, InvalidStateError, InvalidValueError, NotFoundError, TailFullError
from volstream.files.kafka.client import TopicReader
from volstream.ingest.sources import kafka as of_messages
from volstream.ingest.sources.kafka import TopicIngestion, TopicSource
from volstream.tables.delta import places
from volstream.tables.tails.tail import TailedTable
from volstream.tables.tails.writer import MAX_ROWS, Flush, TailWriter


def source(kept: Kept, name: str = "t") -> TopicIngestion:
    return TopicIngestion(kept.session.home, kept.session.source.get(name), lambda _: None)


@contextmanager
def caught_up(kept: Kept) -> Iterator[tuple[str, TopicIngestion]]:
    """A topic with one message, and the reader of its table ``t``, which has read it."""
    topic = kept.broker.topic()
    kept.broker.send(topic, "1")
    kept.create("t", topic)
    with source(kept) as reading:
        while not reading.has_caught_up:
            reading.step()
        yield topic, reading


def keep_on(reading: TopicIngestion) -> None:
    """Reads until that is an error."""
    while True:
        reading.step()


def test_a_topic_is_read_while_the_leaders_of_its_partitions_are_elected(kept: Kept) -> None:
    for _ in range(5):
        reader = TopicReader([kept.broker.address], kept.broker.topic(partitions=8), {})
        with reader:
            assert reader.bounds(range(8)) == (dict.fromkeys(range(8), 0),) * 2


def test_what_a_topic_had_and_what_comes_is_kept_as_it_is(kept: Kept) -> None:
    topic = kept.broker.topic(2)
    kept.broker.send(topic, '{"n": 1}', key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=1_700_000_000_123)
    kept.broker.send(topic, "not JSON", None, b"\xff\x00", '{"n": NaN}', " [1, 2] ", '"\\ud800"', partition=1)
    kept.create("t", topic)
    assert kept.poll() == 7
    kept.broker.send(topic, "2")
    assert kept.poll() == 1
    assert kept.poll() == 0
    rows = kept.rows()
    assert [(row["partition"], row["offset"], row["event"], row["payload"]) for row in rows] == [
        (0, 0, '{"n": 1}', None),
        (0, 1, "2", None),
        (1, 0, None, b"not JSON"),
        (1, 1, None, None),
        (1, 2, None, b"\xff\x00"),
        (1, 3, None, b'{"n": NaN}'),
        (1, 4, " [1, 2] ", None),
        (1, 5, '"\\ud800"', None),
    ]
    first = rows[0]
    assert (first["key"], first["topic"], first["format"]) == (b"k", topic, "json")
    assert first["headers"] == [{"name": "a", "value": b"1"}, {"name": "a", "value": None}]
    assert first["timestamp"] == datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    assert first["arrived_at"] <= datetime.now(UTC)
    assert (rows[2]["key"], rows[2]["headers"]) == (None, [])


def test_a_header_whose_name_is_no_text_stops_nothing_however_often_it_is_read(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "1")
    headers = [(b"a", b"1"), (b"\xff\xfe", b"v"), (b"b", b""), (b"\xc3", b"w"), ("ü".encode(), b"2")]
    raw_kafka.send(kept.broker.address, topic, b"2", headers)
    kept.broker.send(topic, "3")
    kept.create("t", topic)
    with TopicSource.of(kept.session.source.get("t")).reader() as reader:
        reader.assign({0: 0})
        read: list[of_messages.KafkaMessage] = []
        while len(read) < 3:
            read += reader.poll({0: 3}).messages.get(0, [])
        for _ in range(5):  # as after a full disk
            assert of_messages.rows(read, "json", topic, 0, datetime.now(UTC))["event"].to_pylist() == ["1", "2", "3"]
    assert kept.poll() == 3
    assert kept.error() == ""
    found = [(header["name"], header["value"]) for header in kept.rows()[1]["headers"]]
    assert found == [("a", b"1"), (of_messages.UNREADABLE, b"v"), ("b", b""), (of_messages.UNREADABLE, b"w"), ("ü", b"2")]


@pytest.mark.parametrize("source_format", ["bytes", "avro"])
def test_values_of_other_formats_are_bytes(kept: Kept, source_format: str) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "{}", b"\x00\x01", None, timestamp=2**62)
    kept.create("t", topic, format=source_format)
    assert kept.poll() == 3
    rows = kept.rows()
    assert [(row["event"], row["payload"]) for row in rows] == [(None, b"{}"), (None, b"\x00\x01"), (None, None)]
    assert {row["format"] for row in rows} == {source_format}
    assert {row["timestamp"] for row in rows} == {None}, "Spark has no such time"


def test_many_small_and_a_few_large_messages_are_read_in_batches(kept: Kept) -> None:
    topic = kept.broker.topic(3, **{"max.message.bytes": str(12 << 20)})
    producer = kept.broker.producer(**{"message.max.bytes": str(12 << 20), "linger.ms": "20"})
    for number in range(45_000):
        producer.produce(topic, str(number), partition=number % 3)
        if number % 10_000 == 0:
            producer.flush()
    for _ in range(3):
        producer.produce(topic, random.Random(1).randbytes(9 << 20), partition=0)
    assert producer.flush(60) == 0
    kept.create("t", topic)
    assert kept.poll() == 45_003
    rows = kept.rows()
    assert sorted(int(row["event"]) for row in rows if row["event"]) == list(range(45_000))
    assert [len(row["payload"]) for row in rows if row["payload"]] == [9 << 20] * 3


def test_transactions_leave_gaps_and_what_was_aborted_is_not_read(kept: Kept) -> None:
    topic = kept.broker.topic()
    producer = kept.broker.producer(**{"transactional.id": topic})
    producer.init_transactions(30)
    for value, commits in (("1", True), ("2", False), ("3", True)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(30) == 0
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    kept.create("t", topic)
    assert kept.poll() == 2
    assert kept.read() == [(0, 0, "1"), (0, 4, "3")]
    kept.broker.send(topic, "4")
    assert kept.poll() == 1
    assert kept.read()[-1] == (0, 6, "4")
    producer.begin_transaction()
    producer.produce(topic, "5")
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    assert kept.poll() == 0
    kept.broker.send(topic, "6")
    kept.broker.cut(topic, 0, 9)
    assert kept.poll() == 1
    assert kept.error() == "", "only what was aborted was deleted before it was read"
    assert kept.read()[-1] == (0, 9, "6")


def test_partitions_that_are_added_are_read_from_their_first_message(kept: Kept) -> None:
    with caught_up(kept) as (topic, reading):
        kept.broker.add_partitions(topic, 2)
        kept.broker.send(topic, "2", partition=1)
        kept.broker.send(topic, "3")
        while len(kept.read()) < 3:
            reading.step()
    assert kept.read() == [(0, 0, "1"), (0, 1, "3"), (1, 0, "2")]


@pytest.mark.long
def test_of_two_that_read_at_once_one_gets_on_and_nothing_is_there_twice(kept: Kept) -> None:
    topic = kept.broker.topic(2)
    kept.broker.send(topic, "1", "2")
    kept.create("t", topic)
    with source(kept) as zombie, source(kept) as reader:
        while not zombie.has_caught_up:
            zombie.step()
        while not reader.has_caught_up:
            reader.step()
        kept.broker.send(topic, "3")
        kept.broker.send(topic, "4", partition=1)
        while len(kept.read()) < 4:
            reader.step()
        kept.broker.send(topic, "5")
        with pytest.raises(FencedError, match="Another process has written"):
            keep_on(zombie)
        while len(kept.read()) < 5:
            reader.step()
    assert [text for _, _, text in kept.read()] == ["1", "2", "3", "5", "4"]


@pytest.mark.long
def test_a_full_tail_is_committed_by_its_reader_and_while_another_does_that_nothing_is_lost(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.create("t", topic)
    location = places.table_location(kept.session.home.warehouse, Name.parse("t"))
    tail = TailWriter(location)
    count = MAX_ROWS // 4
    constants = {"arrived_at": datetime.now(UTC), "format": "json", "topic": topic, "partition": -1, "offset": 0}
    columns = [
        pa.repeat(pa.scalar(constants[column.name], column.type), count)
        if column.name in constants
        else pa.nulls(count, column.type)
        for column in tail.columns
    ]
    rows = pa.table([pa.repeat("insert", count), *columns], names=["__operation", *tail.columns.names])
    for number in range(4):
        tail.append([Flush("x", number + 1, rows)])
    kept.broker.send(topic, "1", "2")
    leases = kept.session.home.catalog.leases
    leases.acquire(of_commits(location), "another/1/1/1", "committing", 60)
    with source(kept) as reading:
        for _ in range(2):
            with pytest.raises(TailFullError):
                keep_on(reading)
        leases.release(of_commits(location), "another/1/1/1")
        assert reading.step() == 2
    assert DeltaTable(location).count() == 4 * count
    found = TailedTable.open(location)
    assert found is not None
    assert found.tail.rows(found.moved, found.tail.newest)["event"].to_pylist() == ["1", "2"]


def test_a_lease_keeps_a_second_reader_from_beginning(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.create("t", topic)
    catalog, source = kept.session.home.catalog, kept.session.source.get("t")
    catalog.leases.acquire(of_source(source.id), "another/1/1/1", "daemon's reader of source t", 60)
    with pytest.raises(InvalidStateError, match="in use: daemon's reader of source t"):
        kept.poll()


def test_a_topic_that_was_deleted_and_created_again_is_refused(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "1", "2")
    kept.create("t", topic)
    kept.poll()
    kept.broker.delete(topic)
    with pytest.raises(NotFoundError, match="There is no topic"):
        kept.poll()
    kept.broker.topic(name=topic)
    kept.broker.send(topic, "a", "b", "c", "d")
    for _ in range(2):
        with pytest.raises(InvalidStateError, match="was deleted and re-created"):
            kept.poll()
    assert "was deleted and re-created" in kept.error()
    assert [text for _, _, text in kept.read()] == ["1", "2"]


def test_a_topic_that_is_replaced_while_it_is_read_is_refused(kept: Kept) -> None:
    with caught_up(kept) as (topic, reading):
        kept.broker.delete(topic)
        kept.broker.topic(name=topic)
        kept.broker.send(topic, "a", "b", "c")
        with pytest.raises(InvalidStateError, match="was deleted and re-created"):
            keep_on(reading)
    assert kept.read() == [(0, 0, "1")]


def test_messages_that_the_broker_deleted_before_they_were_read_are_reported_and_the_rest_is_read(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "0", "1")
    kept.broker.cut(topic, 0, 1)
    kept.create("t", topic)
    assert kept.poll() == 1
    assert kept.error() == "", "a table begins with what there is"
    kept.broker.send(topic, "2", "3", "4")
    kept.broker.cut(topic, 0, 4)
    assert kept.poll() == 1
    assert f"deleted messages 2 to 3 of partition 0 of topic {topic} before they were read" in kept.error()
    assert [text for _, _, text in kept.read()] == ["1", "4"]
    assert kept.poll() == 0
    assert kept.error() == ""


def test_a_tail_that_was_replaced_does_not_begin_again(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "1")
    kept.create("t", topic)
    kept.poll()
    places.remove(f"{kept.session.home.warehouse}/tables/public/t/_tail")
    with pytest.raises(InvalidStateError, match="The table t lost its record of the offsets"):
        kept.poll()
    assert kept.read() == [(0, 0, "1")]


def test_a_definition_is_checked_before_it_is_stored(kept: Kept) -> None:
    for options, said in (
        ({"format": "xml"}, "The format cannot be 'xml'"),
        ({"properties": {"group.ids": "x"}}, 'No such configuration property: "group.ids"'),
        ({"properties": {"auto.offset.reset": "latest"}}, "The property auto.offset.reset is set by volstream"),
        ({"properties": {"error_cb": "x"}}, "expected error_cb property as a callable"),
        ({"properties": {"sasl.password": "secret"}}, "sasl.password is a secret"),
        ({"retention_policy": "soon"}, "not a duration"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            kept.create("t", "topic", **options)
    with pytest.raises(InvalidValueError, match="'localhost' is not the address of a broker"):
        kept.session.connector.upload_kafka(["localhost"], "t")
    assert kept.session.source.list() == []
    kept.create("t", "topic", retention_policy="30 days", properties={"sasl.password": "${env:NOWHERE}"})
    assert kept.session.source.get("t").retention_policy == 30 * 86400
    with pytest.raises(AlreadyExistsError):
        kept.create("t", "topic")
    with pytest.raises(InvalidValueError, match="The environment variable NOWHERE is not set"):
        kept.poll()
    assert "NOWHERE" in kept.error()


@pytest.mark.long
def test_a_reader_that_is_stopped_leaves_the_rest_for_later(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "1")
    kept.create("t", topic)
    stop = Stop()
    stop.set()
    assert kept.session.connector.poll("t", stop) == 0
    assert kept.poll() == 1

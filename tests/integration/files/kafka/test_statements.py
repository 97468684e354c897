"""Topics in SQL: tables like any others, which streams and dynamic tables read, until they are dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker import Broker
from tests.integration.conftest import Home
from volstream.base.model.names import Name
from volstream.errors import AlreadyExistsError, InvalidValueError
from volstream.ingest.sources.kafka import TopicIngestion

AMOUNTS = "SELECT CAST(get_json_object(event, '$.amount') AS INT) AS amount, CAST(key AS STRING) AS key FROM"


def create(home: Home, broker: Broker, topic: str, name: str = "t$", more: str = "") -> str:
    status: str = home.sql(
        f"CREATE EXTERNAL TABLE {name} USING kafka OPTIONS "
        f"('kafka.bootstrap.servers' = '{broker.address}', 'subscribe' = '{topic}'{more})"
    )[0]["status"]
    return status


@pytest.mark.long
def test_a_topic_is_a_table_for_queries_and_streams_and_ends_with_its_table(home: Home, broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, '{"amount": 5}', key=b"a")
    assert create(home, broker, topic) == f"External table {home.name('t')} is created."
    assert create(home, broker, topic, "IF NOT EXISTS t$") == f"External table {home.name('t')} exists."
    with pytest.raises(AlreadyExistsError):
        create(home, broker, topic)
    home.sql("CREATE TABLE STREAM s$ ON TABLE t$")
    connector = home.session.connector
    assert connector.poll(home.name("t")) == 1
    assert home.rows(f"{AMOUNTS} s$") == [(5, "a")], "what a poll has read is committed"
    broker.send(topic, '{"amount": 7}', key=b"b", partition=1)
    with TopicIngestion(home.session.home, home.session.source.get(home.name("t")), lambda _: None) as reading:
        while not reading.step():
            pass
    assert home.rows(f"{AMOUNTS} t$") == [(5, "a"), (7, "b")], "queries see what has arrived"
    assert home.rows(f"{AMOUNTS} s$") == [(5, "a")], "streams see what is committed"
    connector.poll(home.name("t"))
    assert home.rows(f"{AMOUNTS} s$") == [(5, "a"), (7, "b")]

    home.sql("DROP STREAM s$; DROP TABLE t$")
    assert home.session.source.list() == []
    assert not Path(home.location("t")).exists()
    create(home, broker, topic)
    assert connector.poll(home.name("t")) == 2, "it begins again"


@pytest.mark.long
def test_a_dynamic_table_reads_a_topic(home: Home, broker: Broker) -> None:
    topic = broker.topic()
    create(home, broker, topic)
    home.sql(f"CREATE DYNAMIC TABLE d$ AS {AMOUNTS} t$")
    broker.send(topic, '{"amount": 7}', key=b"b")
    home.session.connector.poll(home.name("t"))
    home.sql("REFRESH DYNAMIC TABLE d$")
    assert home.rows("SELECT * FROM d$") == [(7, "b")]


@pytest.mark.long
def test_a_column_that_is_added_is_null_in_messages(home: Home, broker: Broker) -> None:
    topic = broker.topic()
    create(home, broker, topic)
    home.sql("ALTER TABLE t$ ADD COLUMNS (note STRING)")
    broker.send(topic, "1")
    assert home.session.connector.poll(home.name("t")) == 1
    home.sql("UPDATE t$ SET note = 'x'")
    broker.send(topic, "2")
    assert home.session.connector.poll(home.name("t")) == 1
    assert home.rows("SELECT event, note FROM t$") == [("1", "x"), ("2", None)]


def test_options_are_those_of_sparks_source(home: Home, broker: Broker) -> None:
    create(
        home,
        broker,
        "topic",
        more=", 'format' = 'bytes', 'startingOffsets' = 'earliest', 'retention_policy' = '2 days', "
        "'kafka.security.protocol' = 'SASL_SSL', 'kafka.sasl.password' = '${env:PASSWORD}'",
    )
    found = home.session.source.get(home.name("t"))
    assert (found.name, found.retention_policy) == (Name.parse(home.name("t")), 2 * 86400)
    assert {key: found.options[key] for key in ("format", "topic", "properties")} == {
        "format": "bytes",
        "topic": "topic",
        "properties": {"security.protocol": "SASL_SSL", "sasl.password": "${env:PASSWORD}"},
    }
    for more, said in (
        (", 'startingOffsets' = 'latest'", "read from their earliest message"),
        (", 'maxOffsetsPerTrigger' = '5'", "no option 'maxOffsetsPerTrigger'"),
    ):
        with pytest.raises(InvalidValueError, match=said):
            create(home, broker, "topic", "u$", more)
    with pytest.raises(InvalidValueError, match="needs the option 'subscribe'"):
        home.sql("CREATE EXTERNAL TABLE u$ USING kafka OPTIONS ('kafka.bootstrap.servers' = 'a:1')")

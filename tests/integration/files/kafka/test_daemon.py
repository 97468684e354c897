"""The daemon's part: it follows the catalog, reads what comes, and tells what is wrong until it is well again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from tests.integration.files.kafka.conftest import Kept, no_engine
from tests.waiting import eventually
from volstream.base.model.names import Name
from volstream.base.threads import Stop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import of_source
from volstream.home import Home
from volstream.ingest.sources.tables import end_source
from volstream.server.daemon.arrivals import SourceWorkers


@contextmanager
def reading(kept: Kept) -> Iterator[SourceWorkers]:
    """A daemon's reader of all topics, on a home of its own."""
    stop = Stop()
    with Home(kept.session.home.settings, no_engine) as home:
        found = SourceWorkers(home, stop)
        thread = threading.Thread(target=found.run)
        thread.start()
        try:
            yield found
        finally:
            stop.set()
            thread.join()


def texts(kept: Kept, name: str = "t") -> list[str | None]:
    return [text for _, _, text in kept.read(name)]


def test_topics_are_read_as_they_are_named_and_messages_as_they_come(kept: Kept) -> None:
    first, second = kept.broker.topic(), kept.broker.topic()
    kept.broker.send(first, "1")
    with reading(kept):
        kept.create("t", first)
        eventually(lambda: texts(kept) == ["1"], 20)
        kept.broker.send(first, "2")
        kept.create("u", second)
        kept.broker.send(second, "3")
        eventually(lambda: texts(kept) == ["1", "2"], 20)
        eventually(lambda: texts(kept, "u") == ["3"], 20)
    assert {*kept.session.home.catalog.tails.list()} == {Name.parse("t"), Name.parse("u")}, "the committer knows them"


def test_what_is_wrong_with_a_topic_is_told_until_it_is_well_and_holds_no_other_up(kept: Kept) -> None:
    missing, there = f"later-{kept.broker.topic()}", kept.broker.topic()
    kept.create("t", missing)
    kept.create("u", there)
    with reading(kept) as found:
        eventually(lambda: "There is no topic" in kept.error(), 20)
        assert "There is no topic" in found.failing["t"]
        [wrong] = kept.session.home.catalog.conditions.of(ConditionKind.SOURCE).values()
        assert wrong.since <= datetime.now(UTC)
        kept.broker.send(there, "1")
        eventually(lambda: texts(kept, "u") == ["1"], 20)
        kept.broker.topic(name=missing)
        kept.broker.send(missing, "2")
        eventually(lambda: texts(kept) == ["2"], 60)
        eventually(lambda: not kept.error() and not found.failing, 20)
        assert kept.session.home.catalog.conditions.of(ConditionKind.SOURCE) == {}


@pytest.mark.long
def test_a_broker_that_comes_back_is_read_on(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "1")
    kept.create("t", topic)
    with reading(kept) as found:
        eventually(lambda: texts(kept) == ["1"], 20)
        kept.broker.stop()
        try:
            eventually(lambda: "do not answer" in kept.error(), 30)
            assert "Connection refused" in kept.error()
        finally:
            kept.broker.start()
        kept.broker.send(topic, "2")
        eventually(lambda: texts(kept) == ["1", "2"], 60)
        eventually(lambda: not kept.error() and not found.failing, 20)


@pytest.mark.long
def test_messages_that_are_lost_are_told_for_as_long_as_the_daemon_runs(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.create("t", topic)
    kept.broker.send(topic, "1")
    kept.poll()
    kept.broker.send(topic, "2", "3")
    kept.broker.cut(topic, 0, 2)
    with reading(kept):
        eventually(lambda: texts(kept) == ["1", "3"], 20)
        kept.broker.send(topic, "4")
        eventually(lambda: texts(kept) == ["1", "3", "4"], 20)
        assert "deleted messages 1 to 1" in kept.error()
    with reading(kept):
        eventually(lambda: not kept.error(), 20)


@pytest.mark.long
def test_of_two_daemons_one_reads_and_the_other_takes_over(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.create("t", topic)
    with reading(kept) as other:
        with reading(kept) as one:
            for number in range(3):
                kept.broker.send(topic, str(number))
                eventually(lambda number=number: len(kept.read()) == number + 1, 20)  # type: ignore[misc]
            assert not one.failing
        kept.broker.send(topic, "3")
        eventually(lambda: texts(kept) == ["0", "1", "2", "3"], 20)
        assert not other.failing


def test_a_source_that_ends_is_not_written_any_more(kept: Kept) -> None:
    topic = kept.broker.topic()
    kept.broker.send(topic, "1")
    kept.create("t", topic)
    with reading(kept):
        eventually(lambda: texts(kept) == ["1"], 20)
        source = kept.session.source.get("t")
        end_source(kept.session.home.catalog, source)
        assert kept.session.source.list() == []
        kept.broker.send(topic, "2")
        held = kept.session.home.catalog.leases.acquire(of_source(source.id), "me", "a look", 60)
        assert held is None, "nobody reads it"
    assert texts(kept) == ["1"]

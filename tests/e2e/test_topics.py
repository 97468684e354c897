"""A Kafka topic under the real daemon: read, committed, watched, and dropped while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker import Broker, broker
from tests.e2e.homes import Home, patiently

__all__ = ["broker"]

pytestmark = pytest.mark.long


def test_a_daemon_reads_topics_and_tells_how_they_are(home: Home, name: str, broker: Broker) -> None:
    topic = broker.topic(2)
    broker.send(topic, '{"n": 1}', '{"n": 2}')

    def create(table: str, source: str) -> None:
        home.ok(
            "sql",
            f"CREATE EXTERNAL TABLE {table} USING kafka OPTIONS "
            f"('kafka.bootstrap.servers' = '{broker.address}', 'subscribe' = '{source}')",
        )

    create(name, topic)
    home.ok("create-stream", f"{name}_s", "--table", name)
    with home.daemon(COMMIT_SECONDS="1") as daemon:
        patiently(lambda: f'volstream_source_messages_total{{source="{name}"}} 2.0' in daemon.get("/metrics")[1])
        create(f"{name}_later", f"later-{topic}")
        patiently(lambda: f'volstream_source_failing{{source="{name}_later"}} 1.0' in daemon.get("/metrics")[1])
        status, said = daemon.get("/readyz")
        assert (status, f"{name}_later" in said) == (503, True)
        errors = {one["name"]: one["error"] for one in home.json("list", "sources")}
        assert errors[name] is None
        assert "There is no topic" in errors[f"{name}_later"]
        refused = home.run("run-source", name)
        assert (refused.code, "daemon's reader" in refused.stderr) == (3, True)
        daemon.await_engine()
        patiently(lambda: home.rows(f"SELECT count(*) AS n FROM {name}_s") == [{"n": 2}])
        home.ok("drop", "table", f"{name}_later")
        assert not Path(home.path, "warehouse/tables/public", f"{name}_later").exists()
        assert [one["name"] for one in home.json("list", "sources")] == [name]
        daemon.await_ready()
        daemon.signal()
        assert daemon.ended() == 0

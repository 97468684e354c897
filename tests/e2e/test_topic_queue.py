"""A volume with a topic as its queue: killing the daemon at any moment loses no event."""

from __future__ import annotations

import json
import signal

import pytest

from tests.broker import Broker, broker
from tests.e2e.homes import Daemon, Home, patiently

__all__ = ["broker"]

pytestmark = pytest.mark.long


def test_events_are_committed_to_the_broker_only_once_their_files_are_in_the_directory(home: Home, broker: Broker) -> None:
    files, topic = home.folder / "files", broker.topic()
    files.mkdir()
    server = f"bootstrap.servers={broker.address}"
    home.ok("create-volume", "w", str(files), "--queue-type", "kafka", "--queue-name", topic, "--queue-property", server)
    group = f"volstream-{home.json('describe', 'volume', 'w')['id']}"
    with home.daemon():
        patiently(lambda: home.json("describe", "volume", "w")["last_listing"])  # the first listing; no other follows
    sent = 0

    def send(count: int) -> None:
        """Writes files and sends events; the file ``n`` has the offset ``n``."""
        nonlocal sent
        for number in range(sent, sent + count):
            (files / str(number)).write_text(str(number))
            broker.send(topic, json.dumps({"path": str(number)}))
        sent += count

    # Before the refresh that events cause is committed; between that and their acknowledgement; anywhere.
    for point in ("refresh.intent", "refresh.committed", None):
        daemon = Daemon(home, **({"FAULT": point} if point else {}))
        try:
            patiently(lambda daemon=daemon: "volume_kept" in daemon.log)  # type: ignore[misc]  # its own
            send(30)
            if point:
                assert daemon.ended() == -signal.SIGKILL
            else:
                patiently(lambda: (broker.committed(topic, group) or 0) > 60)
                send(30)
        finally:
            daemon.kill()
        # Now, as a daemon that starts lists the volume, which would make up for what was lost.
        committed = broker.committed(topic, group)
        assert committed is not None
        kept = {row["relative_path"] for row in home.rows("SHOW VOLUME DIRECTORY w")}
        assert {str(number) for number in range(committed)} <= kept
    with home.daemon():
        patiently(lambda: broker.committed(topic, group) == sent)
        assert home.json("describe", "volume", "w")["files"] == sent

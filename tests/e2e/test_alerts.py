"""A daemon that is killed between an event, its alert and its delivery; and one whose job fails, as its user sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.homes import Daemon, Home, patiently, write
from tests.receivers import POINTS, Receiver, receiving

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


def settings(receiver: Receiver) -> Mapping[str, Any]:
    return {
        "RECEIVERS": json.dumps({"ops": {"webhook": f"{receiver.url}/${{env:ALERT_SECRET}}"}}),
        "ON_FAILURE": '["ops"]',
        "ON_PAUSE": '["ops"]',
        "ALERT_AFTER_SECONDS": "0.5s",
    }


@pytest.fixture
def with_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALERT_SECRET", "T0PS3CR3T")


@pytest.mark.usefixtures("with_secret")
@pytest.mark.parametrize(("point", "deliveries"), list(zip(POINTS, (1, 2), strict=True)))
def test_a_daemon_that_is_killed_before_or_after_a_delivery_loses_no_alert(
    home: Home, name: str, files: Path, receiver: Receiver, point: str, deliveries: int
) -> None:
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read")
    with home.daemon(**settings(receiver)):
        pass
    daemon = Daemon(home, FAULT=point, **settings(receiver))
    daemon.await_ready()
    home.ok("pause", name)
    assert daemon.ended() < 0
    home.ok("resume", name)  # it is over, but nobody has been told
    with home.daemon(**settings(receiver)) as again:
        patiently(lambda: len(receiver.posts) == deliveries + 1)
        patiently(lambda: again.metric("volstream_alerts_waiting", receiver="ops") == 0)
        assert "T0PS3CR3T" not in again.log
    assert [payload["state"] for payload in receiver.payloads] == ["active"] * deliveries + ["resolved"]
    assert len({payload["id"] for payload in receiver.payloads}) == 2
    assert {post.path for post in receiver.posts} == {"/T0PS3CR3T"}
    assert receiver.payloads[0]["name"] == name


@pytest.mark.usefixtures("with_secret")
def test_files_that_a_run_outside_of_the_daemon_fails_on_are_told_with_a_page(
    home: Home, name: str, files: Path, receiver: Receiver
) -> None:
    write(files, {f"{n}.txt": "bad" for n in range(5)} | {"good.txt": "good"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:picky", "--retries", "0")
    with home.daemon(**settings(receiver)) as daemon:
        home.run("run-job", name)
        patiently(lambda: receiver.posts)
        (alert,) = receiver.payloads
        assert alert["url"] == f"http://127.0.0.1:{daemon.port}/jobs/{name}"
    assert alert["why"].startswith("5 files quarantined")
    assert "this one is bad" in alert["text"]

"""Events posted to a volume: who may, what is answered, and that what was answered is looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from starlette.testclient import TestClient

from tests.integration.server.console.collectors import Empty
from volstream.base.definitions import QueueType
from volstream.base.model.names import Name
from volstream.base.privacy import token_of
from volstream.files.volumes import routing
from volstream.ops.inspection.details import described
from volstream.server.console.app import Console

if TYPE_CHECKING:
    from tests.integration.conftest import Place


class Sender:
    """Posts to a volume with the queue type webhook."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.catalog = place.session.home.catalog
        place.session.volumes.create("w", str(folder), queue_type="webhook", patterns=["*.txt"])
        self.volume = routing.posted_to(self.catalog, "w")
        self.home_token = token_of(place.session.home.settings)
        self.token = routing.token_of(self.home_token, self.volume)
        self.console = Console(place.session, lambda: (True, {}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
        self.client = TestClient(self.console.app, base_url="http://127.0.0.1", follow_redirects=False)

    def post(self, body: object, token: str | None = None, volume: str = "w") -> tuple[int, dict[str, Any]]:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self.token if token is None else token}"}
        answer = self.client.post(f"/volumes/{volume}/events", content=content, headers=headers)
        return answer.status_code, answer.json()

    def asked(self) -> set[str]:
        return {*self.catalog.refreshes.asked_checks(self.volume.id, 1000)}


@pytest.fixture
def sender(place: Place, tmp_path: Path) -> Iterator[Sender]:
    folder = tmp_path / "posted"
    folder.mkdir()
    sender = Sender(place, folder)
    yield sender
    sender.console.stop()


def test_what_is_answered_is_noted_once(sender: Sender) -> None:
    for _ in range(3):
        assert sender.post([{"path": "a.txt"}, {"path": "in/"}, {"path": "not.jpg"}]) == (200, {"files": 2})
    assert sender.asked() == {"a.txt", "in/"}
    assert sender.post([]) == (200, {"files": 0})


def test_only_the_token_of_the_volume_lets_events_in(sender: Sender, place: Place) -> None:
    place.session.volumes.create("other", str(place.folder.parent / "posted"), queue_type="webhook")
    other = routing.token_of(sender.home_token, routing.posted_to(sender.catalog, "other"))
    for token in ("", "wrong", sender.home_token, other):
        status, said = sender.post({"path": "a.txt"}, token)
        assert (status, said["error"]["type"]) == (401, "Refused")
    for volume in ("v", "none", "%20", "a.b.c.d"):  # one that takes no events; no volume; no name
        assert sender.post({"path": "a.txt"}, sender.token, volume)[0] == 401
    assert sender.asked() == set()
    for headers, query in (({"authorization": sender.token}, ""), ({}, f"?token={sender.token}")):
        answer = sender.client.post(f"/volumes/w/events{query}", json={"path": "a.txt"}, headers=headers)
        assert answer.status_code == 200
    for page in ("/", "/volumes/w", "/sql"):  # it opens nothing else
        bearer = {"authorization": f"Bearer {sender.token}"}
        assert sender.client.get(page, headers=bearer).status_code == 401
    assert sender.client.post("/volumes/w/refresh", headers={"authorization": f"Bearer {sender.token}"}).status_code == 401


def test_the_description_of_the_volume_says_where_to_post(sender: Sender, place: Place) -> None:
    url = urlsplit(described(place.session.home, sender.volume)["events_url"])
    assert sender.client.post(f"{url.path}?{url.query}", json={"path": "a.txt"}).status_code == 200
    local = place.session.home.catalog.volumes.get(Name.parse("v"))
    assert "events_url" not in described(place.session.home, local)


def test_what_is_not_understood_is_refused_and_shown(sender: Sender) -> None:
    status, said = sender.post({"file": "a.txt"})
    assert (status, said["error"]["type"]) == (400, "InvalidValueError")
    assert "not an event that volstream knows" in said["error"]["message"]
    (kept,) = sender.catalog.refreshes.rejected(sender.volume.id)
    assert kept.subject == '{"file": "a.txt"}'
    assert sender.post(b"x" * (routing.MAX_BYTES + 1))[0] == 413
    status, said = sender.post({"paths": ["a.txt"] * (routing.MAX_EVENTS + 1)})
    assert (status, "at most 10,000 events" in said["error"]["message"]) == (400, True)
    assert sender.post({"path": "a\0.txt"}) == (200, {"files": 1})
    assert len(sender.catalog.refreshes.rejected(sender.volume.id)) == 2
    assert sender.asked() == set()


def test_senders_are_put_off_while_too_much_waits(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_WAITING", 3)
    assert sender.post({"paths": ["1.txt", "2.txt", "3.txt", "4.txt"]})[0] == 200
    assert sender.post({"path": "5.txt"})[0] == 429
    answer = sender.client.post("/volumes/w/events", json={"path": "5.txt"}, headers={"authorization": sender.token})
    assert answer.headers["retry-after"] == "10"
    assert "5.txt" not in sender.asked()
    assert sender.post({"path": "5.jpg"})[0] == 200  # nothing of it is to be looked at


def test_an_event_of_a_bucket_goes_to_the_volumes_at_its_place(place: Place) -> None:
    session, catalog = place.session, place.session.home.catalog
    for name, location in (("b1", "s3://bucket/one"), ("b2", "s3://bucket/two")):
        session.volumes.create(name, location, queue_type=QueueType.WEBHOOK, check=False)
    first, second = (routing.posted_to(catalog, name) for name in ("b1", "b2"))
    keys = ["one/a", "two/b", "three/c"]
    records = [{"s3": {"bucket": {"name": "bucket"}, "object": {"key": key}}} for key in keys]
    posts, body = routing.PostedEvents(catalog), json.dumps({"Records": records}).encode()
    assert posts.accept(first, body) == 2
    assert {*catalog.refreshes.asked_checks(first.id, 10)} == {"a"}
    assert {*catalog.refreshes.asked_checks(second.id, 10)} == {"b"}
    assert [one.subject for one in catalog.refreshes.rejected(first.id)] == ["s3://bucket/three/"]
    session.volumes.drop("b2")
    session.volumes.create("b3", "s3://bucket/three", queue_type=QueueType.WEBHOOK, check=False)
    assert posts.accept(first, body) == 2
    assert {*catalog.refreshes.asked_checks(routing.posted_to(catalog, "b3").id, 10)} == {"c"}

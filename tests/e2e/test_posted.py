"""A sender whose receiver dies: what was acknowledged arrives, however often the daemon is killed."""

from __future__ import annotations

import itertools
import json
import urllib.request
from urllib.parse import urlsplit

import pytest

from tests.e2e.homes import Daemon, Home, patiently
from volstream.catalog import Catalog
from volstream.files.volumes.routing import posted_to


@pytest.mark.long
def test_events_that_were_acknowledged_survive_the_daemon(home: Home) -> None:
    files = home.folder / "files"
    files.mkdir()
    home.ok("create-volume", "w", str(files), "--queue-type", "webhook")
    with home.daemon():
        patiently(lambda: home.json("describe", "volume", "w")["last_listing"])  # the first listing; no other follows
    url = urlsplit(home.json("describe", "volume", "w")["events_url"])
    names = [f"{number}.txt" for number in range(90)]
    rest = iter(names)
    for taken in (30, 60, 90):
        daemon = Daemon(home)
        daemon.await_ready()
        try:
            for name in itertools.islice(rest, 30):
                (files / name).write_text(name)
                assert post(daemon, f"{url.path}?{url.query}", name) == 1
        finally:
            daemon.kill()
        # Now, as a daemon that starts lists the volume, which would make up for what was lost.
        catalog = Catalog(f"sqlite:///{home.path}/catalog.db")
        waiting = len(catalog.refreshes.asked_checks(posted_to(catalog, "w").id, 1000))
        catalog.close()
        assert home.json("describe", "volume", "w")["files"] + waiting >= taken
    with home.daemon():
        patiently(lambda: home.json("describe", "volume", "w")["files"] == len(names))


def post(daemon: Daemon, target: str, name: str) -> int:
    request = urllib.request.Request(
        f"http://127.0.0.1:{daemon.port}{target}",
        data=json.dumps({"specversion": "1.0", "data": {"path": name}}).encode(),
        headers={"content-type": "application/cloudevents+json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        taken: int = json.loads(answer.read())["files"]
        return taken

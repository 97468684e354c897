"""What Prometheus makes of the metrics, with the configuration and the rules of ``deploy/prometheus``."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from starlette.testclient import TestClient

from tests import objects
from tests.commands import Shell, shell
from tests.prometheus import watching
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import FileJob
from volstream.base.model.work import Target
from volstream.catalog.consumptions import BatchOutcome
from volstream.changes.streams.read import StreamReader
from volstream.errors import CatalogError, StorageError
from volstream.server.console.app import Console
from volstream.server.daemon import metrics
from volstream.server.daemon.metrics import DaemonMetrics

__all__ = ["shell"]


@contextmanager
def exporting(session: Session, *, is_up: bool = True) -> Iterator[int]:
    """The metrics of a daemon that keeps no volume, and whose engine is up; the port at which they are."""
    registry = CollectorRegistry()
    scheduler: Any = SimpleNamespace(unrecorded={}, runs={})
    engine: Any = SimpleNamespace(is_up=is_up, failures=0)
    registry.register(DaemonMetrics(session.home.catalog, session.home.reader, list, scheduler, engine))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def process_a_file(session: Session, job: FileJob) -> None:
    catalog = session.home.catalog
    _, (batch,) = objects.store_plan(catalog, job, from_version=None)
    intent = catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
    catalog.consumptions.commit(intent, BatchOutcome(1, 0, 1))


def test_a_job_that_stands_still_is_named_once_however_busy_others_are(shell: Shell, tmp_path: Path) -> None:
    for name, when in (("busy", ["--on-change"]), ("stuck", ["--on-change"]), ("manual", [])):
        function = ("--function", f"{shell.functions}:one", "--returns", "n INT", "--into", name)
        shell.ok("create-job", name, "--volume", "v", *function, *when)
    shell.ok("refresh", "v")
    with Session(config.load(shell.home)) as session, exporting(session) as well, exporting(session, is_up=False) as ill:
        busy = objects.file_job(session.jobs.get("busy"))
        with watching(tmp_path, well, ill) as prometheus:

            def fires() -> bool:
                process_a_file(session, busy)
                return {"VolstreamBacklogStands", "VolstreamEngineDown"} <= prometheus.alerts().keys()

            eventually(fires, timeout=30)
            fired = prometheus.alerts()
            assert set(prometheus.values("volstream_job_files_total", "job_name")) == {"busy", "stuck", "manual"}
            assert prometheus.get("label/exported_job/values") == []
    (said,) = fired["VolstreamBacklogStands"]
    assert "job stuck" in said
    assert fired["VolstreamEngineDown"] == [f"The engine of the daemon 127.0.0.1:{ill} is down: its jobs do not run"]


def refuse(*_: object) -> Any:
    raise StorageError("The store answers 503.")


def lose(*_: object) -> Any:
    raise CatalogError("The catalog is away.")


def told(session: Session) -> dict[str, float]:
    with exporting(session) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_a_stream_is_not_stale_because_the_store_refuses_once(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.ok("create-stream", "s", "--volume", "v")
    with Session(config.load(shell.home)) as session:
        monkeypatch.setattr(StreamReader, "pin", refuse)
        assert told(session)['volstream_stream_stale{stream="s"}'] == 0


def test_the_process_tells_what_it_knows_itself_while_the_catalog_is_away(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(config.load(shell.home)) as session:
        assert told(session)["volstream_catalog_up"] == 1
        monkeypatch.setattr(session.home.catalog.database, "one_snapshot", lose)
        assert told(session) == {"volstream_engine_up": 1, "volstream_engine_failures_total": 0, "volstream_catalog_up": 0}


def test_a_catalog_that_does_not_answer_is_said_in_time(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_CATALOG_SECONDS", 0.2)
    back = threading.Event()
    with Session(config.load(shell.home)) as session, exporting(session) as port:
        snapshot = session.home.catalog.database.one_snapshot
        monkeypatch.setattr(session.home.catalog.database, "one_snapshot", lambda: (back.wait(60), snapshot())[1])

        def up() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                return "\nvolstream_catalog_up 1.0" in answer.read().decode()

        assert not up()
        assert not up()
        back.set()
        eventually(up)


def test_a_console_in_the_network_is_scraped_by_any_name_and_shows_pages_by_its_own(shell: Shell) -> None:
    for address, status in (("127.0.0.1", 421), ("0.0.0.0", 200)):
        with Session(config.load(shell.home, console_address=address)) as session:
            console = Console(session, lambda: (True, {}), lambda: (True, {}), CollectorRegistry())
            client = TestClient(console.app, base_url="https://10.1.2.3:8642")
            asked = [client.get(path).status_code for path in ("/metrics", "/healthz", "/readyz", "/", "/static/console.css")]
            console.stop()
        assert asked == [status, status, status, 421, 421]

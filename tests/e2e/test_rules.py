"""Each rule of ``deploy/prometheus`` fires: a real daemon, in the troubles that the rules are about, scraped by Prometheus."""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

import volstream
from tests.e2e.homes import Daemon, Home, patiently, write
from tests.ports import free_ports
from tests.postgres import served
from tests.prometheus import RULES, watching
from tests.waiting import eventually

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

#: Troubles that stop the engine: jobs cannot run meanwhile, so their rules are tested separately.
_ENGINE = {"VolstreamEngineDown", "VolstreamEngineFailsOften"}

_TRACKED = "(id STRING) TBLPROPERTIES ('change_tracking' = 'true')"


def test_each_rule_fires_in_its_trouble(home: Home, tmp_path: Path) -> None:
    rules = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
    (port,) = free_ports(1)
    receivers = json.dumps({"ops": {"webhook": "http://127.0.0.1:1"}})
    settings = {"HTTP_PORT": str(port), "INGEST_ADDRESS": "127.0.0.1:0", "RECEIVERS": receivers, "ON_FAILURE": '["ops"]'}
    with watching(tmp_path, port) as prometheus:
        with home.daemon(**settings) as daemon:
            make_trouble(home, daemon, tmp_path)
            seen: set[str] = set()

            def fire() -> bool:
                seen.update(prometheus.alerts())
                return seen >= rules - _ENGINE - {"VolstreamDown", "VolstreamCatalogAway"}

            patiently(fire)
        assert not seen & _ENGINE
        ill = Daemon(home, **settings, JVM_OPTIONS="-Xlog:nosuch")
        try:
            patiently(lambda: prometheus.alerts().keys() >= _ENGINE)
        finally:
            ill.kill()
        patiently(lambda: "VolstreamDown" in prometheus.alerts())


def test_a_daemon_whose_database_is_away_is_named(home: Home, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with served() as server, watching(tmp_path, port) as prometheus:
        if server is None:
            pytest.skip("PostgreSQL is not installed")
        with home.daemon(HTTP_PORT=str(port), CATALOG_URL=server.new_database()):
            eventually(lambda: prometheus.values("volstream_catalog_up", "instance") == {f"127.0.0.1:{port}": 1})
            server.stop()
            try:
                patiently(lambda: "VolstreamCatalogAway" in prometheus.alerts())
            finally:
                server.start()
            patiently(lambda: not prometheus.alerts().keys() & {"VolstreamCatalogAway", "VolstreamDown"})


def make_trouble(home: Home, daemon: Daemon, folder: Path) -> None:
    folders = {name: folder / name for name in ("away", "held", "picky", "gone", "slow")}
    for name, files in folders.items():
        write(files, {f"{number}.txt": "bad" for number in range(3)})
        home.ok("create-volume", name, str(files), "--max-removals", "1", "--queue-type", "none")
    (home.folder / "gone.py").write_text("def gone(file) -> int:\n    return 1\n")
    patiently(lambda: all(daemon.metric("volstream_directory_lag_seconds", volume=name) for name in folders))
    daemon.await_engine()
    home.create_job("gone", "gone.py:gone", "--on-change", "--returns", "n INT")
    (home.folder / "gone.py").unlink()
    home.create_job("picky", "functions.py:picky", "--on-change", "--retries", "0")
    patiently(lambda: daemon.metric("volstream_job_failures", job_name="picky", state="quarantined"))
    home.create_job("slow", "functions.py:slow", "--on-change", "--arg", f"started={folder}/begun", "--arg", "seconds=900")

    home.ok("create-stream", "unread", "--volume", "held", "--show-initial-rows")
    folders["away"].rename(folder / "elsewhere")
    for file in folders["held"].iterdir():
        file.unlink()
    home.ok("refresh", "held")
    assert home.run("refresh", "away").code

    home.ok("sql", f"CREATE TABLE stale {_TRACKED}")
    home.ok("create-stream", "late", "--table", "stale")
    home.ok("sql", f"DROP TABLE stale; CREATE TABLE stale {_TRACKED}; CREATE TABLE full {_TRACKED}")
    kafka = "('kafka.bootstrap.servers' = '127.0.0.1:1', 'subscribe' = 'none')"
    home.ok("sql", f"CREATE EXTERNAL TABLE topic USING kafka OPTIONS {kafka}")
    threading.Thread(target=send_in_vain, args=(home, daemon), daemon=True).start()


def send_in_vain(home: Home, daemon: Daemon) -> None:
    """Sends a row again and again, to a table that cannot take it."""
    address = re.search(r"address=(\S+)", daemon.log)
    assert address is not None
    with volstream.connect(address[1], token=(home.path / "ingest.token").read_text().strip()) as connection:
        stream = connection.get_realtime_stream(table="full")
        row = stream.create_row()
        row.set_values({"id": "a"})
        stream.apply(row)
        stream.flush()
        tail = home.path / "warehouse/tables/public/full/_tail"
        tail.rename(tail.with_name("_away"))
        tail.touch()  # it cannot be a folder then
        stream.apply(row)
        with suppress(Exception):
            stream.flush()

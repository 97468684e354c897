"""A running daemon: tables follow the folder, and HTTP reports its state. All of these tests share one daemon."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import volstream
from tests.e2e.homes import Daemon, Home, patiently, write

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(scope="module")
def daemon(home: Home) -> Iterator[Daemon]:
    with home.daemon(INGEST_ADDRESS="127.0.0.1:0", COMMIT_SECONDS="0.5") as daemon:
        yield daemon


def test_the_table_follows_new_replaced_renamed_and_deleted_files(daemon: Daemon, home: Home, name: str, files: Path) -> None:
    write(files, {"one.txt": "1", "two.txt": "2", "below/three.txt": "3"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:read", "--on-change")
    daemon.follows(name, {"one.txt": "1", "two.txt": "2", "below/three.txt": "3"})

    write(files, {"four.txt": "4", "one.txt": "changed"})
    daemon.follows(name, {"one.txt": "changed", "two.txt": "2", "below/three.txt": "3", "four.txt": "4"})

    (files / "two.txt").rename(files / "below" / "zwei.txt")
    (files / "four.txt").unlink()
    daemon.follows(name, {"one.txt": "changed", "below/zwei.txt": "2", "below/three.txt": "3"})

    batches = [batch for batch in home.json("list", "batches", "--job", name) if batch["state"] == "committed"]
    assert sum(batch["succeeded"] for batch in batches) == 6
    assert not home.json("list", "failures", "--job", name)


def test_rows_sent_to_the_daemon_are_queried_at_once_and_reach_streams(daemon: Daemon, home: Home, name: str) -> None:
    home.ok("sql", f"CREATE TABLE {name} (id STRING, n INT) TBLPROPERTIES ('change_tracking' = 'true')")
    home.ok("create-stream", f"{name}_stream", "--table", name)
    address = re.search(r"address=(\S+)", daemon.log)
    assert address is not None
    token = (home.path / "ingest.token").read_text().strip()
    with volstream.connect(address[1], token=token) as connection, connection.get_realtime_stream(table=name) as stream:
        row = stream.create_row()
        row.set_values({"id": "a", "n": 1})
        stream.apply(row)
        stream.flush()
        assert connection.cursor().execute(f"SELECT * FROM {name} WHERE n > ?", [0]).fetchall() == [("a", 1)]
    patiently(
        lambda: home.json("sql", f"SELECT id, __change_type FROM {name}_stream") == [{"id": "a", "__change_type": "INSERT"}]
    )
    assert daemon.metric("volstream_ingest_rows_total", table=name) == 1


@pytest.mark.long
def test_a_failing_file_is_reported_and_lands_once_it_is_fixed(daemon: Daemon, home: Home, name: str, files: Path) -> None:
    write(files, {"good.txt": "good", "other.txt": "bad"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:picky", "--on-change", "--retries", "0")

    patiently(lambda: daemon.metric("volstream_job_failures", job_name=name, state="quarantined") == 1)

    [failure] = home.json("list", "failures", "--job", name)
    assert (failure["path"], failure["kind"]) == ("other.txt", "raised")
    assert "this one is bad" in failure["message"]
    assert "this one is bad" in home.ok("explain-file", name, "other.txt")
    assert home.pairs(name) == [("good.txt", "good")]

    write(files, {"other.txt": "mended"})
    daemon.follows(name, {"good.txt": "good", "other.txt": "mended"})
    assert not home.json("list", "failures", "--job", name)


def test_health_and_readiness_are_served_over_http(daemon: Daemon) -> None:
    status, body = daemon.get("/healthz")
    assert (status, json.loads(body)["status"]) == (200, "ok")
    status, body = daemon.get("/readyz")
    assert (status, json.loads(body)["status"]) == (200, "ready")
    daemon.await_engine()
    assert json.loads(daemon.get("/readyz")[1])["engine"] == {"state": "running"}
    assert daemon.get("/other")[0] == 401, "the console is locked"


def test_metrics_report_lags_queues_files_and_failures(daemon: Daemon, home: Home, name: str, files: Path) -> None:
    write(files, {"good.txt": "12345", "other.txt": "bad"})
    home.ok("create-volume", name, str(files))
    home.create_job(name, "functions.py:picky", "--on-change", "--retries", "0")
    patiently(lambda: daemon.metric("volstream_job_files_total", job_name=name, outcome="succeeded") == 1)
    home.ok("create-stream", f"{name}_all", "--volume", name, "--show-initial-rows")

    # Nobody consumes the stream, and what it begins with are the rows that are there already.
    patiently(lambda: daemon.metric("volstream_stream_lag_files", stream=f"{name}_all") == 2)

    assert daemon.metric("volstream_stream_lag_bytes", stream=f"{name}_all") == 8
    assert daemon.metric("volstream_stream_lag_files", stream=f"{name}_stream") == 0
    assert daemon.metric("volstream_job_files_total", job_name=name, outcome="failed") == 1
    assert daemon.metric("volstream_job_failures", job_name=name, state="quarantined") == 1
    assert daemon.metric("volstream_queue_depth", volume=name) == 0
    lag = daemon.metric("volstream_directory_lag_seconds", volume=name)
    assert lag is not None
    assert 0 <= lag < 120
    assert daemon.metric("volstream_last_listing_timestamp_seconds", volume=name)


@pytest.mark.long
def test_the_daemon_carries_out_a_manual_refresh(daemon: Daemon, home: Home, name: str, files: Path) -> None:
    write(files, {"one.txt": "1"})
    home.ok("create-volume", name, str(files), "--queue-type", "none")
    home.ok("refresh", name)
    write(files, {"two.txt": "2"})

    report = home.json("refresh", name)

    assert report["by_daemon"]
    listed = home.rows(f"SELECT relative_path FROM DIRECTORY(VOLUME {name})")
    assert sorted(row["relative_path"] for row in listed) == ["one.txt", "two.txt"]

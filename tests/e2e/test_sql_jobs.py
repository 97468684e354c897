"""Jobs of SQL statements under the real daemon and the real command."""

from __future__ import annotations

import pytest

from tests.e2e.homes import Home, patiently

pytestmark = pytest.mark.timeout(200)


def ids(home: Home, table: str) -> list[int]:
    return sorted(row["id"] for row in home.rows(f"SELECT id FROM {table}"))


@pytest.mark.long
def test_the_daemon_runs_a_statement_on_change_and_retries_a_failing_one_with_backoff(home: Home, name: str) -> None:
    source, target, stream = f"{name}_t", f"{name}_u", f"{name}_s"
    home.ok(
        "sql",
        f"CREATE TABLE {source} (id INT); ALTER TABLE {source} SET PROPERTIES ('change_tracking' = 'true'); "
        f"CREATE TABLE {target} (id INT); CREATE STREAM {stream} ON TABLE {source}; "
        f"CREATE JOB {name} ON CHANGE AS INSERT INTO {target} SELECT id FROM {stream} WHERE assert_true(id < 100) IS NULL",
    )
    home.end_engine()
    with home.daemon() as daemon:
        home.ok("sql", f"INSERT INTO {source} VALUES (1), (2)")
        patiently(lambda: daemon.metric("volstream_job_runs_total", job_name=name, outcome="ok") == 1)
        assert ids(home, target) == [1, 2]

        home.ok("sql", f"INSERT INTO {source} VALUES (100)")
        patiently(lambda: (daemon.metric("volstream_job_runs_total", job_name=name, outcome="failed") or 0) >= 2)
        assert daemon.log.count("job_failed") < 6
        [job] = [one for one in home.json("list", "jobs") if one["name"] == name]
        assert job["last_outcome"].startswith(("failed", "running"))
        home.ok("pause", name)
    home.ok("sql", f"CREATE OR REPLACE JOB {name} AS INSERT INTO {target} SELECT id FROM {stream}")
    assert "1 row in 1 batch" in home.ok("run-job", name)
    assert ids(home, target) == [1, 2, 100]
    assert "Nothing to do" in home.ok("run-job", name)


@pytest.mark.long
def test_the_next_run_recovers_a_killed_one_and_writes_no_row_twice(home: Home, name: str) -> None:
    source, target, stream = f"{name}_t", f"{name}_u", f"{name}_s"
    home.ok(
        "sql",
        f"CREATE TABLE {source} (id INT); ALTER TABLE {source} SET PROPERTIES ('change_tracking' = 'true'); "
        f"CREATE TABLE {target} (id INT); CREATE STREAM {stream} ON TABLE {source}; "
        f"CREATE JOB {name} AS INSERT INTO {target} SELECT id FROM {stream}; INSERT INTO {source} VALUES (1)",
    )
    home.crash("run-job", name, at="batch.written")
    assert ids(home, target) == [1]

    report = home.json("run-job", name)

    assert (report["recovered"], report["batches"]) == (True, 0)
    home.ok("sql", f"INSERT INTO {source} VALUES (2)")
    home.crash("run-job", name, at="batch.intent")
    assert ids(home, target) == [1]
    assert home.json("run-job", name)["rows"] == 1
    assert ids(home, target) == [1, 2]
    states = [batch["state"] for batch in home.json("list", "batches", "--job", name)]
    assert sorted(states) == ["committed", "committed", "dropped"]

"""Airflow and Dagster, the real packages, run the examples of schedulers against a daemon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.homes import Daemon, Home, patiently, write
from tests.installed import environment_with
from volstream.client import Client

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

_EXAMPLES = Path(__file__).parents[2] / "examples" / "schedulers"

#: Airflow pins its dependencies by a file that is not in the index: here they are those of this day.
_THEN = "--exclude-newer=2026-11-01"

#: What a program elsewhere needs of volstream's packages; volstream itself is on ``PYTHONPATH``.
_CLIENT = "httpx2>=2"

#: Runs a command; returns its exit code, and all that it printed.
Scheduler = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def daemon(home: Home) -> Iterator[Daemon]:
    """A daemon with a volume and a job, both named ``sizes``; it does not run the job by itself."""
    (home.folder / "sizes").mkdir()
    home.ok("create-volume", "sizes", "sizes")
    home.create_job("sizes", "functions.py:picky")
    with home.daemon() as daemon:
        yield daemon


def scheduler(daemon: Daemon, program: Path, **variables: str) -> Scheduler:
    """Returns a function that runs commands of a scheduler, which reach the daemon."""
    home = daemon.home
    reached = {"VOLSTREAM_URL": url(daemon), "VOLSTREAM_TOKEN": token(daemon)}

    def run(*arguments: str, **more: str) -> tuple[int, str]:
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **reached, **variables, **more},
            cwd=home.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout

    return run


def test_a_dag_of_airflow_runs_a_job_and_fails_with_its_files(daemon: Daemon, tmp_path: Path) -> None:
    commands = environment_with(("apache-airflow==3.3.2", _CLIENT, _THEN), "schedulers/airflow")
    airflow = scheduler(
        daemon,
        commands / "airflow",
        AIRFLOW_HOME=str(tmp_path),
        AIRFLOW__CORE__DAGS_FOLDER=str(_EXAMPLES),
        AIRFLOW__CORE__LOAD_EXAMPLES="False",
        AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY="0",
    )
    add(daemon, {"a.txt": "a", "b.txt": "b"})
    code, said = airflow("db", "migrate")
    assert code == 0, said
    code, said = airflow("dags", "test", "sizes")
    assert code == 0, said
    assert daemon.home.pairs("sizes") == [("a.txt", "a"), ("b.txt", "b")]

    add(daemon, {"c.txt": "bad", "d.txt": "d"})
    code, said = airflow("dags", "test", "sizes")
    assert code != 0, said
    assert "RuntimeError: 1 files failed: volstream list failures --job sizes" in said
    assert daemon.home.pairs("sizes") == [("a.txt", "a"), ("b.txt", "b"), ("d.txt", "d")]


def test_a_sensor_of_dagster_starts_a_job_once_for_each_commit(daemon: Daemon, tmp_path: Path) -> None:
    commands = environment_with(("dagster==1.13.28", _CLIENT, _THEN), "schedulers/dagster")
    dagster = scheduler(daemon, commands / "dagster", DAGSTER_HOME=str(tmp_path), DAGSTER_DISABLE_TELEMETRY="1")
    example = ("--python-file", str(_EXAMPLES / "dagster_sensor.py"))

    add(daemon, {"e.txt": "e"})
    with Client(url(daemon), token(daemon)) as client:
        client.run("sizes")
        newest = client.get("/jobs/sizes/batches", limit=1)["batches"][0]["id"]
    looked = ("sensor", "preview", "new_rows", *example)
    assert "Sensor returning run requests for 1 run(s)" in dagster(*looked)[1]
    assert "Sensor returned false for new_rows" in dagster(*looked, "--cursor", newest)[1]
    assert "did not answer" in dagster(*looked, VOLSTREAM_URL="http://127.0.0.1:1")[1]

    code, said = dagster("job", "execute", "--job", "daily_report", *example)
    assert code == 0, said
    assert "The table has new rows." in said


def add(daemon: Daemon, files: Mapping[str, str]) -> None:
    """Adds files to the volume, and waits until the directory has them."""
    folder = daemon.home.folder / "sizes"
    write(folder, files)
    count = len(list(folder.iterdir()))
    patiently(lambda: daemon.home.json("describe", "volume", "sizes")["files"] == count)


def url(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"


def token(daemon: Daemon) -> str:
    return (daemon.home.path / "console.token").read_text()

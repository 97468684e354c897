"""Two daemons with separate homes, as on two hosts, that share a catalog in PostgreSQL and a warehouse."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import sqlalchemy

from tests.e2e.homes import Daemon, Home, patiently, write
from tests.postgres import postgres  # noqa: F401  # a fixture
from tests.s3 import warehouse_in_s3
from tests.servers import S3

pytestmark = [pytest.mark.timeout(900), pytest.mark.long]

_VOLUMES = ("v0", "v1", "v2", "v3")

_FUNCTION = """
def read(file):
    return {"text": file.read_text()}
"""


class Hosts:
    """Two homes, four volumes and a job on each."""

    def __init__(self, folder: Path, database: str, warehouse: Mapping[str, str]) -> None:
        self.folder = folder
        (folder / "functions.py").write_text(_FUNCTION)
        self.settings = {"CATALOG_URL": database, **warehouse, "LEASE_SECONDS": "4s", "CORES": "1"}
        self.homes = [Home(folder / name, seconds=300) for name in ("a", "b")]
        self.expected: dict[str, dict[str, str]] = {volume: {} for volume in _VOLUMES}
        self.versions = 0
        for home in self.homes:
            home.folder.mkdir()
        for volume in _VOLUMES:
            (folder / volume).mkdir()
            self.ok("create-volume", volume, str(folder / volume))
            self.ok(
                "create-job",
                volume,
                "--volume",
                volume,
                "--function",
                str(folder / "functions.py:read"),
                "--returns",
                "text STRING",
                "--into",
                volume,
                "--on-change",
            )

    def ok(self, *arguments: str) -> str:
        return self.homes[0].ok(*arguments, **self.settings)

    def daemon(self, number: int) -> Daemon:
        return Daemon(self.homes[number], **self.settings)

    def write(self, files: dict[str, str]) -> None:
        """Writes files of all volumes."""
        for volume in _VOLUMES:
            write(self.folder / volume, files)
            self.expected[volume] |= files
            self.versions += len(files)

    def delete(self, name: str) -> None:
        for volume in _VOLUMES:
            (self.folder / volume / name).unlink()
            del self.expected[volume][name]

    def await_tables(self) -> None:
        """Waits until every table holds a row for each file and nothing else."""

        def follow() -> bool:
            batches = json.loads(self.ok("list", "batches", "--format", "json"))
            done = [batch for batch in batches if batch["state"] == "committed"]
            if sum(one["succeeded"] for one in done) < self.versions:
                return False
            expected = [(volume, *file) for volume in _VOLUMES for file in self.expected[volume].items()]
            return self.rows() == sorted(expected)

        patiently(follow, 200)

    def rows(self) -> list[tuple[str, ...]]:
        """Volume, path and text of the rows of all tables."""
        query = " UNION ALL ".join(f"SELECT '{volume}' AS volume, _file_path, text FROM {volume}" for volume in _VOLUMES)
        return sorted(tuple(row.values()) for row in json.loads(self.ok("sql", query, "--format", "json")))


def _kept(daemon: Daemon) -> int:
    """Number of volumes that a daemon maintains; -1 if it does not answer."""
    status, body = daemon.get("/readyz") if daemon.port is not None else (0, "")
    return int(json.loads(body)["volumes"]) if status == 200 else -1


@pytest.fixture(params=["folder", *S3])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """The settings of a warehouse that the homes share."""
    if request.param == "folder":
        yield {"WAREHOUSE": str(tmp_path / "warehouse")}
        return
    with warehouse_in_s3(request.param) as settings:
        yield settings


@pytest.fixture
def hosts(
    tmp_path: Path,
    postgres: str,  # noqa: F811  # the imported fixture
    warehouse: Mapping[str, str],
) -> Iterator[Hosts]:
    name = f"hosts_{uuid.uuid4().hex[:8]}"
    server = sqlalchemy.create_engine(
        postgres.replace("postgresql:", "postgresql+psycopg:") + "/postgres", isolation_level="AUTOCOMMIT"
    )
    with server.connect() as connection:
        connection.execute(sqlalchemy.text(f"create database {name}"))
    server.dispose()
    made = Hosts(tmp_path, f"{postgres}/{name}", warehouse)
    yield made
    for home in made.homes:
        home.run("engine", "stop", "--now", **made.settings)


def test_daemons_share_the_volumes_and_take_over_from_killed_and_hung_ones(hosts: Hosts) -> None:
    first, second = hosts.daemon(0), hosts.daemon(1)
    try:
        patiently(lambda: (_kept(first), _kept(second)) == (2, 2))
        hosts.write({f"{number}.txt": f"one {number}" for number in range(20)})
        hosts.await_tables()

        first.kill()
        hosts.write({"late.txt": "late", "3.txt": "changed"})
        hosts.delete("4.txt")
        patiently(lambda: _kept(second) == 4)
        hosts.await_tables()

        first = hosts.daemon(0)
        patiently(lambda: (_kept(first), _kept(second)) == (2, 2))
        second.signal(signal.SIGSTOP)
        hosts.write({"later.txt": "later", "5.txt": "changed"})
        patiently(lambda: _kept(first) == 4)
        hosts.await_tables()

        second.signal(signal.SIGCONT)
        patiently(lambda: (_kept(first), _kept(second)) == (2, 2))
        hosts.write({"latest.txt": "latest", "6.txt": "changed"})
        hosts.delete("7.txt")
        hosts.await_tables()

        batches = json.loads(hosts.ok("list", "batches", "--format", "json"))
        assert sum(batch["succeeded"] for batch in batches if batch["state"] == "committed") == hosts.versions
        assert second.process.poll() is None
        second.signal()
        assert second.ended() == 0
        patiently(lambda: _kept(first) == 4)
    finally:
        for daemon in (first, second):
            daemon.kill()

"""A PostgreSQL server of the test run, from the machine's own packages, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy

#: PostgreSQL refuses to run as root; Debian's packages make this user.
_USER = "postgres"


def _binaries() -> Path | None:
    """The folder of ``initdb`` and ``pg_ctl``: Debian keeps them out of the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _command(*words: str | Path) -> list[str]:
    as_user = ["setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--init-groups"] if os.geteuid() == 0 else []
    return [*as_user, *map(str, words)]


def _run(*words: str | Path) -> None:
    # Not captured by a pipe: the server inherits it and would keep it open.
    subprocess.run(_command(*words), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


class Server:
    """A server that runs on its own data.

    Attributes:
        url: of SQLAlchemy's, without a database.
    """

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries = binaries
        self._folder = folder
        self._data = folder / "data"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self.url = f"postgresql://volstream@127.0.0.1:{self._port}"
        # ICU's order is not that of bytes: what would depend on a database's collation is found.
        collation = ("--locale-provider=icu", "--icu-locale=en")
        _run(binaries / "initdb", "-D", self._data, "-U", "volstream", "-A", "trust", "-E", "UTF8", *collation, "--no-sync")

    def start(self) -> None:
        options = f"-F -p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        self._control("-w", "-o", options, "-l", self._folder / "log", "start")

    def stop(self) -> None:
        """Stops at once, as in a crash: the next start recovers."""
        self._control("-w", "-m", "immediate", "stop")

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"d{uuid.uuid4().hex[:12]}"
        made = self.url.replace("postgresql:", "postgresql+psycopg:") + "/postgres"
        engine = sqlalchemy.create_engine(made, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text(f"create database {name}"))
        engine.dispose()
        return f"{self.url}/{name}"

    def _control(self, *words: str | Path) -> None:
        _run(self._binaries / "pg_ctl", "-D", self._data, *words)


@contextmanager
def served() -> Iterator[Server | None]:
    """A running server; None if PostgreSQL is not installed."""
    binaries = _binaries()
    if binaries is None:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="volstream-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _USER, _USER)
        server = Server(binaries, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of the server, without a database; skips where PostgreSQL is not installed, but not in CI."""
    with served() as server:
        if server is None:
            reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
            if os.environ.get("CI"):
                pytest.fail(reason)
            pytest.skip(reason)
        yield server.url

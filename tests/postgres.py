"""A PostgreSQL server of the test run, from the machine's own packages, on a free port of 127.0.0.1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy URL of the server, without a database; skips where PostgreSQL is not installed, but not in CI."""
    binaries = _binaries()
    if binaries is None:
        reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="volstream-postgres-"))
    data = folder / "data"
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _USER, _USER)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        # ICU's order is not that of bytes: what would depend on a database's collation is found.
        collation = ("--locale-provider=icu", "--icu-locale=en")
        _run(binaries / "initdb", "-D", data, "-U", "volstream", "-A", "trust", "-E", "UTF8", *collation, "--no-sync")
        options = f"-F -p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories=''"
        _run(binaries / "pg_ctl", "-D", data, "-w", "-o", options, "-l", folder / "log", "start")
        try:
            yield f"postgresql://volstream@127.0.0.1:{port}"
        finally:
            _run(binaries / "pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)

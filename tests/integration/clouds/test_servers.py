"""The servers that tests start listen on 127.0.0.1 only, and stop even if the tests are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from tests.servers import NotInstalledError, azurite, each, localstack, pubsub, seaweedfs, served
from tests.waiting import eventually

_SERVING = """
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from tests.servers import served
with served(sys.argv[1]) as url:
    print(url, flush=True)
    input()
"""


@pytest.mark.long
@pytest.mark.parametrize("server", each("moto", "gcs", "localstack", "seaweedfs", "pubsub", "azurite"))
def test_a_server_is_reached_from_this_machine_alone_and_ends_with_tests_that_are_killed(server: str, tmp_path: Path) -> None:
    with served(server):
        pass  # skipped where it is not installed
    command = [sys.executable, "-c", _SERVING, server]
    there = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=there, text=True) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline().startswith("http://127.0.0.1:")
        processes = psutil.Process(tests.pid).children(recursive=True)
        places = [place for one in processes for place in one.net_connections() if place.status == psutil.CONN_LISTEN]
        assert {place.laddr.ip for place in places} == {"127.0.0.1"}
        tests.kill()
        eventually(lambda: not any(one.is_running() for one in processes))


@pytest.mark.parametrize("server", [localstack, seaweedfs, pubsub, azurite])
def test_a_server_that_is_not_installed_says_how_it_is(
    server: Callable[[], AbstractContextManager[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLSTREAM_CACHE", str(tmp_path))
    with pytest.raises(NotInstalledError, match="make servers"), server():
        pass

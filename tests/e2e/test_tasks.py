"""What a page asks for survives the end of the daemon, even one that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.homes import Daemon, Home, patiently
from volstream.client import Client

pytestmark = pytest.mark.timeout(200)

#: Waits for a file beside it, and says when it begins.
_CODE = """
import time
from pathlib import Path

HERE = Path({folder!r})


def read(file):
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)
    return {{"text": file.read_text()}}
"""


def client_of(home: Home, daemon: Daemon) -> Client:
    return Client(f"http://127.0.0.1:{daemon.port}", (home.path / "console.token").read_text())


@pytest.mark.long
def test_tasks_of_a_daemon_that_was_killed_are_done_by_the_next_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("one")
    (tmp_path / "code.py").write_text(_CODE.format(folder=str(tmp_path)))
    home.ok("create-volume", "v", str(tmp_path / "files"))
    job = ("--volume", "v", "--function", "code.py:read", "--returns", "text STRING", "--into", "t", "--every", "1000h")
    home.ok("create-job", "j", *job)
    home.ok("pause", "j")
    with home.daemon() as daemon, client_of(home, daemon) as client:
        daemon.await_engine()
        client.resume("j")
        begun = [client.post("/jobs/j/run")["audit"], client.post("/jobs/j/verify")["audit"]]
        patiently((tmp_path / "begun").exists)
        states = [client.get(f"/tasks/{task}")["task"]["state"] for task in begun]
        assert states == ["running", "queued"]
        daemon.kill()
    (tmp_path / "go").touch()
    with home.daemon() as daemon, client_of(home, daemon) as client:
        run, verify = (client.wait(task, seconds=120) for task in begun)
        for task, found in zip(begun, (run, verify), strict=True):
            assert found["task"]["state"] == "finished"
            page: Any = client._client.get(f"{client._url}/tasks/{task}", headers={"accept": "text/html"}).text
            assert ">Finished<" in page
        assert verify["outcome"]["wrong"] == {}
    assert home.pairs("t") == [("a.txt", "one")]

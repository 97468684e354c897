"""Whether the process named by an owner is still alive."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import psutil
import pytest

from volstream.base.processes import is_alive, is_gone, listens, name_of_start, new_owner


def test_this_process_is_alive() -> None:
    assert not is_gone(new_owner())
    assert is_alive(os.getpid(), name_of_start(os.getpid()))


def test_a_process_stays_the_same_one_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, started, booted = new_owner(), name_of_start(os.getpid()), psutil.boot_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: booted + 60)
    monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: booted + 60)
    assert not is_gone(owner)
    assert is_alive(os.getpid(), started)


def test_two_owners_of_one_process_differ() -> None:
    assert new_owner() != new_owner()


def test_an_ended_process_is_gone() -> None:
    code = "from volstream.base.processes import new_owner; print(new_owner())"
    owner = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True).stdout
    assert is_gone(owner.strip())


def test_a_reused_process_id_is_not_the_old_process() -> None:
    host, pid, _, rest = new_owner().rsplit("/", 3)
    assert is_gone(f"{host}/{pid}/1.00/{rest}")


@pytest.mark.parametrize("owner", ["elsewhere/1/2.00/abc", "", "nonsense"])
def test_a_process_that_cannot_be_checked_is_not_considered_gone(owner: str) -> None:
    assert not is_gone(owner)


def test_a_nonexistent_process_has_no_start_time() -> None:
    with pytest.raises(ProcessLookupError):
        name_of_start(2**22 + 1)


def test_a_port_belongs_to_the_process_that_listens_on_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other,
    ):
        port = server.getsockname()[1]
        assert listens(os.getpid(), port)
        assert not listens(other.pid, port)
    assert not listens(os.getpid(), port)
    assert not listens(other.pid, port)

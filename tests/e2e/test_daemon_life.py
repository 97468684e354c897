"""Start and end of a daemon: signals, a second daemon on the same home, a JVM that dies or is missing, a port in use."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.homes import Daemon, Home, patiently, write
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(200)


def slow_job(home: Home, name: str, files: Path, started: Path, seconds: float) -> None:
    """A volume of one file, and a job that reports when it starts on it and then sleeps."""
    write(files, {"one.txt": "1"})
    home.ok("create-volume", name, str(files))
    home.create_job(
        name,
        "functions.py:slow",
        "--on-change",
        "--write",
        "append",
        "--arg",
        f"started={started}",
        "--arg",
        f"seconds={seconds}",
    )


@pytest.mark.long
def test_sigterm_finishes_the_current_batch_and_exits_with_0(home: Home, name: str, files: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    slow_job(home, name, files, started, 3)
    with home.daemon() as daemon:
        eventually(started.exists, timeout=60)
        daemon.signal()
        assert daemon.ended() == 0
    assert "daemon_stopped" in daemon.log
    assert home.engine() == {}
    [batch] = home.json("list", "batches", "--job", name)
    assert (batch["state"], batch["attempts"]) == ("committed", 1)
    home.ok("drop", "job", name)
    home.ok("drop", "volume", name)


@pytest.mark.long
def test_a_second_sigterm_exits_at_once_with_130_and_the_file_is_processed_later(
    home: Home, name: str, files: Path, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    slow_job(home, name, files, started, 100)
    with home.daemon() as daemon:
        eventually(started.exists, timeout=60)
        jvm = psutil.Process(home.engine()["jvm_pid"])
        daemon.signal()
        eventually(lambda: daemon.get("/healthz")[0] != 200)
        daemon.signal()
        assert daemon.ended() == 130
    eventually(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE)
    home.ok("alter-job", name, "--arg", f"started={started}", "--arg", "seconds=0", "--manual")
    home.ok("run-job", name)
    assert home.pairs(name) == [("one.txt", "1")]
    home.ok("drop", "job", name)
    home.ok("drop", "volume", name)


@pytest.mark.long
def test_a_second_daemon_waits_and_takes_over_when_the_first_is_killed(home: Home) -> None:
    with home.daemon() as first:
        second = Daemon(home)
        try:
            eventually(lambda: "waiting_for_home" in second.log, timeout=30)
            assert second.port is None
            jvm = first.await_engine()

            first.signal(signal.SIGKILL)

            second.await_ready()
            assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE
            assert home.engine()["pid"] == second.process.pid
            second.signal()
            assert second.ended() == 0
        finally:
            second.kill()


@pytest.mark.long
def test_a_waiting_daemon_exits_on_sigterm(home: Home) -> None:
    with home.daemon():
        second = Daemon(home)
        try:
            eventually(lambda: "waiting_for_home" in second.log, timeout=30)
            second.signal()
            assert second.ended(10) == 0
        finally:
            second.kill()


@pytest.mark.long
def test_a_dead_jvm_is_restarted_and_every_file_counts_once(home: Home, name: str, files: Path, tmp_path: Path) -> None:
    first = {f"{number:03}.txt": str(number) for number in range(60)}
    later = {f"later-{number}.txt": str(number) for number in range(5)}
    started = tmp_path / "started"
    write(files, first)
    home.ok("create-volume", name, str(files))
    home.create_job(
        name, "functions.py:slow", "--on-change", "--max-files", "20", "--arg", f"started={started}", "--arg", "seconds=0.1"
    )
    with home.daemon() as daemon:
        eventually(started.exists, timeout=100)
        jvm = psutil.Process(home.engine()["jvm_pid"])

        jvm.kill()

        patiently(lambda: daemon.engine_state()["state"] == "restarting")
        assert "signal 9 (SIGKILL)" in daemon.engine_state()["reason"]
        assert [daemon.get(path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
        write(files, later)
        assert daemon.await_engine().pid != jvm.pid
        daemon.follows(name, first | later)
        assert daemon.process.poll() is None
        assert home.engine()["pid"] == daemon.process.pid
        daemon.signal()
        assert daemon.ended() == 0
    assert "Traceback" not in daemon.log
    assert daemon.log.count("engine_lost") == 1
    batches = [batch for batch in home.json("list", "batches", "--job", name) if batch["state"] == "committed"]
    assert sum(batch["succeeded"] for batch in batches) == 65
    [job] = [one for one in home.json("status")["jobs"] if one["job"].endswith(name)]
    assert len(job["outcome"]) < 200
    home.ok("drop", "job", name)
    home.ok("drop", "volume", name)


def test_a_daemon_without_java_keeps_running_reports_it_and_exits_on_sigterm(home: Home, tmp_path: Path) -> None:
    with home.daemon(CACHE=str(tmp_path / "empty")) as daemon:
        patiently(lambda: daemon.engine_state()["state"] == "restarting")
        assert "volstream setup" in daemon.engine_state()["reason"]
        assert daemon.get("/healthz")[0] == 200
        daemon.signal()
        assert daemon.ended(10) == 0
    assert "engine_lost" in daemon.log


def _jvms(daemon: Daemon) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(daemon.process.pid).children():
        with suppress(psutil.Error):
            if any("org.apache.spark" in argument for argument in child.cmdline()):
                found.append(child)
    return found


def test_a_signal_stops_a_jvm_that_is_still_starting(home: Home) -> None:
    with home.daemon() as daemon:
        assert daemon.engine_state() == {"state": "starting"}
        eventually(lambda: _jvms(daemon))  # other children only look which Java there is
        [jvm] = _jvms(daemon)
        daemon.signal()
        assert daemon.ended(10) == 0
    assert not jvm.is_running()
    assert "engine_started" not in daemon.log


def test_a_port_in_use_ends_the_daemon_with_4_and_a_remedy(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = Daemon(home, "--http-port", str(port))
        try:
            assert daemon.ended() == 4
        finally:
            daemon.kill()
    assert f"port {port}" in daemon.log
    assert "--http-port" in daemon.log
    assert "Traceback" not in daemon.log

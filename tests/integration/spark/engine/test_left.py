"""A session that processes use one after the other: what the next one finds, and what it must not find."""

from __future__ import annotations

import os
import signal
import site
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import PySparkException

from tests.waiting import eventually
from volstream.spark.jvm.address import EngineAddress
from volstream.spark.session import SparkGateway

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def opened() -> Iterator[list[SparkGateway]]:
    opened: list[SparkGateway] = []
    yield opened
    for gateway in opened:
        gateway.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions" / "job"


def next_one(engine_address: EngineAddress, opened: list[SparkGateway], path: Path) -> SparkGateway:
    """What the next process has."""
    gateway = SparkGateway(lambda: engine_address, stall_seconds=60)
    opened.append(gateway)
    gateway.take_over(path)
    return gateway


def of_worker(gateway: SparkGateway) -> tuple[int, int, str]:
    """The worker's process, the one that it was forked from, and a mark that an earlier call on it left."""

    def look(batches: Any) -> Any:
        import pyarrow as pa

        for _ in batches:
            row = {"pid": [os.getpid()], "parent": [os.getppid()], "mark": [getattr(sys, "mark", "")]}
            sys.mark = "left by an earlier call"  # type: ignore[attr-defined]
            yield pa.RecordBatch.from_pydict(row)

    frame = gateway.session().range(1).coalesce(1).mapInArrow(look, "pid BIGINT, parent BIGINT, mark STRING")
    [row] = frame.collect()
    return row.pid, row.parent, row.mark


def left_by_a_run(engine_address: EngineAddress, opened: list[SparkGateway], path: Path) -> str:
    """The id of the session that a process used for a function and left."""
    gateway = next_one(engine_address, opened, path)
    session = gateway.session().session_id
    of_worker(gateway)
    gateway.close()
    return session


def test_the_next_process_finds_python_started_and_nothing_of_the_earlier_run_in_it(
    engine_address: EngineAddress, opened: list[SparkGateway], path: Path
) -> None:
    first = next_one(engine_address, opened, path)
    session = first.session().session_id
    pid, parent, _ = of_worker(first)
    assert of_worker(first) == (pid, parent, "left by an earlier call"), "a worker serves a process more than once"
    first.close()
    second = next_one(engine_address, opened, path)
    assert second.session().session_id == session
    another, same_parent, mark = of_worker(second)
    assert (same_parent, mark) == (parent, "")
    assert another != pid
    assert not psutil.pid_exists(pid)


@pytest.mark.long
def test_processes_at_the_same_time_have_sessions_of_their_own(
    engine_address: EngineAddress, opened: list[SparkGateway], path: Path
) -> None:
    first, second = next_one(engine_address, opened, path), next_one(engine_address, opened, path)
    left_one, other = first.session().session_id, second.session().session_id
    assert left_one != other
    second.close()
    of_worker(first)
    first.close()
    assert next_one(engine_address, opened, path).session().session_id == left_one


def test_an_ended_session_is_replaced(engine_address: EngineAddress, opened: list[SparkGateway], path: Path) -> None:
    first = next_one(engine_address, opened, path)
    session = first.session()
    session.range(1).collect()
    session.client.release_session()  # as the server does with a session that was unused for an hour
    first.close()
    second = next_one(engine_address, opened, path)
    assert second.session().session_id != session.session_id
    assert second.session().range(3).count() == 3


def test_the_session_of_a_killed_process_is_ended(engine_address: EngineAddress, opened: list[SparkGateway], path: Path) -> None:
    first = next_one(engine_address, opened, path)
    session = first.session()
    session.conf.set("spark.sql.shuffle.partitions", "7")
    [connection] = first._open.values()
    assert connection.left is not None
    connection.left.close()  # as the system does
    second = next_one(engine_address, opened, path)
    second_id = second.session().session_id
    assert second_id != session.session_id
    assert second.session().conf.get("spark.sql.shuffle.partitions") != "7"
    with pytest.raises(PySparkException, match="SESSION_CLOSED"):
        session.range(1).collect()
    of_worker(second)
    second.close()
    assert next_one(engine_address, opened, path).session().session_id == second_id


@pytest.mark.long
def test_a_package_that_was_installed_meanwhile_is_not_missed(
    engine_address: EngineAddress, opened: list[SparkGateway], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = left_by_a_run(engine_address, opened, path)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])
    assert next_one(engine_address, opened, path).session().session_id != session


@pytest.mark.long
@pytest.mark.parametrize("content", ["[", pytest.param("", marks=pytest.mark.long)])
def test_a_broken_file_costs_a_new_session(
    content: str, engine_address: EngineAddress, opened: list[SparkGateway], path: Path
) -> None:
    path.parent.mkdir()
    path.write_text(content)
    session = left_by_a_run(engine_address, opened, path)
    assert next_one(engine_address, opened, path).session().session_id == session


@pytest.mark.long
def test_a_session_whose_python_was_killed_is_replaced(
    engine_address: EngineAddress, opened: list[SparkGateway], path: Path
) -> None:
    first = next_one(engine_address, opened, path)
    session = first.session().session_id
    _, parent, _ = of_worker(first)
    first.close()
    os.killpg(parent, signal.SIGKILL)  # as when memory runs out
    second = next_one(engine_address, opened, path)
    assert of_worker(second)[2] == ""
    assert second.session().session_id != session


@pytest.mark.long
def test_code_that_changes_during_a_run_is_not_taken_for_that_of_the_run(
    engine_address: EngineAddress, opened: list[SparkGateway], path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next_one(engine_address, opened, path)
    session = first.session().session_id
    of_worker(first)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path)])  # something is installed
    first.close()
    assert next_one(engine_address, opened, path).session().session_id != session


def test_a_session_that_cannot_be_left_is_used_all_the_same(
    engine_address: EngineAddress, opened: list[SparkGateway], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    first = next_one(engine_address, opened, tmp_path / "file" / "job")
    assert first.session().range(3).count() == 3
    first.close()
    second = next_one(engine_address, opened, tmp_path / "job")
    second.session()
    [connection] = second._open.values()
    assert connection.left is not None
    with connection.left._file, open("/dev/full", "w") as full:
        connection.left._file = full
        second.close()
    assert second.lost is not None


def test_the_process_that_workers_are_forked_from_ends_when_it_has_none() -> None:
    code = "import volstream.jobs.batches.forkserver as it; it._IDLE_SECONDS = 1.0; it.serve()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "pyspark.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        (port,) = struct.unpack("!i", server.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as asking:
            (pid,) = struct.unpack("!i", asking.recv(4))
            assert psutil.Process(pid).ppid() == server.pid
            time.sleep(2.5)  # longer than it waits without workers
            assert server.poll() is None
        eventually(lambda: server.poll() is not None)
        assert not psutil.pid_exists(pid)

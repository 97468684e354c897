"""Status and end of an engine, without Spark."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from volstream.base import config, processes
from volstream.base.config import Settings
from volstream.errors import InvalidStateError
from volstream.spark.engine.client import attach, engine_status, stop_engine
from volstream.spark.engine.owner import HomeLock, Owner, read_record, record_path, write_record
from volstream.spark.jvm.address import EngineAddress, RemoteAddress


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = config.load(tmp_path)
    settings.run_directory.mkdir()
    return settings


def address(jvm_pid: int, jvm_started: str) -> EngineAddress:
    me = Owner.current_process("daemon")
    return EngineAddress(1234, "token", "daemon", me.pid, me.started, jvm_pid, jvm_started, http_port=8642)


def test_a_record_is_readable_by_its_owner_only(settings: Settings) -> None:
    write_record(settings, address(1, "0"))
    assert stat.S_IMODE(record_path(settings).stat().st_mode) == 0o600
    assert read_record(settings) == address(1, "0")
    assert [path.name for path in settings.run_directory.iterdir()] == ["engine.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"port": 1, "of_a_later_release": 2}'])
def test_a_record_that_cannot_be_parsed_counts_as_missing(settings: Settings, text: str) -> None:
    record_path(settings).write_text(text)
    assert read_record(settings) is None


def test_a_record_left_by_a_killed_engine_is_not_a_running_engine(settings: Settings) -> None:
    write_record(settings, address(jvm_pid=2**22 - 1, jvm_started=""))
    assert engine_status(settings) is None
    assert stop_engine(settings) is False


def test_an_engine_without_a_record_is_starting(settings: Settings) -> None:
    lock = HomeLock(settings)
    lock.try_acquire(Owner.current_process("background"))
    status = engine_status(settings)
    lock.release()
    assert status is not None
    assert (status.state, status.kind, status.port) == ("starting", "background", 0)


def test_the_status_shows_ports_and_processes(settings: Settings) -> None:
    lock = HomeLock(settings)
    me = Owner.current_process("daemon")
    lock.try_acquire(me)
    write_record(settings, address(me.pid, me.started))
    status = engine_status(settings)
    lock.release()
    assert status is not None
    assert (status.state, status.pid, status.jvm_pid, status.http_port) == ("running", me.pid, me.pid, 8642)


def test_the_engine_of_a_daemon_is_not_stopped_without_it(settings: Settings) -> None:
    lock = HomeLock(settings)
    lock.try_acquire(Owner.current_process("daemon"))
    with pytest.raises(InvalidStateError, match="daemon"):
        stop_engine(settings)
    lock.release()


def test_stopping_ends_a_jvm_whose_owner_is_gone(settings: Settings) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as orphan:
        write_record(settings, address(orphan.pid, processes.name_of_start(orphan.pid)))
        assert stop_engine(settings) is True
        assert orphan.wait(10) == -9


def test_a_remote_server_is_attached_to_unchanged(tmp_path: Path) -> None:
    settings = config.load(tmp_path, spark_remote="sc://cluster:15002", warehouse="/mnt/warehouse")
    assert attach(settings) == RemoteAddress("sc://cluster:15002")

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from volstream.base import config, processes
from volstream.errors import EngineError, InvalidValueError
from volstream.spark.engine.client import attach, remote_address, start
from volstream.spark.engine.owner import HomeLock, Owner, write_record
from volstream.spark.jvm.address import EngineAddress


@pytest.mark.parametrize(
    ("remote", "warehouse", "refused"),
    [
        ("sc://spark.example:15002", "", "folder in this host's"),
        ("sc://spark.example:15002", "/mnt/shared/warehouse", None),
        ("sc://localhost:15002/;token=t", "", None),
        ("spark://host:7077", "/mnt/w", "is not the address"),
    ],
)
def test_a_remote_spark_needs_a_warehouse_it_can_reach(tmp_path: Path, remote: str, warehouse: str, refused: str | None) -> None:
    settings = config.load(tmp_path, spark_remote=remote, warehouse=warehouse)
    if refused is None:
        assert remote_address(settings).url == remote
    else:
        with pytest.raises(InvalidValueError, match=refused):
            remote_address(settings)


def test_a_file_in_the_current_folder_does_not_shadow_a_module_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "psutil.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    settings = config.load(tmp_path / "home")
    lock = HomeLock(settings)
    lock.try_acquire(Owner.current_process("daemon"))  # so that the engine has nothing to do, once it is imported
    try:
        child = start(settings, tmp_path / "log" / "engine.log")
        assert child.wait(60) == 0
    finally:
        lock.release()


def test_an_engine_whose_port_belongs_to_another_process_is_not_attached_to(tmp_path: Path) -> None:
    settings = config.load(tmp_path, engine_start_seconds=0.2)
    me = Owner.current_process("daemon")
    lock = HomeLock(settings)
    lock.try_acquire(me)
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            address = EngineAddress(port, "t", "daemon", me.pid, me.started, jvm_pid=me.pid, jvm_started=me.started)
            write_record(settings, address)
            assert attach(settings) == address
            with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as jvm:
                started = processes.name_of_start(jvm.pid)
                write_record(settings, dataclasses.replace(address, jvm_pid=jvm.pid, jvm_started=started))
                with pytest.raises(EngineError, match="did not start in time"):
                    attach(settings)
    finally:
        lock.release()


def test_the_token_of_a_remote_spark_is_not_echoed(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError) as refused:
        remote_address(config.load(tmp_path, spark_remote="spark://host:7077/;token=hidden"))
    assert "hidden" not in str(refused.value)

"""A real engine: start, attach, share, lose, end. Tests that end the engine, or begin without one, have their own home."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.waiting import eventually
from volstream.base import config, processes
from volstream.base.config import Settings
from volstream.base.threads import Stop
from volstream.errors import EngineBusyError, EngineError, EngineLostError, JavaError
from volstream.spark.engine.client import attach, engine_status, stop_engine
from volstream.spark.engine.owner import Engine, Owner, read_record, write_record
from volstream.spark.errors import map_spark_errors
from volstream.spark.jvm import install, server
from volstream.spark.jvm.address import EngineAddress
from volstream.spark.jvm.command import COMPILED, INTERPRETED
from volstream.spark.jvm.server import start_jvm
from volstream.spark.session import SparkGateway

pytestmark = pytest.mark.timeout(180)

#: A name that Java, Spark, Log4j and shells would read as another, if it were given to them as it is.
ODD_HOME = "Jörg's $HOME; 1=2"

STALL_SECONDS = 3.0
#: How much longer than its time something may take on a busy machine.
SLACK_SECONDS = 3.0


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    settings = config.load(tmp_path / ODD_HOME, driver_memory=1 << 30, cores=2)
    yield settings
    if not stop_engine(settings, at_once=True):
        return
    assert engine_status(settings) is None


@pytest.fixture
def address(settings: Settings) -> EngineAddress:
    return attached(settings)


@pytest.fixture
def gateway(address: EngineAddress) -> Iterator[SparkGateway]:
    gateway = SparkGateway(lambda: address, stall_seconds=STALL_SECONDS)
    yield gateway
    gateway.close()


@pytest.fixture
def shared(engine_address: EngineAddress) -> Iterator[SparkGateway]:
    """A gateway of the test's own to the engine of all tests, which no test stops."""
    gateway = SparkGateway(lambda: engine_address, stall_seconds=STALL_SECONDS)
    yield gateway
    gateway.close()


def attached(settings: Settings) -> EngineAddress:
    address = attach(settings)
    assert isinstance(address, EngineAddress)
    return address


def jvm_lives(address: EngineAddress) -> bool:
    return processes.is_alive(address.jvm_pid, address.jvm_started)


def one(gateway: SparkGateway) -> int:
    with map_spark_errors():
        return int(gateway.session().sql("SELECT 1").collect()[0][0])


def test_no_process_of_python_listens_on_a_port(shared: SparkGateway, engine_address: EngineAddress) -> None:
    numbers = shared.session().range(3).mapInArrow(lambda batches: batches, "id BIGINT")
    assert [row[0] for row in numbers.collect()] == [0, 1, 2]
    workers = psutil.Process(engine_address.jvm_pid).children(recursive=True)
    assert len(workers) >= 2
    for worker in workers:
        with suppress(psutil.Error, FileNotFoundError):  # one that ended meanwhile, as idle ones do
            assert not [one for one in worker.net_connections("inet") if one.status == psutil.CONN_LISTEN]


def test_a_statement_runs_in_the_engine_of_the_home(shared: SparkGateway, engine_settings: Settings) -> None:
    assert one(shared) == 1
    status = engine_status(engine_settings)
    assert status is not None
    assert (status.state, status.kind) == ("running", "background")


def test_the_token_is_neither_on_a_command_line_nor_in_a_file_others_can_read(
    engine_address: EngineAddress, engine_settings: Settings
) -> None:
    for pid in (engine_address.engine_pid, engine_address.jvm_pid):
        assert engine_address.token not in " ".join(psutil.Process(pid).cmdline())
    readable = [path for path in engine_settings.home.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    assert not [path for path in readable if engine_address.token.encode() in path.read_bytes()]


def test_a_wrong_token_is_rejected(engine_address: EngineAddress) -> None:
    stranger = SparkGateway(lambda: dataclasses.replace(engine_address, token="guessed"), stall_seconds=STALL_SECONDS)
    try:
        with pytest.raises(EngineError, match="rejected the token") as caught:
            one(stranger)
        assert not isinstance(caught.value, EngineLostError)
    finally:
        stranger.close()


def test_fresh_sessions_share_neither_settings_nor_views(shared: SparkGateway) -> None:
    with shared.fresh() as first, shared.fresh() as second:
        first.conf.set("spark.databricks.delta.write.txnAppId", "mine")
        first.sql("SELECT 1 AS a").createOrReplaceTempView("mine")
        assert second.conf.get("spark.databricks.delta.write.txnAppId", None) is None
        assert not second.catalog.tableExists("mine")
    assert shared.session() is shared.session()


def test_a_pooled_session_is_reused_unless_its_block_raised(shared: SparkGateway) -> None:
    with shared.pooled() as first, shared.pooled() as second:
        assert first is not second
    with shared.pooled() as again, suppress(ValueError), shared.pooled() as other:
        raise ValueError("in the block")
    assert {again, other} == {first, second}
    with shared.pooled() as one, shared.pooled() as two:
        assert one is again
        assert two is not other
        assert two.range(1).count() == 1


def test_sessions_with_code_generation_have_their_own_pool(shared: SparkGateway) -> None:
    with shared.pooled(compiled=True) as compiling, shared.pooled() as plain:
        for session, settings in ((compiling, COMPILED), (plain, INTERPRETED)):
            assert {key: session.conf.get(key) for key in COMPILED} == settings
    with shared.pooled() as first, shared.pooled(compiled=True) as second:
        assert (first, second) == (plain, compiling)


def test_each_thread_has_a_session_that_ends_with_it(shared: SparkGateway) -> None:
    ids: list[str] = []
    for _ in range(3):
        thread = threading.Thread(target=lambda: ids.append(shared.session().session_id))
        thread.start()
        thread.join()
    shared.session()
    assert len(set(ids)) == 3
    assert len(shared._in_use()) == 1


@pytest.mark.parametrize("used", [pytest.param(True, marks=pytest.mark.long), False])
def test_an_engine_that_no_longer_has_a_session_is_lost(engine_address: EngineAddress, used: bool) -> None:
    gateway = SparkGateway(lambda: engine_address, stall_seconds=2)
    try:
        forgotten = gateway.session()
        forgotten.range(1).collect()
        with gateway.pooled() as other:
            other.range(1).collect()
        if used:
            forgotten.client.release_session()
        else:  # the other one, which no thread uses
            other.client.release_session()
        eventually(lambda: gateway.lost == "it no longer knows this session", 30)
    finally:
        gateway.close()


@pytest.mark.long
def test_sessions_that_are_released_are_not_missed(engine_address: EngineAddress) -> None:
    gateway = SparkGateway(lambda: engine_address, stall_seconds=0.4)
    try:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with gateway.fresh() as session:
                session.range(1).collect()
        assert gateway.lost is None
    finally:
        gateway.close()


@pytest.mark.long
def test_processes_that_attach_at_the_same_time_start_one_engine(settings: Settings) -> None:
    script = (
        "from volstream.base import config\n"
        "from volstream.spark.engine.client import attach\n"
        f"print(attach(config.load({str(settings.home)!r}, driver_memory=1 << 30)).jvm_pid)\n"
    )
    clients = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    pids = {client.communicate()[0] for client in clients}
    assert pids == {f"{attached(settings).jvm_pid}\n"}


@pytest.mark.long
def test_killing_the_engine_process_ends_the_jvm_and_the_next_attach_starts_another(settings: Settings) -> None:
    first = attached(settings)
    os.kill(first.engine_pid, signal.SIGKILL)
    eventually(lambda: not jvm_lives(first), timeout=SLACK_SECONDS)
    second = attached(settings)
    assert second.jvm_pid != first.jvm_pid
    assert not jvm_lives(first)


@pytest.mark.long
def test_the_next_engine_ends_an_orphaned_jvm(settings: Settings) -> None:
    orphan = start_jvm(settings)
    try:
        write_record(settings, dataclasses.replace(orphan.address("background"), engine_pid=2**22 - 1))
        successor = attached(settings)
        assert orphan.process.wait(SLACK_SECONDS) == -signal.SIGKILL
        assert jvm_lives(successor)
    finally:
        orphan.kill()


@pytest.mark.long
def test_a_frozen_jvm_is_a_lost_engine_within_the_stall_time(gateway: SparkGateway, address: EngineAddress) -> None:
    one(gateway)
    os.kill(address.jvm_pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        with pytest.raises(EngineLostError):
            one(gateway)
        assert time.monotonic() - began < STALL_SECONDS + SLACK_SECONDS
        with pytest.raises(EngineLostError, match="has not answered"), gateway.fresh():
            pass
    finally:
        os.kill(address.jvm_pid, signal.SIGKILL)


@pytest.mark.long
def test_closing_a_session_of_a_frozen_jvm_does_not_hang(gateway: SparkGateway, address: EngineAddress) -> None:
    began = time.monotonic()
    try:
        with gateway.fresh() as session:
            session.sql("SELECT 1").collect()
            os.kill(address.jvm_pid, signal.SIGSTOP)
            began = time.monotonic()
        assert time.monotonic() - began < STALL_SECONDS + SLACK_SECONDS
    finally:
        os.kill(address.jvm_pid, signal.SIGKILL)


def test_a_jvm_killed_mid_query_is_a_lost_engine(gateway: SparkGateway, address: EngineAddress, tmp_path: Path) -> None:
    began = tmp_path / "began"

    def hang(batches: Iterator[object]) -> Iterator[object]:
        Path(began).touch()
        threading.Event().wait(60)
        yield from batches

    def kill() -> None:
        eventually(began.exists, timeout=60)
        os.kill(address.jvm_pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(EngineLostError), map_spark_errors(), gateway.fresh() as session:
        session.range(1).mapInArrow(hang, "id BIGINT").collect()
    killer.join()
    eventually(lambda: gateway.lost is not None, timeout=SLACK_SECONDS)


@pytest.mark.long
def test_a_cancelled_query_that_does_not_end_ends_the_engine(settings: Settings) -> None:
    settings = settings.model_copy(update={"spark_conf": {"spark.volstream.stuckSeconds": "1"}})
    address = attached(settings)
    gateway = SparkGateway(lambda: address, stall_seconds=60)
    one(gateway)

    def used() -> dict[int, float]:
        return {thread.id: thread.user_time for thread in psutil.Process(address.jvm_pid).threads()}

    def cancel() -> None:
        before = used()
        eventually(lambda: max(time - before.get(id, 0) for id, time in used().items()) > 1, timeout=60)
        session.interruptAll()

    with gateway.fresh() as session:
        canceller = threading.Thread(target=cancel)
        canceller.start()
        endless = session.range(1).where(r"concat(repeat('a', 60), '!', id) rlike r'^(a|aa|aaa)+\1b$'")
        with pytest.raises(Exception, match=r"(?i)cancel"):
            endless.collect()
        canceller.join()
    eventually(lambda: not jvm_lives(address), timeout=SLACK_SECONDS)


@pytest.mark.long
def test_an_idle_engine_exits(settings: Settings) -> None:
    settings = settings.model_copy(update={"engine_idle_seconds": 2.0})
    settings.model_fields_set.add("engine_idle_seconds")
    address = attached(settings)
    gateway = SparkGateway(lambda: address, stall_seconds=60)
    one(gateway)
    used_until = time.monotonic() + 4  # longer than the idle time
    eventually(lambda: time.monotonic() > used_until or not jvm_lives(address), timeout=SLACK_SECONDS + 4)
    assert jvm_lives(address)
    gateway.close()
    eventually(lambda: engine_status(settings) is None, timeout=15)
    assert not jvm_lives(address)
    assert read_record(settings) is None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_small_heap_has_room_for_any_number_of_tables(tmp_path: Path) -> None:
    settings = config.load(tmp_path, driver_memory=512 << 20, cores=2)
    address = attached(settings)
    gateway = SparkGateway(lambda: address, stall_seconds=60)
    try:
        with map_spark_errors():
            for number in range(150):  # with what Delta keeps of each by default, the heap is full before
                at = f"delta.`{tmp_path}/tables/{number}`"
                gateway.session().range(5).write.format("delta").save(f"{tmp_path}/tables/{number}")
                assert gateway.session().sql(f"SELECT count(*) FROM {at}").collect()[0][0] == 5
    finally:
        gateway.close()
        stop_engine(settings, at_once=True)


@pytest.mark.long
def test_stopping_waits_for_connected_clients(settings: Settings, address: EngineAddress) -> None:
    gateway = SparkGateway(lambda: address, stall_seconds=60)
    one(gateway)
    stopping = threading.Thread(target=stop_engine, args=(settings,))
    stopping.start()
    eventually(lambda: (status := engine_status(settings)) is not None and status.state == "ending")
    assert one(gateway) == 1
    gateway.close()
    stopping.join(15)
    assert not stopping.is_alive()
    assert engine_status(settings) is None
    assert not jvm_lives(address)


@pytest.mark.long
def test_a_daemon_takes_over_the_home_from_a_background_engine(settings: Settings, address: EngineAddress) -> None:
    told: list[Owner] = []
    daemon = Engine(settings, kind="daemon", stop=Stop(), wait_seconds=60, waiting=told.append)
    try:
        mine = daemon.start()
        assert [owner.pid for owner in told] == [address.engine_pid]
        assert not jvm_lives(address)
        assert attached(settings) == mine
        other = Engine(settings, kind="daemon", stop=Stop())
        with pytest.raises(EngineBusyError, match=str(os.getpid())):
            other.start()
        daemon.announce(http_port=8642)
        assert attached(settings).http_port == 8642
        os.kill(mine.jvm_pid, signal.SIGKILL)
        eventually(lambda: daemon.failed)
    finally:
        daemon.stop()
    assert engine_status(settings) is None


def test_an_engine_that_cannot_start_shows_the_last_lines_of_the_jvm(settings: Settings) -> None:
    settings = settings.model_copy(update={"jvm_options": "-Xmx1k"})
    settings.model_fields_set.add("jvm_options")
    with pytest.raises(EngineError, match="heap"):
        attach(settings)


@pytest.mark.long
def test_a_port_that_another_process_took_is_not_used(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1]])
        free = server._free_port
        monkeypatch.setattr(server, "_free_port", lambda: next(ports, None) or free())
        started = start_jvm(settings)
        started.end()
        assert started.port != taken.getsockname()[1]


def test_an_engine_that_may_not_fetch_its_jars_says_how_to_get_them(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOLSTREAM_CACHE", str(tmp_path / "empty"))
    with pytest.raises(JavaError, match="volstream setup"):
        attach(settings.model_copy(update={"fetch_jars": False}))


def test_missing_jars_are_fetched_at_the_first_use_which_is_said(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOLSTREAM_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr(install, "_ATTEMPTS", 1)
    nowhere = settings.model_copy(update={"jar_repository": f"http://127.0.0.1:{server._free_port()}"})
    with pytest.raises(JavaError, match=r"delta-spark_4\.2_2\.13-4\.4\.0\.jar could not be downloaded from 127\.0\.0\.1"):
        attach(nowhere)
    assert capsys.readouterr().err == f"Fetching 5 jars of the engine into {tmp_path}/empty/jars, once ...\n"

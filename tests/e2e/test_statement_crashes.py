"""SIGKILL at every point of a statement that consumes a stream: the next one recovers, and every row counts once.

All tests share one home, one table ``t`` with its stream ``s``, and the table ``u`` that a statement fills from it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.e2e.homes import Home, finished, is_stopped
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]

INSERT = "INSERT INTO u SELECT id FROM s"


class World:
    """The shared table, and the expected rows of ``u``."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.count = 0
        home.ok(
            "sql",
            "CREATE TABLE t (id INT); ALTER TABLE t SET PROPERTIES ('change_tracking' = 'true'); "
            "CREATE STREAM s ON TABLE t; CREATE TABLE u (id INT); CREATE TABLE v (id INT)",
        )

    def add(self) -> None:
        """Adds two rows."""
        self.home.ok("sql", f"INSERT INTO t VALUES ({self.count}), ({self.count + 1})")
        self.count += 2

    def check(self, table: str = "u") -> None:
        """Each row is there once, and none is unread."""
        rows = self.home.rows(f"SELECT id FROM {table} ORDER BY id")
        assert [row["id"] for row in rows] == list(range(self.count))
        assert self.home.rows("SELECT * FROM s") == []
        assert {one["state"] for one in self.home.json("list", "batches")} <= {"committed", "dropped"}


@pytest.fixture(scope="module")
def world(home: Home) -> World:
    return World(home)


def test_a_statement_killed_at_any_point_is_recovered_by_the_next(world: World) -> None:
    for point in ("plan.opened", "batch.intent", "batch.written", "batch.committed"):
        world.add()
        world.home.crash("sql", INSERT, at=point)

    world.home.ok("sql", INSERT)

    world.check()


def test_the_next_statement_finishes_a_recovery_that_was_killed(world: World) -> None:
    world.add()
    for point in ("batch.intent", "recover.fence", "recover.fenced", "batch.written", "recover.fenced"):
        world.home.crash("sql", INSERT, at=point)

    world.home.ok("sql", INSERT)

    world.check()


def test_dropping_and_discarding_first_recover_what_a_killed_statement_left(world: World) -> None:
    home = world.home
    home.ok("sql", "CREATE STREAM other ON TABLE t")
    world.add()
    for command in (("advance-stream", "other"), ("drop", "stream", "other")):
        home.ok("sql", "INSERT INTO t VALUES (-1); DELETE FROM t WHERE id = -1; CREATE TABLE IF NOT EXISTS w (id INT)")
        world.home.crash("sql", "INSERT INTO w SELECT id FROM other", at="batch.intent")
        home.ok(*command)
    home.ok("sql", INSERT)
    world.check()


def test_an_engine_killed_mid_statement_loses_and_duplicates_nothing(world: World) -> None:
    world.add()
    # Something before it: a statement that has asked Spark for nothing yet would just take the next engine.
    child = world.home.start("sql", f"SELECT 1; {INSERT}", FAULT="batch.intent:stop")
    eventually(lambda: is_stopped(child.pid), timeout=60)
    psutil.Process(world.home.engine()["jvm_pid"]).kill()
    os.kill(child.pid, signal.SIGCONT)
    assert finished(child).code == 4

    world.home.ok("sql", INSERT)

    world.check()


TRANSACTION = """
import os, sys
import volstream
with volstream.Session.builder.create() as session, session.transaction():
    session.sql("INSERT INTO u SELECT id FROM s")
    if "stop" in sys.argv:
        os.kill(os.getpid(), 9)
    session.sql("INSERT INTO v SELECT id FROM s")
"""


def test_a_transaction_killed_between_two_statements_is_rolled_forward(world: World) -> None:
    world.home.ok("sql", "INSERT OVERWRITE v SELECT * FROM u")
    world.add()

    def run(*arguments: str) -> int:
        code = [sys.executable, "-c", TRANSACTION, *arguments]
        return subprocess.run(code, env=world.home.environment(), cwd=world.home.folder, timeout=100).returncode

    assert run("stop") == -signal.SIGKILL
    assert run() == 0

    rows = world.home.rows("SELECT id FROM u ORDER BY id")
    assert [row["id"] for row in rows] == list(range(world.count))
    # Its second statement never ran: what the first one took is not delivered again.
    assert len(world.home.rows("SELECT id FROM v")) == world.count - 2
    assert world.home.rows("SELECT * FROM s") == []


def test_a_statement_taken_over_while_it_slept_leaves_nothing_behind(world: World) -> None:
    world.home.ok("sql", "INSERT OVERWRITE v SELECT * FROM u")
    world.add()
    zombie = world.home.start("sql", "INSERT INTO v SELECT id FROM s", FAULT="batch.intent:stop", LEASE_SECONDS="0.5s")
    eventually(lambda: is_stopped(zombie.pid))
    eventually(lambda: world.home.run("sql", INSERT).code == 0)  # once its lease has run out
    os.kill(zombie.pid, signal.SIGCONT)
    assert finished(zombie).code == 4

    world.check()
    assert len(world.home.rows("SELECT id FROM v")) == world.count - 2

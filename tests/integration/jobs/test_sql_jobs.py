"""Jobs of SQL statements: a run is one consumption, and the job behaves like others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.conftest import Home, Place, session_on
from tests.waiting import eventually
from volstream.base.definitions import JobState, Trigger, TriggerKind
from volstream.catalog.alerts import ConditionKind
from volstream.errors import (
    AlreadyExistsError,
    FencedError,
    InvalidStateError,
    InvalidValueError,
    JobChangedError,
    NotFoundError,
    ObjectInUseError,
    SqlError,
    StreamBusyError,
)
from volstream.jobs.runs import lease
from volstream.jobs.runs.lease import Progress

COPY = "INSERT INTO u$ SELECT id, name FROM s$ WHERE __change_type = 'INSERT'"


@pytest.fixture
def copied(home: Home) -> Home:
    """A tracked table ``t$``, the stream ``s$`` on it, an empty table ``u$``, and the job ``j$`` that copies rows."""
    home.tracked()
    home.sql(f"CREATE TABLE u$ (id INT, name STRING); CREATE JOB j$ COMMENT 'copies' AS {COPY}")
    return home


def commits(home: Home, table: str) -> int:
    return len(home.sql(f"DESCRIBE HISTORY {table}"))


def test_one_run_is_one_consumption_by_the_statement(copied: Home) -> None:
    before = copied.offset() or 0
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'b', 2)")

    report = copied.session.jobs.run(copied.name("j"))

    assert (report.progress.rows, report.progress.batches) == (2, 1)
    assert copied.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]
    assert copied.offset() == before + 1
    [batch] = copied.session.batches.list(copied.name("j"))
    assert (batch.state, batch.rows) == ("committed", 2)
    assert {row["name"] for row in copied.session.batches.read(batch.id).toArrow().to_pylist()} == {"a", "b"}


def test_without_changes_nothing_runs(copied: Home) -> None:
    written = commits(copied, "u$")

    report = copied.session.jobs.run(copied.name("j"))

    assert report.progress.batches == 0
    assert commits(copied, "u$") == written
    assert copied.session.jobs.get(copied.name("j")).last_outcome == "nothing to do"


@pytest.mark.long
def test_commits_without_data_are_skipped_without_a_run(copied: Home) -> None:
    before, written = copied.offset() or 0, commits(copied, "u$")
    copied.sql("ALTER TABLE t$ SET TBLPROPERTIES ('note' = 'x')")

    copied.session.jobs.run(copied.name("j"))

    assert commits(copied, "u$") == written
    assert copied.offset() == before + 1


def test_it_is_listed_and_described_like_other_jobs(copied: Home) -> None:
    copied.sql(f"CREATE OR REPLACE JOB j$ ON STREAM s$ EVERY '30s' COMMENT 'copies' AS {COPY}")
    [shown] = [row for row in copied.sql("SHOW JOBS") if row["name"] == copied.name("j")]
    assert (shown["function"], shown["statement"], shown["into"], shown["trigger"], shown["comment"]) == (
        None,
        copied.own(COPY),
        copied.name("u"),
        "every 30s",
        "copies",
    )
    described = {row["property"]: row["value"] for row in copied.sql("DESCRIBE JOB j$")}
    assert described["statement"] == copied.own(COPY)
    assert described["streams"] == copied.name("s")
    stream = {row["property"]: row["value"] for row in copied.sql("DESCRIBE STREAM s$")}
    assert stream["job"] == copied.name("j")


@pytest.mark.long
def test_a_merge_keeps_a_table_up_to_date(home: Home) -> None:
    home.tracked()
    home.sql("CREATE TABLE u$ (id INT, name STRING, age INT)")
    home.sql(
        "CREATE JOB j$ ON CHANGE AS MERGE INTO u$ t USING s$ s ON t.id = s.id "
        "WHEN MATCHED AND s.__change_type = 'UPDATE_AFTER' THEN UPDATE SET t.age = s.age "
        "WHEN MATCHED AND s.__change_type = 'DELETE' THEN DELETE "
        "WHEN NOT MATCHED AND s.__change_type = 'INSERT' THEN INSERT VALUES (s.id, s.name, s.age)"
    )
    assert home.session.jobs.get(home.name("j")).trigger == Trigger(TriggerKind.ON_CHANGE)
    home.sql("INSERT INTO t$ VALUES (1, 'a', 1), (2, 'b', 2)")
    home.session.jobs.run(home.name("j"))
    home.sql("UPDATE t$ SET age = 10 WHERE id = 1; DELETE FROM t$ WHERE id = 2")

    home.session.jobs.run(home.name("j"))

    assert home.rows("SELECT * FROM u$") == [(1, "a", 10)]


@pytest.mark.long
def test_a_statement_job_on_two_streams_advances_and_owns_both(home: Home) -> None:
    home.tracked()
    home.tracked("t2", stream="s2")
    home.sql("CREATE TABLE u$ (id INT)")
    home.sql("CREATE JOB j$ ON STREAM s2$ AS INSERT INTO u$ SELECT id FROM s$ UNION ALL SELECT id FROM s2$")
    home.sql("INSERT INTO t2$ VALUES (2, 'b', 2)")
    runner = home.session.jobs.runner(home.session.jobs.get(home.name("j")))
    assert runner.has_work()

    home.session.jobs.run(home.name("j"))

    assert home.rows("SELECT * FROM u$") == [(2,)]
    assert not home.session.streams.has_data(home.name("s2"))
    assert not runner.has_work()
    for stream in ("s$", "s2$"):
        with pytest.raises(ObjectInUseError):
            home.sql(f"DROP STREAM {stream}")
        with pytest.raises(ObjectInUseError):
            home.sql(f"CREATE JOB other$ AS INSERT INTO u$ SELECT id FROM {stream}")


@pytest.mark.long
def test_a_failed_statement_leaves_the_offset_and_is_what_is_wrong_with_the_job(copied: Home) -> None:
    copied.sql(f"CREATE OR REPLACE JOB j$ AS {COPY} AND raise_error('no') IS NULL")
    before = copied.offset()
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1)")

    with pytest.raises(SqlError, match="no"):
        copied.session.jobs.run(copied.name("j"))

    assert copied.offset() == before
    conditions = copied.session.home.catalog.conditions
    job = copied.session.jobs.get(copied.name("j"))
    assert "no" in str(conditions.cause(ConditionKind.JOB, job.id))
    copied.sql(f"CREATE OR REPLACE JOB j$ AS {COPY}")
    copied.session.jobs.run(copied.name("j"))
    assert conditions.cause(ConditionKind.JOB, copied.session.jobs.get(copied.name("j")).id) is None
    assert copied.rows("SELECT * FROM u$") == [(1, "a")]


@pytest.mark.long
def test_a_paused_job_does_not_run_until_it_is_resumed(copied: Home) -> None:
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1); ALTER JOB j$ PAUSE")
    assert copied.session.jobs.get(copied.name("j")).state is JobState.PAUSED
    with pytest.raises(InvalidStateError, match="paused"):
        copied.session.jobs.run(copied.name("j"))
    copied.sql("ALTER JOB j$ RESUME")
    assert copied.session.jobs.run(copied.name("j")).progress.rows == 1


@pytest.mark.long
def test_a_run_until_empty_ends_after_the_consumption_in_which_its_job_was_paused(copied: Home) -> None:
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    name = copied.name("j")

    def more(_: Progress) -> None:
        copied.session.jobs.pause(name)
        copied.sql("INSERT INTO t$ VALUES (2, 'b', 2)")

    report = copied.session.jobs.run(name, until_empty=True, observe=more)

    assert (report.progress.rows, report.paused) == (1, "paused by the user")
    copied.session.jobs.resume(name)
    assert copied.session.jobs.run(name, until_empty=True).progress.rows == 1


@pytest.mark.long
def test_dropping_a_job_frees_its_stream(copied: Home) -> None:
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    copied.session.jobs.run(copied.name("j"))
    copied.sql("DROP JOB j$")
    with pytest.raises(NotFoundError):
        copied.session.jobs.run(copied.name("j"))
    copied.sql("INSERT INTO t$ VALUES (2, 'b', 2)")
    copied.sql(COPY)
    assert copied.rows("SELECT * FROM u$") == [(1, "a"), (2, "b")]
    copied.sql("DROP STREAM s$")


def test_a_run_that_began_before_its_job_was_dropped_consumes_nothing(copied: Home) -> None:
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    home, job = copied.session.home, copied.session.jobs.get(copied.name("j"))
    copied.sql("DROP JOB j$")
    with pytest.raises(JobChangedError), home.consumption(job=job) as consumption:
        consumption.take(copied.session.streams.get(copied.name("s")))
    assert home.catalog.consumptions.open_plan(job.stream_id) is None
    assert len(copied.sql("SELECT * FROM s$")) == 1


@pytest.mark.long
def test_a_job_whose_stream_is_being_consumed_does_not_run(copied: Home) -> None:
    copied.sql("INSERT INTO t$ VALUES (1, 'a', 1)")
    with copied.session.streams.get(copied.name("s")).consume(), pytest.raises(StreamBusyError):
        copied.session.jobs.run(copied.name("j"))


def test_trigger_and_comment_can_be_altered_and_nothing_else(copied: Home) -> None:
    changed = copied.session.jobs.alter(copied.name("j"), every=5.0)
    assert changed.trigger.every == 5.0
    with pytest.raises(InvalidValueError, match="retries"):
        copied.session.jobs.alter(copied.name("j"), retries=1)
    for act in (copied.session.jobs.replay, copied.session.jobs.preview):
        with pytest.raises(InvalidStateError, match="does not process single files"):
            act(copied.name("j"))


def test_unusable_statements_are_rejected_on_creation(copied: Home) -> None:
    copied.sql("CREATE STREAM s2$ ON TABLE t$")
    for statement, said in (
        ("CREATE JOB k$ AS SELECT * FROM s$", "writes nothing"),
        ("CREATE JOB k$ AS INSERT INTO u$ SELECT id, name FROM t$", "reads no stream"),
        ("CREATE JOB k$ AS INSERT INTO missing$ SELECT id, name FROM s2$", "no Delta table"),
        ("CREATE JOB k$ AS INSERT INTO s$ SELECT id, name FROM s2$", "is a stream"),
        ("CREATE JOB k$ ON STREAM s$ AS INSERT INTO u$ SELECT id, name FROM s2$", "does not read the stream"),
        ("CREATE JOB k$ ON CHANGE AS INSERT INTO t$ SELECT id, name, age FROM s2$", "run forever"),
        ("CREATE JOB k$ INTO TABLE u$ AS INSERT INTO u$ SELECT id, name FROM s2$", "no INTO"),
        ("CREATE JOB j$ AS INSERT INTO u$ SELECT id, name FROM s2$", "already a job"),
    ):
        with pytest.raises((SqlError, InvalidValueError, AlreadyExistsError), match=said):
            copied.sql(statement)


@pytest.mark.long
def test_the_run_lists_a_volume_that_was_never_listed(place: Place) -> None:
    place.put("a.txt")
    home = Home(place.session)
    home.sql(f"CREATE SCHEMA {home.schema}; CREATE TABLE u$ (path STRING)")
    home.sql("CREATE STREAM s$ ON VOLUME v; CREATE JOB j$ AS INSERT INTO u$ SELECT relative_path FROM s$")
    place.session.jobs.run(home.name("j"))
    assert home.rows("SELECT * FROM u$") == [("a.txt",)]


@pytest.mark.parametrize("how", ["pause", pytest.param("drop", marks=pytest.mark.long)])
def test_a_statement_that_spark_works_on_for_ever_ends_with_its_job(
    home: Home, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(lease, "LOOK_SECONDS", 0.1)
    endless = "SELECT max(a.id * b.id % 7 + s.id) FROM range(1L << 40) a CROSS JOIN range(1L << 40) b CROSS JOIN s$ s"
    home.tracked()
    home.sql(f"CREATE TABLE u$ (n BIGINT); CREATE JOB j$ AS INSERT INTO u$ {endless}; INSERT INTO t$ VALUES (1, 'a', 1)")
    before, name = home.offset(), home.name("j")
    settings = home.session.home.settings.model_copy(update={"batch_seconds": 0.5})
    with session_on(home.session.home.gateway, settings) as session, ThreadPoolExecutor(1) as pool:
        stream_id = session.jobs.get(name).stream_id
        run = pool.submit(session.jobs.run, name)
        eventually(lambda: session.home.catalog.consumptions.open_intent(stream_id) is not None, 60)
        if how == "pause":
            session.jobs.pause(name)
            assert run.result(60).paused == "paused by the user"
            assert session.jobs.get(name).last_outcome == "paused: paused by the user"
        else:
            session.jobs.drop(name, force=True)
            with pytest.raises(FencedError, match="was dropped while it ran"):
                run.result(60)
    assert home.rows("SELECT * FROM u$") == []
    assert home.offset() == before

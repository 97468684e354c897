"""Status, /readyz, the console and alerts agree on what is wrong, and on when it is over: over each thing that can be."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.registry import Collector
from starlette.testclient import TestClient

from tests import objects
from tests.commands import Shell, shell
from tests.tails import COLUMNS
from tests.waiting import eventually
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import FileJob, Function, JobState, Source, SourceType
from volstream.base.model.names import Name
from volstream.base.model.work import Target
from volstream.base.privacy import token_of
from volstream.base.threads import Stop
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.consumptions import BatchOutcome
from volstream.errors import SqlError
from volstream.jobs.runs.lease import held, lease
from volstream.ops.alerts import Alert, AlertEvaluator
from volstream.server.console.app import Console
from volstream.server.daemon.metrics import DaemonMetrics
from volstream.spark.engine.owner import Engine
from volstream.tables.delta import direct, places

__all__ = ["shell"]

#: Kind, name, and whether something stands still.
Verdict = set[tuple[str, str, bool]]

#: A condition begins when it is called with the views, and ends when what it returns is called.
Condition = Callable[["Views"], Callable[[], object]]

VIEWS = ("status", "readyz", "overview", "badges")

NOTHING_WRONG: dict[str, Verdict] = {view: set() for view in VIEWS}

#: What has no line of its own on the overview.
ROWLESS = ("engine", "function")


class Views:
    """The five views of a home with a volume ``v`` and a manual job ``j`` on it."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        assert shell.job("j", "one", "--retries", "0")[0] == 0
        told = {f"on_{event}": ("ops",) for event in ("failure", "pause", "stale", "problem")}
        receivers = {"ops": {"webhook": "http://127.0.0.1:1"}}
        settings = config.load(shell.home, receivers=receivers, alert_after_seconds=0.001, **told)
        self.session = Session(settings)
        self.home, self.catalog = self.session.home, self.session.home.catalog
        self.known: dict[str, Any] = {"status": "ready", "engine": {"state": "running"}}
        self.console = Console(self.session, lambda: (True, {}), lambda: (True, self.known), Nothing())
        bearer = {"authorization": f"Bearer {token_of(settings)}"}
        self.client = TestClient(self.console.app, base_url="http://127.0.0.1", headers=bearer)
        self.told: dict[str, Alert] = {}
        self.look()  # what is so already is not sent

    @property
    def job(self) -> FileJob:
        return objects.file_job(self.catalog.jobs.get(Name.parse("j")))

    def close(self) -> None:
        self.console.stop()
        self.session.close()

    def look(self) -> None:
        """What a daemon does that has just begun: it looks at streams, too."""
        look = AlertEvaluator(self.home, lambda: self.known["engine"], self._address)
        look.look()

    def _address(self, alert: Alert) -> Iterator[tuple[str, Mapping[str, Any]]]:
        self.told[alert.key] = alert
        yield from ()

    def alerted(self) -> Verdict:
        """What was sent and is not over."""
        self.look()
        open_ones = [one for one in self.told.values() if not one.resolved]
        return {(one.subject.kind, one.subject.name, one.severe) for one in open_ones}

    def verdicts(self) -> dict[str, Verdict]:
        """What each view says, but for alerts."""
        overview = self.json("/")
        kinds = {"jobs": "job", "volumes": "volume", "streams": "stream", "tables": "table", "sources": "source"}
        badges = {
            (kind, row.get(kind) or row["name"], row["problem"]["severe"])
            for rows, kind in kinds.items()
            for row in overview[rows]
            if row["problem"]
        }
        page = self.client.get("/", headers={"accept": "text/html"}).text
        assert ("All is well" in page) is overview["well"] is not overview["problems"]
        for severe, mark in ((True, "bad"), (False, "warn")):
            assert page.count(f'class="state {mark}"') == len([badge for badge in badges if badge[2] is severe])
        stopped = {name for kind, name, severe in badges if severe and kind in ("job", "stream")}
        assert self.metrics("volstream_job_failing", "volstream_stream_stale") == stopped
        return {
            "status": verdict(json.loads(self.shell.ok("status", "--format", "json"))["problems"]),
            "readyz": verdict(self.json("/readyz")["problems"]),
            "overview": verdict(overview["problems"]),
            "badges": badges | {one for one in verdict(overview["problems"]) if one[0] in ROWLESS},
        }

    def metrics(self, *names: str) -> set[str]:
        """The objects of which one of some metrics is 1."""
        scheduler: Any = SimpleNamespace(unrecorded={}, runs={})
        engine: Any = SimpleNamespace(is_up=True, failures=0)
        found = DaemonMetrics(self.catalog, self.home.reader, list, scheduler, engine).collect()
        samples = [sample for metric in found if metric.name in names for sample in metric.samples]
        return {next(iter(one.labels.values())) for one in samples if one.value}

    def json(self, path: str) -> Any:
        return self.client.get(path, headers={"accept": "application/json"}).json()

    def run(self, error: Exception | None = None) -> None:
        """A run of the job, without an engine."""
        with suppress(SqlError), lease(self.catalog, self.job, 10.0):
            if error is not None:
                raise error

    def fail(self, **values: Any) -> None:
        """A batch with a file that failed."""
        _, (batch,) = objects.store_plan(self.catalog, self.job, from_version=None)
        intent = self.catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
        self.catalog.failures.add_pending([objects.failure(self.job, "a.txt", intent.attempt, **values)])
        self.catalog.consumptions.commit(intent, BatchOutcome(1, 1, 0))
        self.catalog.streams.change(self.session.streams.get("j_stream"), table_id=None)  # its volume was never listed


class Nothing(Collector):
    def collect(self) -> Iterator[Any]:
        return iter(())


def verdict(found: list[dict[str, Any]]) -> Verdict:
    return {(one["kind"], one["name"], one["severe"]) for one in found}


@pytest.fixture
def views(shell: Shell) -> Iterator[Views]:
    made = Views(shell)
    yield made
    made.close()


def die_running(home: Path) -> None:
    session = Session(config.load(home))
    with lease(session.home.catalog, session.jobs.get("j"), 10.0):
        os.kill(os.getpid(), signal.SIGKILL)


def killed_run(views: Views) -> Callable[[], object]:
    process = multiprocessing.get_context("spawn").Process(target=die_running, args=(views.shell.home,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return views.run


def run_that_a_full_disk_ended(views: Views) -> Callable[[], object]:
    def statement(text: str) -> None:
        with closing(sqlite3.connect(views.shell.home / "catalog.db", timeout=10)) as connection:
            connection.execute(text)
            connection.commit()

    full = "BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END"
    statement(f"CREATE TRIGGER full BEFORE UPDATE OF last_outcome ON jobs {full}")
    views.run(SqlError("There is no space left on the device."))
    statement("DROP TRIGGER full")
    return views.run


def missing_function(views: Views) -> Callable[[], object]:
    away = views.shell.functions.with_suffix(".away")
    views.shell.functions.rename(away)
    return lambda: away.rename(views.shell.functions)


def missing_sql_function(views: Views) -> Callable[[], object]:
    code = views.shell.home / "g.py"
    made = Function(
        id="1", name=Name.parse("g"), function=f"{code}:g", search_path=None, returns="INT", created_on=datetime.now(UTC)
    )
    with views.catalog.database.transaction() as transaction:
        views.catalog.functions.add(transaction, made)
    return lambda: code.write_text("def g(x): ...")


def failed_run(views: Views) -> Callable[[], object]:
    views.run(SqlError("There is no column n."))
    views.run(SqlError("There is no column m."))
    return views.run


def paused_itself(views: Views) -> Callable[[], object]:
    views.catalog.jobs.change(views.job, state=JobState.PAUSED, state_reason="every file failed in 3 batches in a row")
    return lambda: views.shell.ok("resume", "j")


def paused_by_hand(views: Views) -> Callable[[], object]:
    views.shell.ok("pause", "j")
    return lambda: views.shell.ok("resume", "j")


def quarantined_file(views: Views) -> Callable[[], object]:
    views.fail(next_try=None)
    return lambda: views.shell.ok("skip", "j", "a.txt")


def retried_file_of_a_manual_job(views: Views) -> Callable[[], object]:
    views.fail(next_try=datetime.now(UTC) - timedelta(minutes=4))
    (row,) = views.json("/")["jobs"]
    assert row["next_retry"] is None, "it is not retried by itself"
    return lambda: views.shell.ok("skip", "j", "a.txt")


def wrong_table(views: Views) -> Callable[[], object]:
    views.catalog.conditions.note(ConditionKind.PROOF, views.job.id, "1 file: 1 missing")
    return lambda: views.catalog.conditions.note(ConditionKind.PROOF, views.job.id, None)


def failing_listing(views: Views) -> Callable[[], object]:
    away = views.shell.files.with_name("away")
    views.shell.ok("refresh", "v")
    views.shell.files.rename(away)
    assert views.shell("refresh", "v")[0] != 0

    def back() -> None:
        away.rename(views.shell.files)
        views.shell.ok("refresh", "v")

    return back


def quiet_volume(views: Views) -> Callable[[], object]:
    views.shell.ok("alter-volume", "v", "--expect-every", "1s")
    time.sleep(1.1)
    return lambda: views.shell.ok("alter-volume", "v", "--expect-every", "1h")


def held_removals(views: Views) -> Callable[[], object]:
    views.shell.ok("alter-volume", "v", "--max-removals", "1")
    views.shell.ok("refresh", "v")
    for one in views.shell.files.iterdir():
        one.unlink()
    views.shell.ok("refresh", "v")
    return lambda: views.shell.ok("refresh", "v", "--accept-removals")


def stale_stream(views: Views) -> Callable[[], object]:
    location = places.own_location(views.home.warehouse, Name.parse("readings"))
    assert direct.create(location, COLUMNS, {}, tracked=True)
    views.session.streams.create("late", table="readings")
    places.remove(location)
    assert direct.create(location, COLUMNS, {}, tracked=True)
    return lambda: views.shell.ok("advance-stream", "late")


def failing_commits(views: Views) -> Callable[[], object]:
    name = Name.parse("readings")
    views.catalog.tails.put(name, places.own_location(views.home.warehouse, name))
    views.catalog.conditions.note(ConditionKind.TABLE, str(name), "The disk is full.")
    return lambda: views.catalog.conditions.note(ConditionKind.TABLE, str(name), None)


def unreadable_topic(views: Views) -> Callable[[], object]:
    when = datetime.now(UTC)
    source = Source(
        id="1",
        name=Name.parse("topic"),
        kind=SourceType.KAFKA,
        primary_key=None,
        retention_policy=None,
        immutable=False,
        options={},
        comment=None,
        created_on=when,
    )
    with views.catalog.database.transaction() as transaction:
        views.catalog.sources.add(transaction, source)
    views.catalog.conditions.note(ConditionKind.SOURCE, source.id, "The broker is away.")
    return lambda: views.catalog.conditions.note(ConditionKind.SOURCE, source.id, None)


def restarting_engine(views: Views) -> Callable[[], object]:
    engine, reason = Engine(views.home.settings, kind="daemon", stop=Stop()), "It was killed by signal 9."
    engine.take()
    engine.announce(http_port=1, reason=reason)
    views.known["engine"] = {"state": "restarting", "reason": reason}

    def back() -> None:
        engine.stop()
        views.known["engine"] = {"state": "running"}

    return back


def run_in_hand(views: Views) -> Callable[[], object]:
    running = ExitStack()
    running.enter_context(held(views.catalog, views.job.id, views.job.name, 10.0))
    return running.close


@pytest.mark.parametrize(
    ("condition", "kind", "name", "severe"),
    [
        (missing_function, "job", "j", True),
        pytest.param(missing_sql_function, "function", "g", True, marks=pytest.mark.long),
        (failed_run, "job", "j", True),
        (killed_run, "job", "j", True),
        pytest.param(run_that_a_full_disk_ended, "job", "j", True, marks=pytest.mark.long),
        (paused_itself, "job", "j", True),
        pytest.param(paused_by_hand, "job", "j", False, marks=pytest.mark.long),
        (quarantined_file, "job", "j", False),
        pytest.param(retried_file_of_a_manual_job, "job", "j", False, marks=pytest.mark.long),
        (wrong_table, "job", "j", False),
        pytest.param(quiet_volume, "volume", "v", False, marks=pytest.mark.long),
        (failing_listing, "volume", "v", True),
        (held_removals, "volume", "v", False),
        (stale_stream, "stream", "late", True),
        pytest.param(failing_commits, "table", "readings", True, marks=pytest.mark.long),
        pytest.param(unreadable_topic, "source", "topic", True, marks=pytest.mark.long),
        (restarting_engine, "engine", "", True),
        (run_in_hand, "", "", False),
    ],
)
def test_all_views_say_the_same_and_are_green_as_soon_as_it_is_over(
    views: Views, condition: Condition, kind: str, name: str, severe: bool
) -> None:
    wrong: Verdict = {(kind, name, severe)} if kind else set()
    # Files are sent as errors once they are quarantined, and not while they are retried.
    special: dict[Condition, Verdict] = {quarantined_file: {("job", "j", True)}, retried_file_of_a_manual_job: set()}
    told = special.get(condition, wrong)
    assert views.verdicts() == NOTHING_WRONG
    end = condition(views)
    assert views.verdicts() == dict.fromkeys(VIEWS, wrong)
    eventually(lambda: views.alerted() == told)
    end()
    assert views.verdicts() == NOTHING_WRONG
    eventually(lambda: views.alerted() == set())

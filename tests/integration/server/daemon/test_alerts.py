"""Alerts from a catalog's facts to a real receiver, through restarts and while the receiver is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests import objects
from tests.commands import Shell, shell
from tests.receivers import Receiver, receiving
from tests.tails import COLUMNS
from tests.waiting import eventually
from volstream.api.objects.all import Objects
from volstream.base import config
from volstream.base.definitions import PAUSED_BY_USER, FileJob, JobState
from volstream.base.model.names import Name
from volstream.base.model.work import Target
from volstream.base.threads import Stop
from volstream.catalog.alerts import AlertCause, ConditionKind
from volstream.catalog.consumptions import BatchOutcome
from volstream.catalog.definitions import note_begun, note_ended
from volstream.errors import InvalidValueError
from volstream.home import Home
from volstream.jobs.rules.definitions import set_paused
from volstream.ops.alerts import Alert, AlertEvaluator
from volstream.server.daemon.alerts import AlertService, DeliveryWorker
from volstream.tables.delta import direct
from volstream.tables.delta.direct import RowChanges
from volstream.tables.delta.ownership import Marker
from volstream.tables.delta.places import own_location

__all__ = ["shell"]

#: All but stale streams: the job's stream is one.
MOST = {f"on_{event}": ("ops",) for event in ("failure", "pause", "problem")}


class World:
    """A home with a job, whose other processes are played by calls to its catalog."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        given = {
            "receivers": {"ops": {"webhook": url}, "team": {"webhook": f"{url}/team"}},
            "alert_after_seconds": 0.001,
            "lease_seconds": 2.0,
            **MOST,
            **settings,
        }
        self.home = Home(config.load(folder / "home", **given))
        self.catalog = self.home.catalog
        if self.catalog.jobs.find(Name.parse("classify")) is None:
            source = objects.volume()
            on_it = objects.stream(source)
            with self.catalog.database.transaction() as transaction:
                self.catalog.volumes.add(transaction, source)
                self.catalog.streams.add(transaction, on_it)
                self.catalog.jobs.add(transaction, objects.job(on_it, function=f"{folder}/f.py:f"))
        (folder / "f.py").touch()
        self.engine: Mapping[str, Any] = {"state": "running"}

    @property
    def job(self) -> FileJob:
        return objects.file_job(self.catalog.jobs.get(Name.parse("classify")))

    def fail(self, *paths: str, message: str = "no EXIF", commit: bool = True, **values: Any) -> None:
        """A batch whose files were quarantined."""
        current = self.catalog.streams.by_id(self.job.stream_id)
        assert current is not None
        made, (batch,) = objects.store_plan(self.catalog, self.job, from_version=current.offset)
        intent = self.catalog.consumptions.begin(batch, owner="me", target=Target("/t", "table", 0))
        given = {"message": message, "next_try": None, **values}
        self.catalog.failures.add_pending([objects.failure(self.job, path, intent.attempt, **given) for path in paths])
        if commit:
            self.catalog.consumptions.commit(intent, BatchOutcome(1, len(paths), 0))
        else:
            self.catalog.consumptions.abort(intent)
            self.catalog.consumptions.drop_plan(made)

    @contextmanager
    def daemon(self) -> Iterator[AlertService]:
        """The part of a daemon that tells, until it is stopped."""
        desk = AlertService(self.home, lambda: self.engine, lambda kind, name: f"http://console/{kind}s/{name}")
        thread = threading.Thread(target=desk.run, daemon=True)
        thread.start()
        try:
            eventually(lambda: "began" in self.catalog.alerts.causes())
            yield desk
        finally:
            desk.end()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def world(tmp_path: Path, receiver: Receiver) -> Iterator[World]:
    made = World(tmp_path, receiver.url)
    yield made
    made.home.close()


@pytest.mark.long
def test_files_that_failed_for_good_in_another_process_are_one_alert_that_is_alerted_once(
    world: World, receiver: Receiver
) -> None:
    with world.daemon():
        world.fail("again.jpg", next_try=datetime.now(UTC) + timedelta(hours=1))
        world.fail("dropped.jpg", commit=False)
        world.fail("a/one.jpg", "a/two.jpg")
        eventually(lambda: receiver.posts)
        world.fail("a/three.jpg")
    with world.daemon():
        set_paused(world.catalog, world.job.name, paused=True)
        eventually(lambda: len(receiver.posts) == 2)
    failed, paused = receiver.payloads
    assert (failed["event"], failed["kind"], failed["name"]) == ("failure", "job", "classify")
    assert failed["why"] == "2 files quarantined, such as a/two.jpg: no EXIF"
    assert failed["details"]["causes"] == [{"kind": "raised", "why": "no EXIF", "example": "a/two.jpg", "files": 2}]
    assert failed["url"] == "http://console/jobs/classify"
    assert failed["text"].splitlines()[1] == "Run: volstream list failures --job classify"
    assert (paused["event"], paused["severity"]) == ("pause", "warning")


def test_alerts_that_come_together_are_one_message_for_a_receiver_of_digests(tmp_path: Path, receiver: Receiver) -> None:
    both = {"ops": {"webhook": receiver.url, "digest": 3}}
    world = World(tmp_path, receiver.url, receivers=both)
    with world.daemon():
        pass
    world.fail("a.jpg")
    world.catalog.jobs.change(world.job, state=JobState.PAUSED, state_reason="every file failed in 3 batches in a row")
    with world.daemon():
        eventually(lambda: receiver.posts)
        eventually(lambda: not world.catalog.alerts.waiting())
    (found,) = receiver.payloads
    assert (found["event"], found["severity"], found["state"], found["why"]) == ("digest", "error", "active", "2 alerts")
    assert {alert["event"] for alert in found["details"]["alerts"]} == {"failure", "pause"}
    assert found["text"].count("Job classify: ") == 2
    world.home.close()


@pytest.mark.long
def test_what_happened_before_alerts_were_asked_for_is_not_told(world: World, receiver: Receiver) -> None:
    world.fail("old.jpg")
    set_paused(world.catalog, world.job.name, paused=True)
    with world.daemon():
        set_paused(world.catalog, world.job.name, paused=False)
        world.fail("new.jpg")
        eventually(lambda: receiver.posts)
    assert [payload["why"] for payload in receiver.payloads] == ["1 more file quarantined, 2 in all, such as new.jpg: no EXIF"]


@pytest.mark.long
def test_what_happens_while_no_daemon_runs_is_told_by_the_next(world: World, receiver: Receiver) -> None:
    with world.daemon():
        pass
    world.fail("a.jpg")
    world.catalog.jobs.change(world.job, state=JobState.PAUSED, state_reason="every file failed in 3 batches in a row")
    with world.daemon():
        eventually(lambda: len(receiver.posts) == 2)
    assert {(payload["event"], payload["severity"]) for payload in receiver.payloads} == {
        ("failure", "error"),
        ("pause", "error"),
    }
    assert not world.catalog.alerts.waiting()


def test_a_run_that_fails_is_alerted_once_although_it_is_tried_again_and_again(world: World, receiver: Receiver) -> None:
    with world.daemon() as desk:
        for _ in range(2):
            note_ended(world.catalog.database, world.job, None, failed="The bucket b does not exist.")
            eventually(lambda: receiver.posts)
            note_begun(world.catalog.database, world.job)
            eventually(lambda: desk._workers[0].delivered)
        world.catalog.jobs.change(world.job, state=JobState.PAUSED, state_reason=PAUSED_BY_USER)
        eventually(lambda: len(receiver.posts) == 2)
        world.catalog.jobs.change(world.job, state=JobState.ACTIVE, state_reason=None)
        note_ended(world.catalog.database, world.job, "3 files")
        eventually(lambda: len(receiver.posts) == 4)
    sent = [(payload["event"], payload["state"]) for payload in receiver.payloads]
    assert sent[:2] == [("failure", "active"), ("pause", "active")]
    assert {*sent[2:]} == {("failure", "resolved"), ("pause", "resolved")}, "not when it was paused"
    assert receiver.payloads[0]["why"] == "Its run failed: The bucket b does not exist."


@pytest.mark.long
def test_volumes_and_the_engine_that_stand_still_are_told(world: World, receiver: Receiver) -> None:
    world.engine = {"state": "restarting", "reason": "no Java"}
    with world.daemon():
        (volume,) = world.catalog.volumes.list()
        world.catalog.conditions.note(ConditionKind.VOLUME, volume.id, "Its folder is gone.")
        eventually(lambda: len(receiver.posts) == 2)
    with world.daemon():  # another one
        world.catalog.conditions.note(ConditionKind.VOLUME, volume.id, None)
        eventually(lambda: len(receiver.posts) == 3)
    payloads = receiver.payloads
    assert {(payload["event"], payload["kind"]) for payload in payloads[:2]} == {("problem", "volume"), ("problem", "engine")}
    alert = next(payload for payload in payloads if payload["kind"] == "volume")
    assert (payloads[2]["state"], payloads[2]["key"]) == ("resolved", alert["key"])
    assert payloads[2]["why"] == f"Resolved: {alert['why']}"


def test_a_stale_stream_is_told(tmp_path: Path, receiver: Receiver) -> None:
    world = World(tmp_path, receiver.url, on_stale=("ops",))
    with world.daemon():
        eventually(lambda: receiver.posts)  # its directory does not exist
    (alert,) = receiver.payloads
    assert (alert["event"], alert["kind"], alert["name"]) == ("stale", "stream", "changes")
    assert alert["do"].startswith("To continue from now: volstream advance-stream changes;")
    world.home.close()


def test_a_stream_that_will_soon_be_stale_is_told_while_there_is_time(tmp_path: Path, receiver: Receiver) -> None:
    month = 30 * 86400.0  # more than tables keep their changes
    world = World(tmp_path, receiver.url, on_stale=("ops",), stale_warning_seconds=month)
    location = own_location(world.home.warehouse, Name.parse("readings"))
    assert direct.create(location, COLUMNS, {}, tracked=True)
    Objects(world.home).streams.create("late", table="readings")
    rows = pa.table({"id": ["a"], "n": [1]}, schema=COLUMNS)
    assert direct.commit(location, Marker("test", 1, {}), RowChanges([rows], COLUMNS, "", None))
    with world.daemon():
        eventually(lambda: len(receiver.posts) == 2)  # the job's stream is stale already
    (alert,) = [payload for payload in receiver.payloads if payload["name"] == "late"]
    assert (alert["event"], alert["severity"]) == ("stale", "warning")
    assert "may be deleted in 7 days" in alert["why"]
    world.home.close()


@pytest.mark.long
def test_a_job_has_receivers_of_its_own_or_none(world: World, receiver: Receiver) -> None:
    with world.daemon():
        world.catalog.jobs.change(world.job, alert=("team", "nobody"))
        world.fail("a.jpg")
        eventually(lambda: receiver.posts)
        world.catalog.jobs.change(world.job, alert=())
        world.fail("b.jpg", message="other")
        eventually(lambda: sum(cause.count for cause in world.catalog.alerts.causes().values()) == 2)
        world.catalog.jobs.change(world.job, alert=None, state=JobState.PAUSED, state_reason=PAUSED_BY_USER)
        eventually(lambda: len(receiver.posts) == 2)
    assert [(post.path, post.json["event"]) for post in receiver.posts] == [("/team", "failure"), ("/", "pause")]


@pytest.mark.long
def test_an_alert_waits_through_restarts_until_its_receiver_is_back(tmp_path: Path, shell: Shell) -> None:
    with receiving() as first:
        port = first.port
    world = World(tmp_path, f"http://127.0.0.1:{port}")
    with world.daemon() as desk:
        world.fail("a.jpg")
        eventually(lambda: desk._workers[0].failed)
        assert {one.name: one.samples[0].value for one in desk.collect()}["volstream_alerts_waiting"] == 1
    (world.home.settings.home / "volstream.toml").write_text('[receivers.ops]\nwebhook = "http://127.0.0.1:1"\n')
    status = json.loads(shell.ok("status", "--format", "json"))
    (problem,) = [one for one in status["problems"] if one["kind"] == "receiver"]
    assert (problem["name"], problem["do"]) == ("ops", "volstream alert test ops")
    assert problem["why"].startswith("1 alert could not be delivered: The webhook at 127.0.0.1 did not accept the alert")
    with receiving(port) as back:
        with world.daemon():
            eventually(lambda: back.posts)
            eventually(lambda: not world.catalog.alerts.waiting())
        assert len(back.posts) == 1
    assert not world.catalog.alerts.undelivered()
    world.home.close()


@pytest.mark.long
def test_a_receiver_that_hangs_or_fails_delays_no_other(tmp_path: Path) -> None:
    with receiving() as good, receiving() as hanging:
        hanging.hangs = threading.Event()
        receivers = {"ops": {"webhook": hanging.url}, "team": {"webhook": good.url}, "odd": {"command": "false"}}
        world = World(tmp_path, good.url, receivers=receivers, on_failure=("ops", "odd", "team"))
        with world.daemon():
            for number in range(3):
                world.fail(f"{number}.jpg", message="abc"[number])
                eventually(lambda: len(good.posts) > number)  # noqa: B023  # called at once
            assert len(hanging.posts) == 1
            hanging.hangs.set()
        world.home.close()


def test_what_failed_before_an_upgrade_is_not_alerted_again(world: World) -> None:
    before = datetime.now(UTC) - timedelta(days=2)
    kept = [AlertCause("began", before), AlertCause(f"seen:{world.job.id}", before, count=1)]
    world.catalog.alerts.record(changed=kept, gone=[], made=[])
    world.fail("old.jpg")
    sent: list[str] = []

    def noted(alert: Alert) -> Sequence[tuple[str, Mapping[str, Any]]]:
        sent.append(alert.why)
        return []

    look = AlertEvaluator(world.home, lambda: world.engine, noted)
    look.look()
    world.fail("new.jpg")
    eventually(lambda: look.look() or sent)
    assert sent == ["1 more file quarantined, 2 in all, such as new.jpg: no EXIF"]
    assert {cause.since for cause in world.catalog.alerts.causes().values() if cause.key == "began"} == {before}
    assert not [key for key in world.catalog.alerts.causes() if key.startswith("seen:")]


def test_a_delivery_that_fails_as_nobody_has_thought_of_is_told_and_lets_others_go_first(world: World) -> None:
    stop, payload = Stop(), {"id": "1", "name": "v"}
    world.catalog.alerts.record(changed=[], gone=[], made=[("odd", payload)])
    courier = DeliveryWorker("odd", config.Receiver(command=("true", "a\0b")), world.home)
    thread = threading.Thread(target=courier.run, args=(stop,), daemon=True)
    thread.start()
    eventually(lambda: [one.error for one in world.catalog.alerts.undelivered()] == ["ValueError"])
    stop.set()
    thread.join(30)
    assert courier.failed >= 1


def test_a_home_in_which_nothing_happens_is_not_asked(world: World) -> None:
    look = AlertEvaluator(world.home, lambda: world.engine, lambda _: ())
    look.look()
    look.look()  # what it wrote itself
    asked: list[str] = []

    def causes() -> Mapping[str, AlertCause]:
        asked.append("causes")
        return {}

    world.catalog.alerts.causes = causes  # type: ignore[method-assign]  # counts
    assert [look.look() for _ in range(100)] == [False] * 100
    assert asked == []


def test_a_setting_that_names_no_receiver_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, "http://127.0.0.1:1", on_stale=("opps",))
    with pytest.raises(InvalidValueError, match="on_stale names an unknown receiver 'opps'"):
        AlertService(world.home, dict, lambda kind, name: "")
    world.home.close()


def test_the_command_tries_a_receiver_and_jobs_name_only_known_ones(tmp_path: Path, shell: Shell, receiver: Receiver) -> None:
    world = World(tmp_path, receiver.url)
    (shell.home / "volstream.toml").write_text(f'[receivers.ops]\nwebhook = "{receiver.url}"\n')
    assert "accepted a test alert" in shell.ok("alert", "test", "ops")
    assert [payload["event"] for payload in receiver.payloads] == ["test"]
    assert shell("alert", "test", "nope")[0] == 3
    assert shell("alter-job", "classify", "--alert", "nope")[0] == 3
    for given, stored in (("ops", ("ops",)), ("none", ()), ("default", None)):
        shell.ok("alter-job", "classify", "--alert", given)
        assert world.job.alert == stored
    world.home.close()

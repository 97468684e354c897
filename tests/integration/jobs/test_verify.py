"""``verify``: exactly what is wrong with a table is found without calling the function, and put right by it for these files."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.conftest import Place
from tests.waiting import eventually
from volstream.catalog.conditions import ConditionKind
from volstream.daemon.jobs import Scheduler
from volstream.definitions import FileJob, OnMove
from volstream.errors import StreamStaleError
from volstream.inspection.problems import problems
from volstream.inspection.status import status
from volstream.jobs import ledger
from volstream.jobs.verify import Problem
from volstream.lifecycle.stop import Stop

#: Rows: as many as the file has characters, but at most three; a file of one character gives none. Each call is noted.
CODE = """
import os
def f(file):
    with open({notes!r}, "a") as notes:
        notes.write(file.relative_path + "\\n")
    text = file.read_text()
    if text == "bad": raise ValueError("bad")
    return [{{"n": number, "t": text}} for number in range(min(len(text) - 1, 3))]
"""


class Verified:
    """The place, with a job whose calls are counted."""

    def __init__(self, place: Place, **options: object) -> None:
        self.place = place
        self.notes = place.folder.parent / "notes"
        place.job(CODE.format(notes=str(self.notes)), returns="n INT, t STRING", retries=0, **options)
        self.jobs = place.session.jobs
        self.location = f"{place.session.home.warehouse}/tables/public/t"

    def run(self) -> None:
        self.place.refresh()
        self.place.run()

    def calls(self) -> list[str]:
        """The files of the calls since the last time."""
        called = self.notes.read_text().split() if self.notes.exists() else []
        self.notes.unlink(missing_ok=True)
        return sorted(called)

    def wrong(self) -> dict[str, Problem]:
        before = DeltaTable(self.location).version()
        found = self.jobs.verify("j")
        assert found.fixed is None
        assert self.calls() == []
        assert DeltaTable(self.location).version() == before
        assert found.count == len(found.examples), "tests have few"
        return dict(found.examples)

    def content(self) -> list[tuple[object, ...]]:
        return sorted(self.place.table("_file_path, _file_version, n, t"))

    def sql(self, statement: str) -> None:
        self.place.session.spark.sql(statement.replace("t$", self.place.at)).collect()


@pytest.fixture
def verified(place: Place) -> Verified:
    for number in range(12):
        place.put(f"{number:02}", "x" * (number % 4 + 1))
    verified = Verified(place)
    verified.run()
    verified.calls()
    return verified


WRONGS: Mapping[str, tuple[str, dict[str, Problem]]] = {
    "deleted": ("DELETE FROM t$ WHERE _file_path IN ('01', '02')", {"01": Problem.MISSING, "02": Problem.MISSING}),
    "deleted in part": ("DELETE FROM t$ WHERE _file_path = '03' AND n = 1", {"03": Problem.FOREIGN}),
    "doubled": ("INSERT INTO t$ SELECT * FROM t$ WHERE _file_path = '05'", {"05": Problem.FOREIGN}),
    "doubled by another batch": (
        "INSERT INTO t$ SELECT n, t, _file_path, _file_version, _refresh_id, 'b', _processed_at FROM t$ WHERE _file_path = '05'",
        {"05": Problem.DOUBLED},
    ),
    "changed": ("UPDATE t$ SET t = 'y' WHERE _file_path = '06' AND n = 0", {"06": Problem.FOREIGN}),
    "of another version": ("UPDATE t$ SET _file_version = 'old' WHERE _file_path = '07'", {"07": Problem.OUTDATED}),
    "stray": (
        "INSERT INTO t$ (n, t, _file_path, _file_version) VALUES (1, 'x', 'gone', 'v')",
        {"gone": Problem.STRAY},
    ),
    "of a file without rows": (
        "INSERT INTO t$ SELECT n, t, '08', _file_version, _refresh_id, _batch_id, _processed_at FROM t$ WHERE _file_path = '01'",
        {"08": Problem.OUTDATED},
    ),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_what_others_did_is_found_and_put_right(verified: Verified, wrong: str) -> None:
    statement, problems = WRONGS[wrong]
    before = verified.content()
    assert verified.wrong() == {}
    verified.sql(statement)
    assert verified.wrong() == problems
    found = verified.jobs.verify("j", fix=True)
    assert (found.count, found.fixed) == (len(problems), len(problems))
    assert verified.calls() == sorted(path for path in problems if path != "gone")
    assert verified.content() == before
    assert verified.wrong() == {}


def test_what_is_right_whatever_happened_is_not_wrong(verified: Verified) -> None:
    place = verified.place
    place.put("bad", "bad")
    place.put("03", "changed")
    place.delete("05")
    verified.run()
    verified.calls()
    assert verified.wrong() == {}, "a file failed, one changed, one went"
    verified.jobs.replay("j")
    verified.calls()
    assert verified.wrong() == {}
    verified.sql("OPTIMIZE t$")
    verified.sql("DELETE FROM t$ WHERE _file_path = 'nothing'")
    assert verified.wrong() == {}
    place.put("06", "waits")
    place.delete("07")
    place.refresh()
    verified.sql("DELETE FROM t$ WHERE _file_path IN ('06', '07')")
    assert verified.wrong() == {}, "the next run is about these files"
    verified.run()
    verified.calls()
    assert verified.wrong() == {}


def test_a_restore_is_put_right(verified: Verified) -> None:
    version = DeltaTable(verified.location).version()
    for number in range(3):
        verified.place.put(f"{number:02}", f"again {number}")
    verified.place.put("new", "new")
    verified.run()
    verified.calls()
    right = verified.content()
    verified.sql(f"RESTORE t$ TO VERSION AS OF {version}")
    assert verified.wrong() == {
        "00": Problem.MISSING,
        **dict.fromkeys(["01", "02"], Problem.OUTDATED),
        "new": Problem.MISSING,
    }
    verified.jobs.verify("j", fix=True)
    assert verified.calls() == ["00", "01", "02", "new"]
    assert verified.content() == right


def test_exactly_what_random_hands_did_wrong_is_found_and_put_right(verified: Verified) -> None:
    place, chance = verified.place, random.Random(1)
    for number in range(300):
        place.put(f"many/{number:03}", "x" * (number % 4 + 1))
    verified.run()
    verified.calls()
    right = verified.content()
    paths = sorted({str(row[0]) for row in right})
    chosen = chance.sample(paths, 120)
    kinds: Mapping[str, Callable[[str], str]] = {
        "deleted": lambda some: f"DELETE FROM t$ WHERE _file_path IN ({some})",
        "changed": lambda some: f"UPDATE t$ SET n = n + 1 WHERE _file_path IN ({some})",
        "doubled": lambda some: f"INSERT INTO t$ SELECT * FROM t$ WHERE _file_path IN ({some})",
    }
    for at, kind in enumerate(kinds):
        verified.sql(kinds[kind](", ".join(repr(path) for path in chosen[at * 30 : at * 30 + 30])))
    strays = [f"stray/{number}" for number in range(10)]
    verified.sql(
        "INSERT INTO t$ (n, _file_path, _file_version) VALUES " + ", ".join(f"(1, '{path}', 'v')" for path in strays)
    )
    found = verified.jobs.verify("j")
    assert found.count == 90 + 10
    assert verified.jobs.verify("j", fix=True).fixed == 100
    assert verified.calls() == sorted(chosen[:90])
    assert verified.content() == right
    assert verified.jobs.verify("j").is_right


def test_what_is_wrong_is_a_condition_until_it_is_right(verified: Verified) -> None:
    def wrong() -> list[str]:
        found = problems(status(verified.place.session.home), {})
        return [one.why for one in found if one.do == "volstream verify j --fix"]

    verified.sql("DELETE FROM t$ WHERE _file_path = '01'")
    assert wrong() == []
    verified.wrong()
    assert wrong() == ["Its table is not as the files say: 1 file: 1 missing."]
    verified.run()
    assert wrong() != []
    verified.jobs.verify("j", fix=True)
    assert wrong() == []


def test_a_daemon_verifies_as_often_as_asked(verified: Verified) -> None:
    home, stop = verified.place.session.home, Stop()
    verified.sql("DELETE FROM t$ WHERE _file_path = '01'")
    verified.jobs.alter("j", verify_every="1s")
    scheduler = Scheduler(
        home.catalog, verified.jobs.runner, home.settings, home.zone, lambda _: True, stop, lambda: True
    )
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    try:
        eventually(lambda: home.catalog.conditions.of(ConditionKind.PROOF), 30)
        assert verified.calls() == []
        verified.jobs.alter("j", verify_every="1h")
        eventually(lambda: not scheduler.running, 30)
    finally:
        stop.set()
        thread.join()


def test_a_stream_that_lost_its_history_is_healed_by_few_calls(verified: Verified) -> None:
    place = verified.place
    place.put("03", "changed")
    place.put("new", "new")
    place.delete("05")
    place.refresh()
    catalog = place.session.home.catalog
    job = place.session.jobs.get("j")
    stream = catalog.streams.by_id(job.stream_id)
    assert stream is not None
    # The directory was made again, as after the loss of its folder.
    shutil.rmtree(Path(place.session.home.warehouse, "_directories"), ignore_errors=True)
    directory = next(Path(place.session.home.warehouse).rglob(f"*{place.volume.id}*"))
    shutil.rmtree(directory)
    place.refresh()
    with pytest.raises(StreamStaleError):
        place.run()
    with pytest.raises(StreamStaleError):
        verified.jobs.verify("j")
    found = verified.jobs.heal("j")
    assert found.fixed == found.count == 3
    assert verified.calls() == ["03", "new"]
    assert verified.wrong() == {}
    place.put("next", "next")
    verified.run()
    assert verified.calls() == ["next"]


def test_a_job_from_now_on_is_not_asked_for_what_was_there(place: Place) -> None:
    place.put("old", "xx")
    place.refresh()
    place.session.streams.create("later", volume="v")
    verified = Verified(place, volume=None, stream="later")
    place.put("new", "xx")
    verified.run()
    verified.calls()
    assert verified.wrong() == {}
    verified.sql("DELETE FROM t$")
    assert verified.wrong() == {"new": Problem.MISSING}


def test_moved_files_sets_and_logs_of_versions_are_verified(place: Place) -> None:
    place.put("a/1", "xx")
    place.put("a/2", "xx")
    place.put("b/1", "x")
    code = "def f(files):\n    return [{'n': file.size} for file in files if file.size > 1]\n"
    place.job(code, group_by="folder")
    place.refresh()
    place.run()
    session = place.session
    assert session.jobs.verify("j").is_right
    session.spark.sql(f"DELETE FROM {place.at}").collect()
    found = session.jobs.verify("j", fix=True)
    assert (dict(found.examples), found.fixed) == ({"a": Problem.MISSING}, 1)
    assert session.jobs.verify("j").is_right


def test_a_ledger_has_the_files_without_rows_only(verified: Verified) -> None:
    job = verified.jobs.get("j")
    assert isinstance(job, FileJob)
    assert job.on_move is OnMove.RERUN
    location = ledger.location_of(verified.place.session.home.warehouse, job.id)
    kept = verified.place.rows(f"SELECT path FROM delta.`{location}` ORDER BY path")
    assert [row["path"] for row in kept] == ["00", "04", "08"]
    version = DeltaTable(location).version()
    verified.place.put("more", "xxx")
    verified.run()
    assert DeltaTable(location).version() == version
    verified.jobs.drop("j")
    assert not Path(location).exists()

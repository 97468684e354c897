"""``verify``: exactly what is wrong with a table is found without calling the function, and put right by it for these files."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.conftest import Place
from tests.waiting import eventually
from volstream.base.definitions import FileJob, OnMove
from volstream.base.threads import Stop
from volstream.catalog.alerts import ConditionKind
from volstream.errors import InvalidStateError, StorageError, StreamStaleError
from volstream.home import Home
from volstream.jobs.batches.ledger import LEDGER
from volstream.jobs.proof.verify import Problem
from volstream.jobs.runs.run import Run
from volstream.ops.inspection.status import problems, status
from volstream.server.daemon.jobs import Scheduler
from volstream.tables.delta import history, upkeep

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


#: Statements of another writer, and what they make wrong.
WRONGS: Mapping[str, Mapping[str, Problem]] = {
    "DELETE FROM t$ WHERE _file_path IN ('01', '02')": {"01": Problem.MISSING, "02": Problem.MISSING},
    "DELETE FROM t$ WHERE _file_path = '03' AND n = 1": {"03": Problem.FOREIGN},
    "INSERT INTO t$ SELECT * FROM t$ WHERE _file_path = '05'": {"05": Problem.FOREIGN},
    "INSERT INTO t$ SELECT n, t, _file_path, _file_version, _refresh_id, 'b', _processed_at FROM t$ WHERE _file_path = '09'": {
        "09": Problem.DOUBLED
    },
    "UPDATE t$ SET t = 'y' WHERE _file_path = '06' AND n = 0": {"06": Problem.FOREIGN},
    "UPDATE t$ SET _file_version = 'old' WHERE _file_path = '07'": {"07": Problem.OUTDATED},
    "INSERT INTO t$ (n, t, _file_path, _file_version) VALUES (1, 'x', 'gone', 'v')": {"gone": Problem.STRAY},
    "INSERT INTO t$ SELECT n, t, '08', _file_version, _refresh_id, _batch_id, _processed_at FROM t$ WHERE _file_path = '10'": {
        "08": Problem.FOREIGN
    },
}


@pytest.mark.long
def test_what_others_did_is_found_and_put_right(verified: Verified) -> None:
    before, problems = verified.content(), dict[str, Problem]()
    assert verified.wrong() == {}
    for statement, made in WRONGS.items():
        verified.sql(statement)
        problems |= made
    found = verified.wrong()
    assert found.pop("08") in (Problem.FOREIGN, Problem.OUTDATED), "by how alike the files are"
    del problems["08"]
    assert found == problems
    fixed = verified.jobs.verify("j", fix=True)
    assert (fixed.count, fixed.fixed) == (9, 9)
    assert verified.calls() == ["01", "02", "03", "05", "06", "07", "08", "09"]
    assert verified.content() == before
    assert verified.wrong() == {}


@pytest.mark.long
def test_what_is_right_whatever_happened_is_not_wrong(verified: Verified) -> None:
    place = verified.place
    place.put("bad", "bad")
    place.put("03", "changed")
    place.delete("05")
    verified.run()
    verified.calls()
    assert verified.wrong() == {}, "a file failed, one changed, one went"
    found = verified.jobs.verify("j")
    assert (found.files, found.failing, found.waiting) == (12, 1, 0)
    verified.jobs.replay("j")
    verified.calls()
    assert verified.wrong() == {}
    verified.sql("OPTIMIZE t$")
    verified.sql("DELETE FROM t$ WHERE _file_path = 'nothing'")
    assert verified.wrong() == {}
    place.put("06", "waits")
    place.delete("07")
    place.put("later", "waits, too")
    place.refresh()
    assert verified.jobs.verify("j").waiting == 3
    verified.sql("DELETE FROM t$ WHERE _file_path IN ('06', '07')")
    assert verified.wrong() == {}, "the next run is about these files"
    verified.run()
    verified.calls()
    assert verified.wrong() == {}


@pytest.mark.long
def test_a_restore_is_put_right(verified: Verified) -> None:
    version = DeltaTable(verified.location).version()
    for number in range(3):
        verified.place.put(f"{number:02}", f"again {number}")
    verified.place.put("new", "new")
    verified.run()
    verified.calls()
    right = verified.content()
    verified.sql(f"RESTORE t$ TO VERSION AS OF {version}")
    assert verified.wrong() == {"00": Problem.MISSING, **dict.fromkeys(["01", "02"], Problem.OUTDATED), "new": Problem.MISSING}
    verified.jobs.verify("j", fix=True)
    assert verified.calls() == ["00", "01", "02", "new"]
    assert verified.content() == right


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_exactly_what_random_hands_did_wrong_is_found_and_put_right(verified: Verified, seed: int) -> None:
    """500 files of 2,000: of each kind 60 or more, in random order; some of them by going back to an earlier version."""
    place, chance = verified.place, random.Random(seed)
    names = [f"many/{number:04}" for number in range(2000)]
    for number, name in enumerate(names):
        place.put(name, "x" * (number % 3 + 2))
    verified.run()
    earlier = DeltaTable(verified.location).version()
    chosen = chance.sample(names, 470)
    wrong = [*chosen]
    restored, chosen = chosen[:110], chosen[110:]
    for name in restored:
        place.put(name, f"changed later {chance.random()}")
    verified.run()
    verified.calls()
    right = verified.content()
    strays = [f"stray/{number}" for number in range(30)]
    copied = "n, t, _file_path, _file_version, _refresh_id"
    kinds: list[tuple[int, str]] = [
        (60, "DELETE FROM t$ WHERE _file_path IN ({})"),
        (60, "DELETE FROM t$ WHERE n = 0 AND _file_path IN ({})"),
        (60, "UPDATE t$ SET n = n + 1 WHERE _file_path IN ({})"),
        (60, "UPDATE t$ SET _file_version = 'other' WHERE _file_path IN ({})"),
        (60, "INSERT INTO t$ SELECT * FROM t$ WHERE _file_path IN ({})"),
        (60, f"INSERT INTO t$ SELECT {copied}, 'another', _processed_at FROM t$ WHERE _file_path IN ({{}})"),
    ]
    statements = []
    for count, statement in kinds:
        some, chosen = chosen[:count], chosen[count:]
        parts = [some[: count // 2], some[count // 2 :]]
        statements += [statement.format(", ".join(map(repr, part))) for part in parts]
    assert not chosen
    values = ", ".join(f"(1, '{path}', 'v')" for path in strays)
    statements.append(f"INSERT INTO t$ (n, _file_path, _file_version) VALUES {values}")
    chance.shuffle(statements)
    # A restore takes back what others did before it, so it comes first.
    for statement in [f"RESTORE t$ TO VERSION AS OF {earlier}", *statements]:
        verified.sql(statement)
    found = verified.jobs.verify("j")
    assert found.count == 500
    assert found.wrong[Problem.STRAY] == 30
    fixed = verified.jobs.verify("j", fix=True)
    assert (fixed.count, fixed.fixed) == (500, 500)
    assert verified.calls() == sorted(wrong)
    assert verified.content() == right
    assert verified.jobs.verify("j").is_right


@pytest.mark.long
def test_what_is_wrong_is_a_condition_until_it_is_right(verified: Verified) -> None:
    def wrong() -> list[str]:
        found = problems(status(verified.place.session.home), {})
        return [one.why for one in found if one.do == "volstream verify j --fix"]

    verified.sql("DELETE FROM t$ WHERE _file_path = '01'")
    assert wrong() == []
    verified.wrong()
    assert wrong() == ["Its table does not match the files: 1 file: 1 missing."]
    verified.run()
    assert wrong() != []
    verified.jobs.verify("j", fix=True)
    assert wrong() == []


@contextmanager
def scheduled(home: Home, verified: Verified) -> Iterator[Scheduler]:
    """The jobs of a daemon, run while the block runs."""
    stop = Stop()
    scheduler = Scheduler(home.catalog, verified.jobs.runner, home.settings, home.zone, lambda _: True, stop, lambda: True)
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    try:
        yield scheduler
    finally:
        stop.set()
        thread.join()


@pytest.mark.long
def test_a_daemon_verifies_as_often_as_asked(verified: Verified) -> None:
    home = verified.place.session.home
    verified.sql("DELETE FROM t$ WHERE _file_path = '01'")
    verified.jobs.alter("j", verify_every="1s")
    with scheduled(home, verified) as scheduler:
        eventually(lambda: home.catalog.conditions.of(ConditionKind.PROOF), 30)
        assert verified.calls() == []
        verified.jobs.alter("j", verify_every="1h")
        eventually(lambda: not scheduler.running, 30)


@pytest.mark.long
def test_a_verification_that_fails_is_told_until_one_succeeds(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise StorageError("The store is away.")

    home = verified.place.session.home
    verified.jobs.alter("j", verify_every="2s", on_change=True)
    [job] = home.catalog.jobs.list()
    proof, failing = (partial(home.catalog.conditions.cause, kind, job.id) for kind in (ConditionKind.PROOF, ConditionKind.JOB))
    with monkeypatch.context() as patched, scheduled(home, verified):
        patched.setattr("volstream.jobs.runs.run.compared", away)
        eventually(lambda: proof() == "could not be compared with the files: The store is away.", 30)
        eventually(lambda: failing() is None, 30)
        assert proof() is not None
        patched.undo()
        eventually(lambda: proof() is None, 30)


@pytest.mark.long
def test_a_file_that_had_no_rows_once_is_asked_for_those_that_it_has_now(place: Place) -> None:
    for number in range(4):
        place.put(f"{number}", "x" * (number % 2 + 1))
    verified = Verified(place)
    verified.run()
    job = place.folder.parent / "code" / "job.py"
    job.write_text(job.read_text().replace("len(text) - 1", "len(text)"))
    verified.jobs.replay("j")
    verified.calls()
    assert verified.wrong() == {}
    shutil.rmtree(verified.location)
    found = verified.jobs.verify("j", fix=True)
    assert found.wrong == {Problem.MISSING: 4}
    assert verified.calls() == ["0", "1", "2", "3"]
    assert len(verified.content()) == 6


@pytest.mark.long
def test_a_table_that_was_made_again_is_looked_at_from_its_beginning(verified: Verified) -> None:
    for number in range(3):
        verified.place.put("03", f"again {number}")
        verified.run()
    assert verified.jobs.verify("j").is_right
    shutil.rmtree(verified.location)
    verified.jobs.replay("j")
    verified.calls()
    verified.sql("UPDATE t$ SET t = 'bad' WHERE _file_path = '01'")
    assert verified.wrong() == {"01": Problem.FOREIGN}


@pytest.mark.long
@pytest.mark.long
def test_a_log_that_is_kept_short_hides_nothing(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "VERSIONS", 8)
    monkeypatch.setattr(upkeep, "_CLEAN_COMMITS", 4)
    monkeypatch.setattr(upkeep, "COMMITS", 1)

    def live(number: int) -> list[int]:
        for each in range(number):
            verified.place.put("00", "x" * (each % 3 + 2))
            verified.run()
        return sorted(int(path.name[:20]) for path in Path(verified.location, "_delta_log").glob("*.json"))

    entries = live(20)
    assert entries[0] > 0
    job = verified.place.session.home.catalog.jobs.list()[0]
    assert isinstance(job, FileJob)
    assert job.verified_version == entries[0] - 1
    verified.calls()
    found = verified.jobs.verify("j")
    assert found.is_right
    assert found.seen_from is None
    first = live(1)[0]
    verified.sql("DELETE FROM t$ WHERE _file_path = '03' AND n = 1")
    changed = DeltaTable(verified.location).version()
    assert first < live(20)[0] <= changed
    verified.calls()
    assert verified.wrong() == {"03": Problem.FOREIGN}
    assert verified.jobs.verify("j", fix=True).fixed == 1
    assert live(18)[0] > changed


@pytest.mark.long
def test_files_that_a_reset_stream_delivers_again_are_no_strays(verified: Verified) -> None:
    place = verified.place
    catalog = place.session.home.catalog
    stream = catalog.streams.by_id(place.session.jobs.get("j").stream_id)
    assert stream is not None
    place.put("new", "xx")
    place.put("03", "changed")
    verified.run()
    verified.calls()
    place.session.streams.reset(str(stream.name), to_version=stream.offset)
    assert verified.wrong() == {}


@pytest.mark.long
def test_a_change_that_cannot_be_seen_may_be_in_any_older_row(verified: Verified) -> None:
    assert verified.jobs.verify("j").is_proven
    before = verified.content()
    verified.sql("UPDATE t$ SET t = 'bad' WHERE _file_path = '03'")
    verified.sql("OPTIMIZE t$")
    table = DeltaTable(verified.location)
    live = {name.rsplit("/", 1)[-1] for name in table.file_uris()}
    for path in Path(verified.location).glob("*.parquet"):
        if path.name not in live:
            path.unlink()
    found = verified.jobs.verify("j")
    assert found.wrong == {Problem.FOREIGN: len({row[0] for row in before})}
    assert [(commit.operation, commit.unseen) for commit in found.commits] == [("UPDATE", True)]
    assert verified.jobs.verify("j", fix=True).is_right
    assert verified.content() == before
    assert verified.jobs.verify("j").is_proven


@pytest.mark.long
def test_a_writer_that_rewrites_whole_files_is_blamed_for_what_it_changed(verified: Verified) -> None:
    verified.sql("ALTER TABLE t$ SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')")
    verified.sql("DELETE FROM t$ WHERE _file_path = '01'")
    assert verified.wrong() == {"01": Problem.MISSING}
    verified.sql("UPDATE t$ SET t = 'bad' WHERE _file_path = '02' AND n = 0")
    assert verified.wrong() == {"01": Problem.MISSING, "02": Problem.FOREIGN}


@pytest.mark.long
def test_rows_without_a_path_are_told(verified: Verified) -> None:
    verified.sql("INSERT INTO t$ (n, t, _file_version) VALUES (77, 'z', 'v'), (78, 'z', NULL)")
    found = verified.jobs.verify("j")
    assert (found.count, found.pathless, found.is_right) == (0, 2, False)
    assert found.text == "2 rows without the path of a file"


@pytest.mark.long
def test_rows_that_a_failed_file_still_has_are_compared(verified: Verified) -> None:
    for name in ("03", "04"):
        verified.place.put(name, "bad")
    verified.run()
    verified.calls()
    assert verified.wrong() == {}
    verified.sql("UPDATE t$ SET t = 'hacked' WHERE _file_path = '03'")
    verified.sql(
        "INSERT INTO t$ SELECT n, t, '04', _file_version, _refresh_id, _batch_id, _processed_at FROM t$ WHERE _file_path = '05'"
    )
    assert verified.wrong().keys() == {"03", "04"}


@pytest.mark.long
def test_a_failed_file_excuses_no_doubled_rows(verified: Verified) -> None:
    verified.place.put("03", "bad")
    verified.run()
    verified.calls()
    assert verified.wrong() == {}
    verified.sql(
        "INSERT INTO t$ SELECT n, t, _file_path, _file_version, _refresh_id, 'b', _processed_at FROM t$ WHERE _file_path = '03'"
    )
    assert verified.wrong() == {"03": Problem.DOUBLED}


@pytest.mark.long
def test_a_dropped_column_is_not_all_right(verified: Verified) -> None:
    before = verified.content()
    verified.sql("ALTER TABLE t$ SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    verified.sql("ALTER TABLE t$ DROP COLUMN t")
    verified.place.put("03", "changed")
    verified.run()  # which adds the column again: other files have no value in it
    found = verified.jobs.verify("j")
    assert [commit.operation for commit in found.commits] == ["DROP COLUMNS"]
    assert {*found.wrong} == {Problem.FOREIGN}
    assert found.count == len({row[0] for row in before} - {"03"})
    assert verified.jobs.verify("j", fix=True).is_right
    assert [row for row in verified.content() if row[0] != "03"] == [row for row in before if row[0] != "03"]
    assert verified.jobs.verify("j").is_proven


@pytest.mark.long
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


@pytest.mark.long
def test_a_job_from_now_on_is_not_asked_for_what_was_there(place: Place) -> None:
    place.put("old", "xx")
    place.refresh()
    time.sleep(0.1)
    place.session.streams.create("later", volume="v")
    verified = Verified(place, volume=None, stream="later")
    place.put("new", "xx")
    verified.run()
    verified.calls()
    assert verified.wrong() == {}
    verified.sql("DELETE FROM t$")
    assert verified.wrong() == {"new": Problem.MISSING}
    directory = next(Path(place.session.home.warehouse).rglob(f"*{place.volume.id}*"))
    shutil.rmtree(directory)
    place.refresh()
    assert verified.jobs.heal("j").fixed == 1
    assert verified.calls() == ["new"]
    assert verified.wrong() == {}


@pytest.mark.long
def test_sets_are_verified(place: Place) -> None:
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


def test_a_job_that_never_ran_has_nothing_to_compare(place: Place) -> None:
    place.put("a", "xx")
    place.refresh()
    verified = Verified(place)
    for act in (verified.jobs.verify, verified.jobs.heal):
        with pytest.raises(InvalidStateError, match="has not finished its first run"):
            act("j")


@pytest.mark.long
def test_files_of_an_unfinished_plan_are_not_compared(verified: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    verified.sql("DELETE FROM t$ WHERE _file_path IN ('01', '02')")
    monkeypatch.setattr(Run, "process", lambda run, *_: run.stop.set())
    verified.jobs.verify("j", fix=True)
    monkeypatch.undo()
    found = verified.jobs.verify("j")
    assert (found.wrong, found.waiting, found.is_proven) == ({}, 2, False)
    shutil.rmtree(Path(verified.place.session.home.warehouse, "_plans"))
    assert verified.wrong() == {"01": Problem.MISSING, "02": Problem.MISSING}
    verified.jobs.verify("j", fix=True)
    assert verified.calls() == ["01", "02"]
    assert verified.wrong() == {}


def test_a_job_that_pauses_before_it_is_compared_is_not_called_right(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        place.put(name, "good")
    place.job(
        "def f(file):\n    if file.read_text() != 'good': raise ValueError('bad')\n    return {'n': 1}\n",
        max_files=1,
        pause_after=1,
        retries=0,
    )
    place.run()
    for name in "abc":
        place.put(name, "bad!")
    place.refresh()
    with monkeypatch.context() as patch:  # a run that ends after its plan
        patch.setattr(Run, "process", lambda run, *_: run.stop.set())
        place.run()
    with pytest.raises(InvalidStateError, match="was paused before its table was compared"):
        place.session.jobs.verify("j", fix=True)


@pytest.mark.long
def test_a_paused_job_is_verified(verified: Verified) -> None:
    verified.jobs.pause("j")
    assert verified.jobs.verify("j").is_right


def test_a_ledger_has_the_files_without_rows_only(verified: Verified) -> None:
    job = verified.jobs.get("j")
    assert isinstance(job, FileJob)
    assert job.on_move is OnMove.RERUN
    location = LEDGER.of(verified.place.session.home.warehouse, job.id)
    kept = verified.place.rows(f"SELECT path FROM delta.`{location}` ORDER BY path")
    assert [row["path"] for row in kept] == ["00", "04", "08"]
    version = DeltaTable(location).version()
    verified.place.put("more", "xxx")
    verified.run()
    assert DeltaTable(location).version() == version
    verified.jobs.drop("j")
    assert not Path(location).exists()


@pytest.mark.long
def test_an_append_table_that_others_changed_is_not_proven(place: Place) -> None:
    place.put("a", "abc")
    verified = Verified(place, write="append")
    verified.run()
    assert verified.jobs.verify("j").is_proven
    verified.sql("UPDATE t$ SET n = 7")
    for _ in range(2):
        found = verified.jobs.verify("j")
        assert (found.wrong, found.is_right, found.is_proven, len(found.commits)) == ({}, True, False, 1)


def test_a_file_that_fails_while_it_is_put_right_is_a_failure_and_no_longer_a_difference(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.put(name, name)
    place.job("def f(file):\n    return {'n': 1}\n", retries=0)
    place.run()
    place.gateway.session().sql(f"DELETE FROM {place.at} WHERE _file_path <> 'c'").collect()
    code = "def f(file):\n    return {'n': 1 // (file.name != 'a')}\n"
    (place.folder.parent / "code" / "job.py").write_text(code)
    found = place.session.jobs.verify("j", fix=True)
    assert (found.count, found.fixed, found.is_right) == (2, 1, False)
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["a"]
    assert place.session.jobs.verify("j").count == 0
    assert place.session.home.catalog.conditions.of(ConditionKind.PROOF) == {}

"""Which version of a job's code made which rows: right after anything that can happen to code, files and history."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event

from tests.integration.conftest import Place
from volstream.base.definitions import FileJob, OnMove
from volstream.base.model.names import Name
from volstream.catalog.codes import CodeVersion
from volstream.errors import VolstreamError
from volstream.jobs import ledger
from volstream.jobs.code import prune, stale_paths
from volstream.ops.inspection import details
from volstream.ops.inspection.file_history import tell
from volstream.tables.delta import folders

#: Each row says which code made it: a number in the code, and an argument.
CODE = """
N = {number}


def f(file, add='0'):
    text = file.read_text()
    if 'bad' in text:
        raise ValueError('no good')
    if 'empty' in text:
        return []
    return [{{'n': N * 10 + int(add)}}] * (1 + len(text) % 2)
"""


def edit(place: Place, number: int) -> None:
    (place.folder.parent / "code" / "job.py").write_text(CODE.format(number=number))


def value_of(version: CodeVersion) -> int:
    """What the rows of a version say."""
    assert version.source is not None
    (text,) = version.source.values()
    found = re.search(r"N = (\d+)", text)
    assert found is not None
    return int(found[1]) * 10 + int(version.arguments.get("add", "0"))


def check(place: Place, now: int, empty: dict[str, int]) -> None:
    """Compares the counts with what the rows say; ``empty``: the code that found that a file has no rows."""
    found = place.session.jobs.code("j")
    assert found is not None
    values = {version.number: value_of(version) for version in found.versions}
    rows = place.rows(f"SELECT DISTINCT _file_path, n FROM {place.at}")
    made_by = {str(row["_file_path"]): int(str(row["n"])) for row in rows} | empty
    assert Counter(made_by.values()) == Counter({values[n]: count for n, count in found.files.items() if n is not None})
    assert None not in found.files
    assert values.get(found.current, now) == now
    job = place.session.home.catalog.jobs.get(Name.parse("j"))
    assert isinstance(job, FileJob)
    assert stale_paths(place.session.home, job) == sorted(path for path, value in made_by.items() if value != now)
    assert found.stale == sum(value != now for value in made_by.values())


@pytest.mark.parametrize("turns", [14, pytest.param(120, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
def test_versions_of_code_are_right_after_any_sequence_of_events(place: Place, turns: int) -> None:
    choice = random.Random(turns)
    number, add = 1, 0
    content: dict[str, str] = {}
    empty: dict[str, int] = {}
    for name in "abcdef":
        content[name] = f"first {name}"
        place.put(name, content[name])
    place.job(CODE.format(number=number), on_move=OnMove.REKEY)
    events = ["edit", "revert", "argument", "put", "delete", "move", "replay", "stale", "forget", "run", "run"]

    def process(act: str) -> None:
        place.refresh()
        if act == "stale":
            place.session.jobs.replay("j", stale=True)
        elif act == "replay":
            place.session.jobs.replay("j", where="relative_path < 'd'")
        else:
            place.run()

    known: dict[str, tuple[str, int]] = {}  # the text that was processed last, and by which code
    process("run")
    for turn in range(turns):
        turned = choice.choice(events)
        match turned:
            case "edit":
                number += 1
                edit(place, number)
            case "revert":
                number = choice.randint(1, number)
                edit(place, number)
            case "argument":
                add = choice.randint(0, 3)
                place.session.jobs.alter("j", arguments={"add": str(add)} if add else {})
            case "put":
                name = choice.choice("abcdefghij")
                content[name] = f"{choice.choice(['bad', 'empty', 'good', 'fine'])} {turn}"
                place.put(name, content[name])
            case "delete" if len(content) > 3:
                name = choice.choice([*content])
                content.pop(name)
                place.delete(name)
            case "move" if content:
                name = choice.choice([*content])
                content[f"{name[0]}{turn}"] = content.pop(name)
                (place.folder / name).rename(place.folder / f"{name[0]}{turn}")
            case "forget":
                later = datetime.now(UTC) + timedelta(days=1)
                place.session.home.catalog.history.forget(later, kept=1000)
            case _:
                pass
        if turned in ("run", "replay", "stale", "put", "move", "delete"):
            with suppress(VolstreamError):
                process(turned)
            kept = place.session.home.warehouse
            entries: list[dict[str, object]] = []
            job = place.session.jobs.get("j")
            with suppress(VolstreamError):
                entries = place.rows(f"SELECT path, batch FROM delta.`{kept}/_ledgers/{job.id}`")
            codes = place.session.home.catalog.codes
            values = {version.number: value_of(version) for version in codes.versions(job.id)}
            batches = codes.of_batches(str(entry["batch"]) for entry in entries)
            for entry in entries:
                path = str(entry["path"])
                made = values[batches[str(entry["batch"])].of(path) or 0]
                if known.get(path, ("", 0))[0] != content.get(path) or turned in ("replay", "stale"):
                    known[path] = content.get(path, ""), made
            empty = {str(entry["path"]): known[str(entry["path"])][1] for entry in entries}
        check(place, number * 10 + add, empty)


def test_rows_of_former_code_are_named_and_only_they_are_replayed(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.put(name, name)
    place.job(CODE.format(number=1))
    place.run()
    job = place.session.jobs.get("j")
    assert details.described(place.session.home, job)["code"] == "made all rows"
    edit(place, 2)
    place.put("c", "changed")
    place.refresh()
    place.run()
    said = place.session.jobs.said_of_code("j")
    assert said is not None
    assert said.startswith("2 of 3 files have rows of former code (from version 1 on, ")
    assert said.endswith("volstream replay j --stale")
    described = details.described(place.session.home, job)
    assert [(one["number"], one["files"], one["current"]) for one in described["code_versions"]] == [(2, 1, True), (1, 2, False)]
    rows = [one for one in tell(place.session.home, "v", "a") if one.what == "has result rows"]
    assert [one.details["code_version"] for one in rows] == [1]
    report = place.session.jobs.replay("j", stale=True)
    assert report.progress.done_files == 2
    assert place.session.jobs.said_of_code("j") is None
    assert place.session.jobs.replay("j", stale=True).progress.batches == 0
    found = place.rows("SELECT number, digest FROM volstream.code_versions WHERE job = 'j' ORDER BY number")
    assert [row["number"] for row in found] == [1, 2]


def test_a_batch_costs_no_statement_for_its_version(place: Place) -> None:
    """The number is written by the statement that commits the batch; a run looks once whether its code is new."""
    asked: list[str] = []

    def note(*about: object) -> None:
        asked.append(str(about[2]))

    for name in "abcd":
        place.put(name, name)
    place.job(CODE.format(number=1), max_files=1)
    engine = place.session.home.catalog.database._engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        assert place.run().progress.batches == 4
    finally:
        event.remove(engine, "before_cursor_execute", note)
    of_versions = [
        statement for statement in asked if "code_versions" in statement or "carried" in statement.partition("WHERE")[0][:30]
    ]
    assert len(of_versions) == 3  # is it known, what is the newest, this one
    assert sum("code=" in statement for statement in asked) == 4


def test_code_of_forgotten_batches_is_kept_while_a_version_of_the_table_has_their_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("volstream.jobs.code._MANY_FORGOTTEN", 1)
    home = place.session.home
    for name in "abc":
        place.put(name, name)
    place.job(CODE.format(number=1), max_files=1)
    place.run()
    edit(place, 2)
    place.put("b", "changed")
    place.refresh()
    place.run()
    home.catalog.history.forget(datetime.now(UTC) + timedelta(days=1), kept=1000)
    job = home.catalog.jobs.get(Name.parse("j"))
    assert isinstance(job, FileJob)
    location, kept = folders.table_location(home.warehouse, job.into), ledger.location_of(home.warehouse, job.id)
    assert len(home.catalog.codes.forgotten(job.id)) == 4
    prune(home.catalog, job, location, kept)
    assert len(home.catalog.codes.forgotten(job.id)) == 3  # the oldest version has no rows, the newest lacks the old ones of b
    found = place.session.jobs.code("j")
    assert found is not None
    assert dict(found.files) == {1: 2, 2: 1}

"""Which version of a job's code made which rows: right after anything that can happen to code, files and history."""

from __future__ import annotations

import random
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from tests.environments import environment
from tests.integration.conftest import Place, session_on
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import FileJob, OnMove
from volstream.base.model.names import Name
from volstream.catalog.reports import CodeVersion
from volstream.errors import VolstreamError
from volstream.jobs.batches.ledger import LEDGER
from volstream.jobs.rules.code import prune, stale_paths
from volstream.ops.backup import make_backup, restore_backup
from volstream.ops.inspection import details
from volstream.ops.inspection.file_history import tell
from volstream.spark.session import SparkGateway
from volstream.tables.delta import places
from volstream.tables.delta.lookup import queried_rows
from volstream.tables.delta.places import is_table

#: Each row says what made it: a number in the code, an argument, a package of the environment, and how many columns it filled. How
#: many there are is read from a file, so that a new column is no edit of the code.
CODE = """
N = {number}
COLUMNS = {columns!r}


def f(file, add='0'):
    try:
        from clasher import VERSION
    except ImportError:
        VERSION = 0
    text = {text}
    if 'bad' in text:
        raise ValueError('no good')
    if 'empty' in text:
        return []
    made = {{f'm{{column}}': 1 for column in range(int(open(COLUMNS).read()))}}
    return [{{'n': VERSION * 1000 + N * 10 + int(add)}} | made] * (1 + len(text) % 2)
"""

#: How the code gets the text of a file, or of the files of a set.
TEXTS = {None: "file.read_text()", "folder": "' '.join(one.relative_path + one.read_text() for one in file)"}


@dataclass
class Made:
    """What makes the rows of a job, as the test last set it."""

    place: Place
    group_by: str | None = None
    number: int = 1
    add: int = 0
    columns: int = 0
    environment: Path | None = None

    @property
    def value(self) -> int:
        """What its rows say."""
        package = 0 if self.environment is None else int(self.environment.name[-1])
        return self.columns * 100_000 + package * 1000 + self.number * 10 + self.add

    @property
    def returns(self) -> str:
        return ", ".join(["n INT", *(f"m{column} INT" for column in range(self.columns))])

    @property
    def key(self) -> str:
        return "_file_path" if self.group_by is None else "_group_key"

    def text(self) -> str:
        """The source, as it now is; the number of its columns is in the file that it names."""
        columns = self.place.folder.parent / "columns"
        columns.write_text(str(self.columns))
        return CODE.format(number=self.number, columns=str(columns), text=TEXTS[self.group_by])

    def edit(self) -> None:
        (self.place.folder.parent / "code" / "job.py").write_text(self.text())


def value_of(version: CodeVersion) -> int:
    """What the rows of a version say."""
    assert version.source is not None
    (text,) = version.source.values()
    found = re.search(r"N = (\d+)", text)
    assert found is not None
    package = int(str(version.environment)[-1]) if version.environment else 0
    made = package * 1000 + int(found[1]) * 10 + int(version.arguments.get("add", "0"))
    return version.returns.count(" m") * 100_000 + made


def check(session: Session, made: Made, empty: dict[str, int]) -> None:
    """Compares the counts with what the rows say; ``empty``: the code that found that a file has no rows."""
    found = session.jobs.code("j")
    assert found is not None
    values = {version.number: value_of(version) for version in found.versions}
    table = queried_rows(places.table_location(session.home.warehouse, Name.parse("t")), "SELECT * FROM rows")
    filled = [name for name in table.column_names if re.fullmatch(r"m\d", name)]
    made_by = empty | {
        row[made.key]: row["n"] + 100_000 * sum(row[name] is not None for name in filled) for row in table.to_pylist()
    }
    assert Counter(made_by.values()) == Counter({values[n]: count for n, count in found.files.items() if n is not None})
    assert None not in found.files
    assert values.get(found.current, made.value) == made.value
    job = session.home.catalog.jobs.get(Name.parse("j"))
    assert isinstance(job, FileJob)
    assert stale_paths(session.home, job) == sorted(path for path, value in made_by.items() if value != made.value)
    assert found.stale == sum(value != made.value for value in made_by.values())


EVENTS = ["edit", "revert", "argument", "column", "environment", "put", "put", "delete", "move", "replay", "stale", "forget"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("group_by", "turns"),
    [
        (None, 14),
        pytest.param(None, 120, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
        pytest.param("folder", 60, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
def test_versions_of_code_are_right_after_any_sequence_of_events(
    place: Place, tmp_path: Path, gateway: SparkGateway, group_by: str | None, turns: int
) -> None:
    choice = random.Random(turns)
    made = Made(place, group_by)
    environments = [None, *(environment(tmp_path / f"venv{n}", clasher=f"VERSION = {n}") for n in (1, 2))]
    content: dict[str, str] = {}
    empty: dict[str, int] = {}

    def new_name(name: str) -> str:
        return name if group_by is None else f"{choice.choice('xyz')}/{name}"

    def texts() -> dict[str, str]:
        """What the function is given, by the key of its rows."""
        if group_by is None:
            return content
        found: dict[str, str] = {}
        for name, text in sorted(content.items()):
            folder = name.partition("/")[0]
            found[folder] = f"{found.get(folder, '')} {name}{text}"
        return found

    for letter in "abcdef":
        name = new_name(letter)
        content[name] = f"first {letter}"
        place.put(name, content[name])
    moves = {"on_move": OnMove.REKEY} if group_by is None else {"group_by": group_by}
    place.job(made.text(), **moves)

    def process(act: str) -> None:
        place.refresh()
        if act == "stale":
            place.session.jobs.replay("j", stale=True)
        elif act == "replay":
            place.session.jobs.replay("j", where="relative_path < 'd'" if group_by is None else "relative_path < 'y'")
        else:
            place.run()

    known: dict[str, tuple[str, int]] = {}  # the text that was processed last, and by which code
    process("run")
    for turn in range(turns):
        turned = choice.choice([*EVENTS, "run", "run"])
        match turned:
            case "edit":
                made.number += 1
                made.edit()
            case "revert":
                made.number = choice.randint(1, made.number)
                made.edit()
            case "argument":
                made.add = choice.randint(0, 3)
                place.session.jobs.alter("j", arguments={"add": str(made.add)} if made.add else {})
            case "column" if made.columns < 6:
                made.columns += 1
                made.edit()
                place.session.jobs.alter("j", returns=made.returns)
            case "environment":
                made.environment = choice.choice(environments)
                place.session.jobs.alter("j", environment=str(made.environment) if made.environment else None)
            case "put":
                name = new_name(choice.choice("abcdefghij"))
                content[name] = f"{choice.choice(['bad', 'empty', 'good', 'fine'])} {turn}"
                place.put(name, content[name])
            case "delete" if len(content) > 3:
                name = choice.choice([*content])
                content.pop(name)
                place.delete(name)
            case "move" if content:
                name = choice.choice([*content])
                moved = new_name(f"{name.rpartition('/')[2][0]}{turn}")
                content[moved] = content.pop(name)
                (place.folder / moved).parent.mkdir(exist_ok=True)
                (place.folder / name).rename(place.folder / moved)
            case "forget":
                later = datetime.now(UTC) + timedelta(days=1)
                place.session.home.catalog.history.forget(later, kept=1000)
            case _:
                pass
        if turned in ("run", "replay", "stale", "put", "move", "delete"):
            with suppress(VolstreamError):
                process(turned)
            home, job = place.session.home, place.session.jobs.get("j")
            kept = LEDGER.of(home.warehouse, job.id)
            entries = queried_rows(kept, "SELECT * FROM rows").to_pylist() if is_table(kept) else []
            values = {version.number: value_of(version) for version in home.catalog.codes.versions(job.id)}
            batches = home.catalog.codes.of_batches(str(entry["batch"]) for entry in entries)
            for entry in entries:
                path = str(entry["path"])
                by = values[batches[str(entry["batch"])].of(path) or 0]
                if known.get(path, ("", 0))[0] != texts().get(path) or turned in ("replay", "stale"):
                    known[path] = texts().get(path, ""), by
            empty = {str(entry["path"]): known[str(entry["path"])][1] for entry in entries}
        check(place.session, made, empty)
    copy = tmp_path / "copy"
    make_backup(place.session.home.catalog, place.session.home.settings, copy)
    with session_on(gateway, config.load(tmp_path / "restored")) as session:
        restore_backup(session.home.catalog, session.home.settings, copy)
        check(session, made, empty)


def test_rows_made_by_older_code_are_named_and_only_they_are_replayed(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.put(name, name)
    place.job(Made(place).text())
    place.run()
    job = place.session.jobs.get("j")
    assert details.described(place.session.home, job)["code"] == "made all rows"
    Made(place, number=2).edit()
    place.put("c", "changed")
    place.refresh()
    place.run()
    said = place.session.jobs.describe_code("j")
    assert said is not None
    assert said.startswith("2 of 3 files last processed by older code (oldest: version 1, ")
    assert said.endswith("volstream replay j --stale")
    described = details.described(place.session.home, job)
    assert [(one["number"], one["files"], one["current"]) for one in described["code_versions"]] == [(2, 1, True), (1, 2, False)]
    rows = [one for one in tell(place.session.home, "v", "a") if one.what == "has result rows"]
    assert [one.details["code_version"] for one in rows] == [1]
    report = place.session.jobs.replay("j", stale=True)
    assert report.progress.done_files == 2
    assert place.session.jobs.describe_code("j") is None
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
    place.job(Made(place).text(), max_files=1)
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
    monkeypatch.setattr("volstream.jobs.rules.code._MANY_FORGOTTEN", 1)
    home = place.session.home
    for name in "abc":
        place.put(name, name)
    place.job(Made(place).text(), max_files=1)
    place.run()
    Made(place, number=2).edit()
    place.put("b", "changed")
    place.refresh()
    place.run()
    home.catalog.history.forget(datetime.now(UTC) + timedelta(days=1), kept=1000)
    job = home.catalog.jobs.get(Name.parse("j"))
    assert isinstance(job, FileJob)
    assert len(home.catalog.codes.forgotten(job.id)) == 4
    prune(home.catalog, home.warehouse, job)
    assert len(home.catalog.codes.forgotten(job.id)) == 3  # the oldest version has no rows, the newest lacks the old ones of b
    found = place.session.jobs.code("j")
    assert found is not None
    assert dict(found.files) == {1: 2, 2: 1}

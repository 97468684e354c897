"""Whether a home says what its files say: results, directories, failures, counts, and no leftovers of killed processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.e2e.homes import Home
from tests.storm.files import BAD, Files, Landing
from volstream.functions.steps import name_of

#: Values that a kill may cost: of the files of two batches.
IN_FLIGHT = 40

#: More differences of one kind are not reported.
_TOLD = 5


@dataclass(frozen=True)
class RowRequirements:
    """What a job's table ought to show.

    Attributes:
        fails: of a file's text, whether the function fails for it, always.
        appends: rows of earlier versions are there, too.
    """

    job: str
    volume: str
    files: Files
    fails: Collection[str]
    appends: bool = False

    def failing(self) -> set[str]:
        return {path for path, text in self.files.contents().items() if text.split()[0] in self.fails}

    def rows(self) -> Mapping[str, str]:
        return {path: text for path, text in self.files.contents().items() if text.split()[0] not in self.fails}


def of_table(home: Home, expected: RowRequirements) -> Iterator[str]:
    """Errors of a job's table, as its Delta log has it."""
    want, rows = expected.rows(), _rows(home, expected.job)
    if rows is None:
        if want:
            yield f"{expected.job}: there is no table"
        return
    if expected.appends:
        versions = Counter((row["_file_path"], row["_file_version"]) for row in rows)
        yield from _told(expected.job, "the version is there twice", [one for one, n in versions.items() if n > 1])
        newest: dict[str, Any] = {}
        for row in rows:
            known = newest.get(row["_file_path"])
            if known is None or row["_refresh_id"] > known["_refresh_id"]:
                newest[row["_file_path"]] = row
        rows = [row for path, row in newest.items() if path in want]
    else:
        paths = Counter(row["_file_path"] for row in rows)
        yield from _told(expected.job, "the file is there twice", [one for one, n in paths.items() if n > 1])
    found = {row["_file_path"]: row["text"] for row in rows}
    yield from _told(expected.job, "there is no row", want.keys() - found.keys())
    # A file that was deleted and came back as one that fails, in one range, is a change: its former row stays.
    now = expected.files.contents()
    former = {path for path in expected.failing() & found.keys() if found[path] != now[path]}
    yield from _told(expected.job, "there is a row of no file", found.keys() - want.keys() - former)
    wrong = [path for path in want.keys() & found.keys() if want[path] != found[path]]
    yield from _told(expected.job, "the row is of another version", wrong)


def _rows(home: Home, job: str, columns: str = "_file_path, _file_version, _refresh_id, text") -> list[dict[str, Any]] | None:
    """The rows of a job's table, read from its Delta log alone; None: there is none."""
    location = home.path / "warehouse" / "tables" / "public" / job
    if not any((location / "_delta_log").glob("*.json")):  # perhaps it is being created
        return None
    query = QueryBuilder().register("rows", DeltaTable(str(location)))
    rows: list[dict[str, Any]] = pa.table(query.execute(f"SELECT {columns} FROM rows")).to_pylist()  # columns of our own
    return rows


def of_outputs(home: Home, job: str, folder: Path) -> Iterator[str]:
    """Errors of the files that a job makes: there are those that its rows name, with the rows' texts, and no others."""
    rows = _rows(home, job, "made['relative_path'] AS path, text")
    named = {row["path"]: row["text"] for row in rows or ()}
    there = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and ".volstream-outputs" not in path.parts
    }
    yield from _told(job, "an output is missing", named.keys() - there.keys())
    yield from _told(job, "no row names the output", there.keys() - named.keys())
    yield from _told(
        job, "the output is of another version", [path for path in named.keys() & there if named[path] != there[path]]
    )


def of_landing(home: Home, job: str, landing: Landing, *, archives: bool) -> Iterator[str]:
    """Errors of a job that archives or deletes what it has loaded: each file has one row, unless an upload replaced it first."""
    texts = Counter(row["text"] for row in _rows(home, job) or ())
    left = {text for text in landing.contents().values() if text.split()[0] != BAD}
    bad = {text for texts in landing.written.values() for text in texts if text.split()[0] == BAD}
    replaced = {text for texts in landing.written.values() for text in texts[:-1]}
    every = {text for texts in landing.written.values() for text in texts}
    yield from _told(job, "the file is there twice", [text[:40] for text, n in texts.items() if n > 1])
    yield from _told(job, "the file is lost", [text[:40] for text in every - replaced - bad - texts.keys()])
    yield from _told(job, "there is a row of no file", [text[:40] for text in texts.keys() - every])
    yield from _told(job, "the file is still there", [text[:40] for text in left])
    yield from _told(job, "the bad file was taken away", [text[:40] for text in bad - replaced - {*landing.contents().values()}])
    if archives:
        archived = {*landing.archived()}
        yield from _told(job, "there is no row of what is archived", [text[:40] for text in archived - texts.keys()])
        # An upload may overwrite a file after its commit and before its move; docs/guides/loading.md says so.
        yield from _told(job, "it is not archived", [text[:40] for text in texts.keys() - archived - replaced])


def of_sets(home: Home, job: str, files: Files, incomplete: Path) -> Iterator[str]:
    """Errors of a job whose sets are the folders of two files or more: a row has all files of its set, as they are."""
    sets: dict[str, dict[str, str]] = {}
    for path, text in sorted(files.contents().items()):
        sets.setdefault(path.rpartition("/")[0] or ".", {})[path] = text
    complete = {key: texts for key, texts in sets.items() if len(texts) > 1}
    failing = {key for key, texts in complete.items() if any(text.split()[0] == BAD for text in texts.values())}
    want = {key: "\n".join(f"{path} {text}" for path, text in texts.items()) for key, texts in complete.items()}
    rows = _rows(home, job, "_group_key, text") or []
    found = {row["_group_key"]: row["text"] for row in rows}
    keys = Counter(row["_group_key"] for row in rows)
    yield from _told(job, "the set is there twice", [key for key, n in keys.items() if n > 1])
    yield from _told(job, "there is no row of the set", want.keys() - failing - found.keys())
    yield from _told(job, "there is a row of no set", found.keys() - want.keys())
    wrong = [key for key in want.keys() & found.keys() - failing if want[key] != found[key]]
    yield from _told(job, "the row is of another set of files", wrong)
    called = incomplete.read_text(encoding="utf-8").splitlines() if incomplete.exists() else []
    yield from _told(job, "the function was called for an incomplete set", called)


def of_steps(home: Home, job: str, files: Files, computed: Path, kills: int) -> Iterator[str]:
    """Errors of the kept values of a job's steps: there are those of its files and no others, and what was computed again is
    what was in flight at a kill. Each text has a number of its own."""
    identity = home.json("describe", "job", job)["id"]
    folder = home.path / "warehouse" / "_steps" / identity
    there = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
    paths = {name_of(path): path for path in files.contents()}
    yield from _told(job, "the values are missing", [paths[name] for name in paths.keys() - there])
    yield from _told(job, "there are values of no file", there - paths.keys())
    numbers = Counter(word for word in computed.read_text().split() if word.isdigit()) if computed.exists() else Counter()
    again = sum(numbers.values()) - len(numbers)
    if again > IN_FLIGHT * kills:
        yield f"{job}: {again} values were computed again after {kills} kills"


def of_failures(home: Home, jobs: Sequence[RowRequirements]) -> Iterator[str]:
    """Errors of the failures in the catalog."""
    failures = home.json("list", "failures")
    for job in jobs:
        found = Counter(failure["path"] for failure in failures if _is(failure["job"], job.job))
        yield from _told(job.job, "the failure is there twice", [path for path, n in found.items() if n > 1])
        yield from _told(job.job, "the failure is forgotten", job.failing() - found.keys())
        yield from _told(job.job, "there is a failure of a good file", found.keys() - job.failing())


def of_code(home: Home, jobs: Sequence[RowRequirements], now: int) -> Iterator[str]:
    """Errors of the counts of files by version of the code, against the version that each row carries."""
    for job in jobs:
        made = {row["_file_path"]: row["code"] for row in _rows(home, job.job, "_file_path, code") or ()}
        versions = home.json("describe", "job", job.job)["code_versions"]
        if job.appends or not made:
            continue
        said = [sum(one["files"] for one in versions if one["current"] is current) for current in (True, False)]
        want = [sum(code == now for code in made.values()), sum(code != now for code in made.values())]
        if said != want:
            yield f"{job.job}: {said} files of present and of older code are said, and {want} there: {versions}"


def of_status(home: Home, jobs: Sequence[RowRequirements]) -> Iterator[str]:
    """What is wrong with what a home at rest says of itself: counts, and work that is open."""
    status = home.json("status")
    for job in jobs:
        [said] = [one for one in status["jobs"] if _is(one["job"], job.job)]
        if (said["state"], said["waiting"], said["failed"]) != ("active", 0, len(job.failing())):
            yield f"{job.job}: status says {said}"
    for volume in status["volumes"]:
        if not any(_is(volume["volume"], job.volume) for job in jobs):
            continue  # it gets outputs
        [files] = {id(job.files): job.files for job in jobs if _is(volume["volume"], job.volume)}.values()
        if volume["files"] != len(files.contents()) or volume["held_removals"] or volume["note"]:
            yield f"{volume['volume']}: status says {volume}, and there are {len(files.contents())} files"
    yield from (f"{one['stream']}: status says {one}" for one in status["streams"] if one["has_data"] or one["note"])
    open_ones = [one["id"] for one in home.json("list", "batches") if one["state"] in ("planned", "intent")]
    yield from _told("batches", "still open", open_ones)


def _is(shown: str, name: str) -> bool:
    return shown.rpartition(".")[2] == name


def of_spark(home: Home, jobs: Sequence[RowRequirements]) -> Iterator[str]:
    """Errors of tables and directories as Spark reads them."""
    for job in jobs:
        listed = home.rows(f"SELECT relative_path, size FROM DIRECTORY(VOLUME {job.volume})")
        there = [(path, len(text.encode())) for path, text in job.files.contents().items()]
        if sorted((row["relative_path"], row["size"]) for row in listed) != sorted(there):
            yield f"{job.volume}: the directory is another one to Spark"
        rows = _rows(home, job.job)
        if rows is not None and home.pairs(job.job) != sorted((one["_file_path"], one["text"]) for one in rows):
            yield f"{job.job}: the table is another one to Spark"


def of_leftovers(home: Home, temporary: Path) -> Iterator[str]:
    """What is left in the warehouse's folders that are no tables, and among temporary files. An interrupted listing of a volume
    is gone on with."""
    volumes = {one["id"] for one in home.json("list", "volumes")}
    for kind, kept in (
        ("_staging", set[str]()),
        ("_plans", set[str]()),
        ("_listings", volumes | {f"{volume}-beside" for volume in volumes}),
    ):
        there = {one.name for one in (home.path / "warehouse" / kind).glob("*")}
        yield from _told(kind, "left", there - kept)
    # The code of functions stays for a month.
    names = [one.name for one in temporary.iterdir() if not one.name.startswith("volstream-functions-")]
    yield from _told("temporary files", "left", names)


def _told(where: str, what: str, which: Collection[Any]) -> Iterator[str]:
    if which:
        some = sorted(map(str, which))
        yield f"{where}: {what}: {len(some)}, such as {', '.join(some[:_TOLD])}"

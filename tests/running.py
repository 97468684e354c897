"""Runs per-file functions over a partition of a plan, as an executor does, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.base.model.work import FailureKind
from volstream.files.storage.base import ObjectStore
from volstream.functions.call import Work
from volstream.functions.finding import find
from volstream.functions.rows import Bounds
from volstream.functions.schema import PROVENANCE, from_ddl
from volstream.jobs.batches.staged import Staged
from volstream.jobs.batches.staging import RECORDS, REPLY, RowsTarget, Task

#: How a function of several files begins.
BATCH = "from volstream import File\ndef f(files: list[File]):\n"

#: A coroutine function whose rows say how many calls of a worker have been in flight; ``{0}``: a decorator.
IN_FLIGHT = """
import asyncio, volstream
now = most = begun = 0
{0}
async def f(file):
    global now, most, begun
    now += 1
    begun += 1
    most = max(most, now)
    seen = 0
    while seen < begun:  # others begin, however slow the machine is
        seen = begun
        await asyncio.sleep(0.1)
    now -= 1
    return {{"n": most}}
"""

#: In this process; and in a child process, which takes a second to start.
EVERYWHERE = [False, pytest.param(True, marks=pytest.mark.long)]

#: Columns of a plan that reach the executor.
_COLUMNS = ("relative_path", "size", "last_modified_time", "etag", "version_id", "content_type")


@dataclass
class Runner:
    """Runs functions, given as source text, over the objects of a store."""

    store: ObjectStore
    folder: Path

    def work(self, code: str, returns: str = "n BIGINT", *, store: ObjectStore | None = None, **options: Any) -> Work:
        """The job's function is ``f`` of ``code``."""
        file = self.folder / "code.py"
        file.write_text(code)
        given: dict[str, Any] = {
            "arguments": {},
            "timeout_seconds": None,
            "isolate": False,
            "memory_bytes": None,
            "ahead_bytes": 1 << 20,
            "bounds": Bounds(),
            "declared": False,
            **options,
        }
        return Work(find(f"{file}:f"), store=store or self.store, schema=from_ddl(returns), **given)

    def __call__(self, code: str, files: Sequence[FileInfo], returns: str = "n BIGINT", **options: Any) -> pa.Table:
        return outcomes(self.work(code, returns, **options), files)


def planned(files: Sequence[FileInfo]) -> pa.RecordBatch:
    columns = {name: [getattr(file, name) for file in files] for name in _COLUMNS}
    nothing = [None] * len(files)
    return pa.RecordBatch.from_pydict(
        {**columns, "commit_version": [7] * len(files), "members": nothing, "held": nothing, "old_path": nothing}
    )


def replied(work: Work, plan: pa.RecordBatch) -> pa.Table:
    """The records of an executor's reply, each with the first of its file's rows as ``result``; records for the other rows follow,
    without numbers."""
    assert work.schema is not None
    made: list[Mapping[str, Any]] = []
    rows: dict[str, list[Mapping[str, Any]]] = {}
    with TemporaryDirectory() as folder:
        target = RowsTarget(f"{folder}/rows", pa.schema([*work.schema, *PROVENANCE]), "_file_path", "b")
        # As it comes to an executor: pickled.
        batches = list(pickle.loads(pickle.dumps(Task(work, target)))([plan]))
        staged = Staged.of(folder, target, (pa.Table.from_batches([batch]) for batch in batches))
        for part in (staged.inline(), *(part for file in staged.files() for part in file.rows())):
            for row in part.to_pylist():
                rows.setdefault(row["_file_path"], []).append({name: row[name] for name in work.schema.names})
    for record in pa.Table.from_batches(batches, schema=REPLY).select(RECORDS.names).to_pylist():
        if record["path"] is None:
            made += [record] if record["printed"] is not None else []
            continue
        first, *others = rows.get(record["path"], [None])
        made.append({**record, "result": first})
        known = {name: record[name] for name in ("path", "file_version", "commit_version")}
        made += [{**known, "result": row} for row in others]
    return pa.Table.from_pylist(made, pa.schema([*RECORDS, pa.field("result", pa.struct(list(work.schema)))]))


def outcomes(work: Work, files: Sequence[FileInfo]) -> pa.Table:
    return replied(work, planned(files))


def results(table: pa.Table) -> list[tuple[str, Mapping[str, Any] | None]]:
    """Results of files, without the rows that hold output."""
    pairs = zip(table["path"].to_pylist(), table["result"].to_pylist(), strict=True)
    return [(path, result) for path, result in pairs if path is not None]


def failed(table: pa.Table) -> dict[str, tuple[FailureKind, str]]:
    rows = zip(table["path"], table["error_kind"], table["error_message"], strict=True)
    return {str(path): (FailureKind(str(kind)), str(message)) for path, kind, message in rows if kind.as_py()}


class Frozen:
    """A store that lists given files and whose reads end as instructed."""

    def __init__(self, files: Sequence[FileInfo], error: Exception | None = None, *, heads: bool = False) -> None:
        self._files = {file.relative_path: file for file in files}
        self._error = error
        self._heads = heads

    def list(self, prefix: str, selection: Selection) -> Iterator[FileInfo | Finding]:
        yield from self._files.values()

    def head(self, path: str) -> FileInfo | None:
        if self._heads and self._error is not None:
            raise self._error
        return self._files.get(path)

    def open(self, path: str) -> BinaryIO:
        if self._error is not None:
            raise self._error
        raise FileNotFoundError(path)

    def url(self, path: str) -> str:
        return f"frozen:///{path}"


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[MemoryStore]:
    made = MemoryStore(f"memory://{request.node.name}")
    made.create()
    yield made
    made.drop()


@pytest.fixture
def run(store: MemoryStore, tmp_path: Path) -> Runner:
    return Runner(store, tmp_path)


@pytest.fixture
def isolated(run: Runner, store: MemoryStore) -> Callable[..., pa.Table]:
    # Objects in memory are this process's alone; the child sees a store that travels.
    def call(code: str, names: Sequence[str], returns: str = "n BIGINT", **options: Any) -> pa.Table:
        files = [store.put(name, b"") for name in names]
        return run(code, files, returns, isolate=True, store=Frozen(files), **options)

    return call

"""Pages of a home with 1,000,000 files, 100,000 batches and 10,000 failures ask for what they show, by index.

``python -m tests.integration.server.console.test_scale`` prints how long each page takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import delete, event, insert, update
from starlette.testclient import TestClient

from tests import objects
from tests.integration.server.console.collectors import Empty
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import FileJob, Volume
from volstream.base.privacy import token_of
from volstream.catalog import Catalog
from volstream.catalog.tables import batches, digest, failures, intents, job_totals, plans, refreshes, streams
from volstream.changes.directory import table
from volstream.changes.directory.writer import DirectoryWriter
from volstream.server.console.app import Console

FILES, BATCHES, FAILURES, REFRESHES = 1_000_000, 100_000, 10_000, 10_000

PAGES = [
    "/",
    "/volumes/images",
    "/volumes/images?prefix=f0017/",
    "/volumes/images?prefix=f0017/&after=f0017/00500.jpg%00",
    "/volumes/images?search=99/00500",
    "/volumes/images?before=5000",
    "/volumes/images/files?path=f0099/00500.jpg",
    "/jobs/job",
    "/jobs/job/batches",
    "/jobs/job/batches?before=b050000",
    "/jobs/job/batches/b050000",
    "/jobs/job/failures",
    "/jobs/job/failures?after=5000",
    "/jobs/job/logs",
    "/tables",
    "/settings",
    "/audit",
    "/graph",
]

#: Tables that grow with time. Failures are read in the order of their ids, as is the audit: both stop at their limit.
_HISTORY = {"batches", "intents", "plans", "refreshes"}


def fill(folder: Path, files: int, made: int) -> Session:
    """Makes a home with a volume and a job that worked for long."""
    (folder / "images").mkdir()
    session = Session(config.load(folder / "home"))
    catalog = session.home.catalog
    source = objects.volume("images", location=(folder / "images").as_uri(), last_listing=objects.NOW)
    on_it = objects.stream(source)
    job = objects.job(on_it, name="job")
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
        catalog.streams.add(transaction, on_it)
        catalog.jobs.add(transaction, job)
    writer = DirectoryWriter(source, catalog, session.home.warehouse, 1000)
    writer.commit_first(writer.open(), _listed(files), files)
    _work(catalog, source, job, made)
    return session


def _listed(files: int) -> Iterator[pa.Table]:
    """The files, a thousand in each folder, in order."""
    for folder in range(files // 1000):
        paths = [f"f{folder:04}/{number:05}.jpg" for number in range(1000)]
        columns = {
            "relative_path": paths,
            "url": [f"memory://{path}" for path in paths],
            "size": [1] * 1000,
            "last_modified_time": [objects.NOW] * 1000,
            "etag": paths,
            "version_id": [None] * 1000,
            "content_type": ["image/jpeg"] * 1000,
        }
        yield pa.table(columns, schema=table.SCHEMA)


def _work(catalog: Catalog, source: Volume, job: FileJob, made: int) -> None:
    """The history: a plan of ten batches for each refresh, and failures at the end."""

    def at(number: int) -> Any:
        return objects.NOW + timedelta(seconds=number)

    of_plans = [
        vars(objects.plan(job, id=f"p{number}", state="done", created_on=at(number), from_version=number, to_version=number + 1))
        for number in range(made // 10)
    ]
    of_batches = [
        {
            **vars(objects.batch(objects.plan(job, id=f"p{number // 10}"), number % 10 + 1)),
            "id": f"b{number:06}",
            "state": "committed",
            "after_path": f"f{number % 10 * 100:04}",
            "until_path": f"f{number % 10 * 100 + 100:04}",
            "created_on": at(number),
            "committed_on": at(number),
            "seconds": 1.0,
            "rows": 1,
        }
        for number in range(made)
    ]
    of_intents = [
        {
            "stream_id": job.stream_id,
            "sequence": number + 1,
            "batch_id": f"b{number:06}",
            "attempt": f"a{number}",
            "marker_stream_id": job.stream_id,
            "marker_sequence": number + 1,
            "owner": "me",
            "targets": [],
            "state": "committed",
            "started_on": at(number),
            "ended_on": at(number + 1),
        }
        for number in range(made)
    ]
    of_refreshes = [
        {
            "volume_id": source.id,
            "number": number + 2,
            "cause": "events",
            "inserted": 0,
            "updated": 1,
            "deleted": 0,
            "bytes": 1,
            "committed_on": at(number),
        }
        for number in range(made // 10)
    ]
    with catalog.database.transaction() as transaction:
        for into, rows in (
            (plans, of_plans),
            (batches, of_batches),
            (intents, of_intents),
            (failures, _failures(job, made // 10)),
            (refreshes, of_refreshes),
        ):
            transaction.execute(insert(into), rows)
        sums = {"batches": made, "succeeded": made, "failed": 0, "rows": made, "bytes": made}
        transaction.execute(insert(job_totals).values(job_id=job.id, **sums))
        transaction.execute(update(streams).values(offset=made // 10, table_id="table"))


def _failures(job: FileJob, count: int) -> list[dict[str, Any]]:
    """Failures with one cause."""
    return [
        {
            **vars(objects.failure(job, path, "a", state="quarantined", message=f"ValueError: {number} is bad")),
            "path_digest": digest(path),
            "traceback": "x" * 2000,
        }
        for number in range(count)
        if (path := f"f{number % 1000:04}/{number // 10:05}.jpg")
    ]


@contextmanager
def served(session: Session) -> Iterator[TestClient]:
    console = Console(session, lambda: (True, {}), lambda: (True, {}), Empty())  # type: ignore[arg-type]  # as one is used
    bearer = {"authorization": f"Bearer {token_of(session.home.settings)}", "accept": "text/html"}
    yield TestClient(console.app, base_url="http://127.0.0.1", headers=bearer)
    console.stop()


def test_a_group_has_its_old_failures_too_when_something_is_done_to_it(tmp_path: Path) -> None:
    with fill(tmp_path, 1000, 10) as session, served(session) as client:
        job = session.jobs.get("job")
        assert isinstance(job, FileJob)
        with session.home.catalog.database.transaction() as transaction:
            transaction.execute(delete(failures))
            transaction.execute(insert(failures), _failures(job, 5_100))
        (group,) = client.get("/jobs/job", headers={"accept": "application/json"}).json()["groups"]
        done = client.post("/jobs/job/skip", data={"group": group["id"]}, headers={"accept": "application/json"})
    assert done.json()["result"] == "5100 files skipped."


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_page_reads_the_whole_history(tmp_path: Path) -> None:
    with fill(tmp_path, 20_000, 2_000) as session, served(session) as client:
        engine = session.home.catalog.database._engine
        asked: list[tuple[str, Any]] = []

        def note(connection: Any, cursor: Any, statement: str, parameters: Any, *more: Any) -> None:
            asked.append((statement, parameters))

        event.listen(engine, "before_cursor_execute", note)
        for path in PAGES:
            asked.clear()
            answer = client.get(path.replace("b050000", "b001000").replace("f0099", "f0009"))
            assert answer.status_code == 200, (path, answer.text)
            with engine.connect() as connection:
                for statement, parameters in [*asked]:
                    if not statement.lstrip().startswith("SELECT"):
                        continue
                    steps = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                    plan = [str(step[3]) for step in steps]
                    read = {step.split()[1] for step in plan if step.startswith("SCAN") and "INDEX" not in step}
                    assert not read & _HISTORY, f"{path}\n{statement}\n{plan}"
                    sorted_rows = any("TEMP B-TREE FOR ORDER BY" in step for step in plan) and "GROUP BY" not in statement
                    assert not (sorted_rows and "FROM batches" in statement), f"{path}\n{statement}\n{plan}"
        event.remove(engine, "before_cursor_execute", note)


def main() -> None:
    """Prints how long each page takes: the first time, and again."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, fill(Path(folder), FILES, BATCHES) as session, served(session) as client:
        for path in PAGES:
            took = []
            for _ in range(3):
                began = time.perf_counter()
                answer = client.get(path)
                took.append(f"{time.perf_counter() - began:.3f}")
            print(f"{answer.status_code} {' '.join(took)} s {len(answer.content):8} bytes  {path}")  # noqa: T201  # its purpose


if __name__ == "__main__":
    main()

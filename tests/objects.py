"""Definitions and plans for tests, with defaults for every value that a test does not care about."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from volstream.base.definitions import (
    ConnectionOptions,
    FileJob,
    Job,
    JobState,
    OnMove,
    QueueType,
    SourceKind,
    Stream,
    StreamMode,
    Volume,
    Write,
)
from volstream.base.definitions.options import read
from volstream.base.model.names import Name
from volstream.base.model.work import Batch, BatchState, Failure, FailureKind, FailureState, Plan, PlanKind, PlanState
from volstream.catalog import Catalog

NOW = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


def new_id() -> str:
    return str(uuid.uuid4())


def volume(name: str = "images", **changes: Any) -> Volume:
    made = Volume(
        id=new_id(),
        name=Name.parse(name),
        location="memory://images",
        connection_id=None,
        queue_type=QueueType.NONE,
        queue_name=None,
        virtual_cluster="DEFAULT",
        recursive=True,
        patterns=("*.jpg",),
        ignores=(".*",),
        comment=None,
        created_on=NOW,
    )
    return dataclasses.replace(made, **changes)


def connection_options(type: str, **more: Any) -> ConnectionOptions:
    return ConnectionOptions(**read(ConnectionOptions, {"type": type, **more}))


def stream(source: Volume | None = None, name: str = "changes", **changes: Any) -> Stream:
    made = Stream(
        id=new_id(),
        name=Name.parse(name),
        source_kind=SourceKind.VOLUME,
        source_id=source.id if source else new_id(),
        source_name=source.name if source else Name.parse("images"),
        table_id="table",
        mode=StreamMode.STANDARD,
        offset=3,
        initial=False,
        sequence=0,
        comment=None,
        created_on=NOW,
    )
    return dataclasses.replace(made, **changes)


def job(of: Stream, name: str = "classify", **changes: Any) -> FileJob:
    made = FileJob(
        id=new_id(),
        name=Name.parse(name),
        stream_id=of.id,
        function="/code/f.py:f",
        search_path="/code",
        fingerprint="0" * 64,
        returns="label STRING",
        into=Name.parse("labels"),
        where=None,
        write=Write.UPSERT,
        on_move=OnMove.RERUN,
        retries=3,
        pause_after=3,
        timeout=None,
        isolate=False,
        max_files=None,
        max_bytes=None,
        arguments={},
        state=JobState.ACTIVE,
        state_reason=None,
        owns_stream=False,
        clean=False,
        failed_batches=0,
        comment=None,
        created_on=NOW,
    )
    return dataclasses.replace(made, **changes)


def file_job(found: Job | None) -> FileJob:
    """The job, which runs a function."""
    assert isinstance(found, FileJob)
    return found


def plan(of: Job, **changes: Any) -> Plan:
    made = Plan(
        id=uuid.uuid4().hex,
        kind=PlanKind.STREAM,
        state=PlanState.OPEN,
        job_id=of.id,
        stream_id=of.stream_id,
        table_id="table",
        from_version=3,
        to_version=7,
        initial=False,
        location="/plans/one",
        where=None,
        files=4,
        bytes=40,
        created_on=NOW,
    )
    return dataclasses.replace(made, **changes)


def batch(of: Plan, number: int = 1, **changes: Any) -> Batch:
    made = Batch(
        id=uuid.uuid4().hex[:16],
        plan_id=of.id,
        job_id=of.job_id,
        stream_id=of.stream_id,
        number=number,
        state=BatchState.PLANNED,
        after_path=None if number == 1 else f"{number - 1:04d}",
        until_path=f"{number:04d}",
        files=2,
        replaced=0,
        removals=0,
        moves=0,
        bytes=20,
        sequence=None,
        attempts=0,
        succeeded=0,
        failed=0,
        rows=0,
        created_on=NOW,
        committed_on=None,
    )
    return dataclasses.replace(made, **changes)


def failure(of: Job, path: str, attempt: str, **changes: Any) -> Failure:
    made = Failure(
        job_id=of.id,
        path=path,
        file_version="v1",
        commit_version=5,
        state=FailureState.PENDING,
        kind=FailureKind.RAISED,
        message="ValueError: no",
        traceback=None,
        attempts=1,
        next_try=NOW,
        batch_id="batch",
        attempt=attempt,
        failed_on=NOW,
    )
    return dataclasses.replace(made, **changes)


def store_job(catalog: Catalog, *, pause_after: int = 3) -> tuple[Volume, Stream, FileJob]:
    """A volume, a stream on it and a job on that, in the catalog."""
    source = volume()
    on_it = stream(source)
    consumer = job(on_it, pause_after=pause_after)
    with catalog.database.transaction() as transaction:
        catalog.volumes.add(transaction, source)
        catalog.streams.add(transaction, on_it)
        catalog.jobs.add(transaction, consumer)
    return source, on_it, consumer


def store_plan(catalog: Catalog, consumer: Job, batches: int = 1, **changes: Any) -> tuple[Plan, Sequence[Batch]]:
    """An open plan of a job, with its batches."""
    made = plan(consumer, **changes)
    slices = [batch(made, number + 1) for number in range(batches)]
    on_it = catalog.streams.by_id(consumer.stream_id)
    assert on_it is not None
    catalog.consumptions.open((made, slices, on_it))
    return made, slices

"""Cuts the files of a plan into batches, which reads them once, in order."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow.compute as pc
from pyarrow import fs

from volstream.base.definitions import FileJob
from volstream.base.model.work import Batch, Plan, PlanKind
from volstream.changes.streams.read import Range
from volstream.jobs.plans.plan import MOVE, REMOVE, REPLACE
from volstream.jobs.plans.sizing import Limits
from volstream.tables.delta.places import filesystem_of


def cut_plan(
    plan_id: str,
    job: FileJob,
    kind: PlanKind,
    covered: Range,
    location: str,
    limits: Limits,
    *,
    first: Limits | None = None,
    where: str | None = None,
) -> tuple[Plan, Sequence[Batch]]:
    """Reads a plan's files once, in order, and cuts them into batches. Needs memory for one row per batch.

    Args:
        first: limits of the first batch; None: as for the others.
        where: the condition by which the files were selected, stored with the plan.
    """
    plan = Plan(
        id=plan_id,
        kind=kind,
        job_id=job.id,
        stream_id=job.stream_id,
        table_id=covered.table_id,
        from_version=covered.from_version,
        to_version=covered.to_version,
        initial=covered.initial,
        location=location,
        where=where,
        created_on=datetime.now(UTC),
    )
    batches = list(_cut(plan, 1, None, first or limits, limits))
    files, size = sum(batch.files for batch in batches), sum(batch.bytes for batch in batches)
    return replace(plan, files=files, bytes=size), batches


def recut_plan(plan: Plan, first: Batch, limits: Limits) -> Sequence[Batch]:
    """Re-cuts a plan like :func:`cut_plan`, from a batch on; does not read earlier rows."""
    return list(_cut(plan, first.number, first.after_path, limits, limits))


def _cut(plan: Plan, number: int, after: str | None, first: Limits, limits: Limits) -> Iterator[Batch]:
    now = datetime.now(UTC)
    for group in _groups(_rows(plan.location, after), limits, first):
        yield Batch(
            id=uuid.uuid4().hex[:16],
            plan_id=plan.id,
            job_id=plan.job_id,
            stream_id=plan.stream_id,
            number=number,
            after_path=after,
            created_on=now,
            **vars(group),
        )
        after, number = group.until_path, number + 1


@dataclass
class _Group:
    """What is counted of the rows of a batch, in its attributes."""

    until_path: str = ""
    files: int = 0
    replaced: int = 0
    removals: int = 0
    moves: int = 0
    bytes: int = 0


class PlanRow(NamedTuple):
    """The columns of a plan's row that cutting needs."""

    path: str
    size: int
    action: str
    old_path: str | None


def _groups(rows: Iterable[PlanRow], limits: Limits, first: Limits | None = None) -> Iterator[_Group]:
    group, maximum = _Group(), first or limits
    for row in rows:
        working = 0 if row.action in (REMOVE, MOVE) else row.size
        full = group.files + group.removals >= maximum.files or (group.files and group.bytes + working > maximum.bytes)
        if full and group.until_path:
            yield group
            group, maximum = _Group(), limits
        group.until_path = row.path
        group.files += row.action != REMOVE
        group.replaced += row.action == REPLACE
        group.removals += row.action == REMOVE
        group.moves += row.old_path is not None
        group.bytes += working
    if group.until_path:
        yield group


def _rows(location: str, after: str | None) -> Iterator[PlanRow]:
    """Yields the rows of a plan after a path, in order: Spark names the parts of a sorted DataFrame in order.

    The files' statistics let it skip earlier row groups.
    """
    filesystem, path = filesystem_of(location)
    infos = filesystem.get_file_info(fs.FileSelector(path))
    parts = sorted(info.path for info in infos if info.base_name.endswith(".parquet"))
    later = None if after is None else pc.field("relative_path") > after
    columns = ["relative_path", "size", "action", "old_path"]
    for part in parts:
        from pyarrow import dataset as ds  # imports pandas

        dataset = ds.dataset(part, filesystem=filesystem, format="parquet")
        for batch in dataset.to_batches(columns=columns, filter=later):
            yield from map(PlanRow._make, zip(*(batch[name].to_pylist() for name in columns), strict=True))

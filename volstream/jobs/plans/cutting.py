"""Computes the size of a plan's batches: within their limits, each taking about as long as it should; and the maximum size of a
file's rows. Pure.

A removal counts as a file, here and in the cutting of batches.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow.compute as pc
from pyarrow import fs

from volstream.base.config import Settings
from volstream.base.definitions import FileJob
from volstream.base.model.work import Batch, Plan, PlanKind, WaitingBatches
from volstream.changes.streams.read import Range
from volstream.functions.rows import Bounds
from volstream.jobs.plans.plan import MOVE, REMOVE, REPLACE
from volstream.tables.delta.places import filesystem_of

#: Size of a job's first batch, before any was measured: enough to measure, little to lose.
FIRST_FILES = 1000

#: The settings' maximum, and the first batch, suit an engine with up to so many slots; on a cluster batches grow.
_SLOTS = 8

#: Duration of a batch of a job with a rate.
_PACED_SECONDS = 10.0

#: Batches are re-cut if they would miss the target by more than this factor.
_TOLERANCE = 2.0

#: An engine's slot needs heap for about five copies of a row, plus some for other work.
_COPIES = 8


@dataclass(frozen=True)
class Limits:
    """The maximum size of a batch; a file larger than ``bytes`` is a separate batch."""

    files: int
    bytes: int

    def first(self, slots: int) -> Limits:
        """Returns the limits of a first batch, which measures the rate, on an engine with so many slots."""
        return Limits(min(self.files, FIRST_FILES * _growth(slots)), self.bytes)

    def paced(self, calls: float, files_per_call: int) -> Limits:
        """Returns the limits of a batch for ``calls`` per second: short, because its workers hold slots while they wait."""
        maximum = max(1, int(calls * _PACED_SECONDS)) * files_per_call
        return Limits(min(self.files, maximum), self.bytes)


def maximum_limits(settings: Settings, slots: int, files: int | None, size: int | None) -> Limits:
    """Returns the maximum size of a job's batches: ``files`` and ``size``, if given, else as the settings say for ``slots``."""
    growth = _growth(slots)
    return Limits(files or settings.batch_max_files * growth, size or settings.batch_max_bytes * growth)


def _growth(slots: int) -> int:
    return max(1, math.ceil(slots / _SLOTS))


@dataclass(frozen=True)
class Rate:
    """A job's throughput per second. Batches limited by one of the two rates underestimate the other."""

    files: float
    bytes: float

    def seconds(self, files: float, size: float) -> float:
        """Returns how long this many files of ``size`` total bytes take: the longer of the two estimates."""
        by_files = files / self.files if self.files else 0.0
        return max(by_files, size / self.bytes if self.bytes else 0.0)

    def limits(self, seconds: float, maximum: Limits) -> Limits:
        """Returns the limits of a batch that takes ``seconds``, capped by ``maximum``."""
        files = min(maximum.files, int(self.files * seconds))
        size = min(maximum.bytes, int(self.bytes * seconds)) if self.bytes else maximum.bytes
        return Limits(max(1, files), max(1, size))


def latest_rate(batches: Iterable[Batch], seconds: float) -> Rate | None:
    """Returns the rate of the newest batches that together took ``seconds``, or of all; None if nothing was measured.

    Args:
        batches: committed batches of one plan, newest first.
    """
    files, size, took = 0, 0, 0.0
    for batch in batches:
        if batch.seconds and took < seconds:
            files += batch.files + batch.removals
            size += batch.bytes
            took += batch.seconds
    return Rate(files / took, size / took) if took and files else None


def typical_rate(batches: Iterable[Batch]) -> Rate | None:
    """Returns the rate of the largest batch: in small ones the commit, not the function, dominates."""
    return latest_rate(sorted(batches, key=lambda batch: batch.files + batch.removals, reverse=True)[:1], math.inf)


def exceeds_limits(waiting: WaitingBatches, maximum: Limits) -> bool:
    """Returns whether a waiting batch exceeds a job's limits, which were changed after it was cut."""
    return waiting.most_files > maximum.files or waiting.most_bytes > maximum.bytes


def misses_target(waiting: WaitingBatches, rate: Rate, limits: Limits, seconds: float) -> bool:
    """Returns whether waiting batches would take more than twice ``seconds``, or half as many batches would suffice.

    Args:
        limits: of a batch, by the rate.
    """
    if rate.seconds(waiting.most_files, waiting.most_bytes) > _TOLERANCE * seconds:
        return True
    needed = max(1, math.ceil(waiting.files / limits.files), math.ceil(waiting.bytes / limits.bytes))
    return waiting.count >= _TOLERANCE * needed


def limits_differ(limits: Limits, other: Limits) -> bool:
    """Returns whether two limits differ enough to give different batches."""
    pairs = ((limits.files, other.files), (limits.bytes, other.bytes))
    return any(max(pair) > _TOLERANCE * min(pair) for pair in pairs)


def result_bounds(settings: Settings) -> Bounds:
    """Returns the bounds of a file's results by the settings; rows are also bounded by the memory of the home's own engine."""
    room = settings.driver_memory // settings.slots // _COPIES
    if room >= settings.result_row_bytes or settings.on_cluster:
        return Bounds(settings.result_row_bytes, settings.result_file_bytes, settings.log_file_bytes, settings.log_batch_bytes)
    rule = f"1/{_COPIES} of driver_memory for each of the engine's {settings.slots} slots, setting cores"
    return Bounds(room, settings.result_file_bytes, settings.log_file_bytes, settings.log_batch_bytes, rule)


# Cuts the files of a plan into batches, which reads them once, in order.


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

"""Computes the size of a plan's batches, so that each stays within its limits and takes about the intended
time, and the maximum size of a file's rows. Pure.

A removal counts as a file, here and when batches are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from volstream.base.config import Settings
from volstream.base.model.work import Batch, WaitingBatches

if TYPE_CHECKING:
    from volstream.functions.rows import Bounds

#: Size of a job's first batch, before any measurement: large enough to measure, small enough to lose.
FIRST_FILES = 1000

#: The settings' maximum and the first batch suit an engine with up to this many slots. On a cluster batches
#: grow.
_SLOTS = 8

#: Duration of a batch of a job with a rate.
_PACED_SECONDS = 10.0

#: Batches are re-cut if they would miss the target by more than this factor.
_TOLERANCE = 2.0

#: An engine's slot needs heap for about five copies of a row, and some for other work.
_COPIES = 8


@dataclass(frozen=True)
class Limits:
    """The maximum size of a batch. A file larger than ``bytes`` is a separate batch."""

    files: int
    bytes: int

    def first(self, slots: int) -> Limits:
        """Returns the limits of a first batch, which measures the rate, on an engine with this many slots."""
        return Limits(min(self.files, FIRST_FILES * _growth(slots)), self.bytes)

    def paced(self, calls: float, files_per_call: int) -> Limits:
        """Returns the limits of a batch for ``calls`` per second: short, because waiting workers hold
        slots."""
        maximum = max(1, int(calls * _PACED_SECONDS)) * files_per_call
        return Limits(min(self.files, maximum), self.bytes)


def maximum_limits(settings: Settings, slots: int, files: int | None, size: int | None) -> Limits:
    """Returns the maximum size of a job's batches: ``files`` and ``size`` if given, or the settings' for
    ``slots``."""
    growth = _growth(slots)
    return Limits(files or settings.batch_max_files * growth, size or settings.batch_max_bytes * growth)


def _growth(slots: int) -> int:
    return max(1, math.ceil(slots / _SLOTS))


@dataclass(frozen=True)
class Rate:
    """A job's throughput per second. A batch limited by one of the two rates underestimates the other."""

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
    """Returns the rate of the newest batches that together took ``seconds``, or of all; None without
    measurements.

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
    """Returns the rate of the largest batch. In small batches the commit dominates, not the function."""
    return latest_rate(sorted(batches, key=lambda batch: batch.files + batch.removals, reverse=True)[:1], math.inf)


def exceeds_limits(waiting: WaitingBatches, maximum: Limits) -> bool:
    """Returns whether a waiting batch exceeds the job's limits, which were changed after it was cut."""
    return waiting.most_files > maximum.files or waiting.most_bytes > maximum.bytes


def misses_target(waiting: WaitingBatches, rate: Rate, limits: Limits, seconds: float) -> bool:
    """Returns whether waiting batches would take more than twice ``seconds``, or half their number would
    suffice.

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
    """Returns the bounds of a file's results by the settings. The engine's memory on this host also bounds
    rows."""
    from volstream.functions.rows import Bounds  # late: imports Arrow

    room = settings.driver_memory // settings.slots // _COPIES
    if room >= settings.result_row_bytes or settings.on_cluster:
        return Bounds(settings.result_row_bytes, settings.result_file_bytes, settings.log_file_bytes, settings.log_batch_bytes)
    rule = f"1/{_COPIES} of driver_memory for each of the engine's {settings.slots} slots, setting cores"
    return Bounds(room, settings.result_file_bytes, settings.log_file_bytes, settings.log_batch_bytes, rule)

"""How large the batches of a plan are: within their limits, and such that each takes about as long as it should; and how large a
file's rows may be. Pure.

A removal counts as a file, here and where batches are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from volstream.config import Settings
from volstream.functions.bounds import Bounds
from volstream.model.work import Batch, Waiting

#: The first batch of a job of which nothing was measured: enough to measure, little to lose.
FIRST_FILES = 1000

#: Batches are cut anew where they would miss the target by more than this factor.
_TOLERANCE = 2.0

#: A slot of an engine needs about five times a row of its heap, and there is other work.
_COPIES = 8


@dataclass(frozen=True)
class Limits:
    """How large a batch may be; a file larger than ``bytes`` is a batch of its own."""

    files: int
    bytes: int

    def first(self) -> Limits:
        """The limits of a first batch that is to measure."""
        return Limits(min(self.files, FIRST_FILES), self.bytes)


@dataclass(frozen=True)
class Rate:
    """What a job did in a second. Batches that were bound by one of the two tell too little of the other."""

    files: float
    bytes: float

    def seconds(self, files: float, size: float) -> float:
        """How long so many files of together ``size`` bytes take: by the measure that says longer."""
        by_files = files / self.files if self.files else 0.0
        return max(by_files, size / self.bytes if self.bytes else 0.0)

    def limits(self, seconds: float, most: Limits) -> Limits:
        """What can be done in ``seconds``, but no more than ``most``."""
        files = min(most.files, int(self.files * seconds))
        size = min(most.bytes, int(self.bytes * seconds)) if self.bytes else most.bytes
        return Limits(max(1, files), max(1, size))


def latest(batches: Iterable[Batch], seconds: float) -> Rate | None:
    """The rate of the newest batches that together took ``seconds``, or of all; None where nothing was measured.

    Args:
        batches: committed ones of one plan, the newest first.
    """
    files, size, took = 0, 0, 0.0
    for batch in batches:
        if batch.seconds and took < seconds:
            files += batch.files + batch.removals
            size += batch.bytes
            took += batch.seconds
    return Rate(files / took, size / took) if took and files else None


def usual(batches: Iterable[Batch]) -> Rate | None:
    """The rate of the largest of some batches: in small ones the time is that of a commit, and not of the function."""
    return latest(sorted(batches, key=lambda one: one.files + one.removals, reverse=True)[:1], math.inf)


def misses(waiting: Waiting, rate: Rate, limits: Limits, seconds: float) -> bool:
    """Whether waiting batches would take more than twice ``seconds``, or half as many batches would do.

    Args:
        limits: what the rate allows a batch.
    """
    if rate.seconds(waiting.most_files, waiting.most_bytes) > _TOLERANCE * seconds:
        return True
    needed = max(1, math.ceil(waiting.files / limits.files), math.ceil(waiting.bytes / limits.bytes))
    return waiting.count >= _TOLERANCE * needed


def differ(one: Limits, other: Limits) -> bool:
    """Whether limits are so far apart that cutting by the one gives other batches than cutting by the other."""
    pairs = ((one.files, other.files), (one.bytes, other.bytes))
    return any(max(pair) > _TOLERANCE * min(pair) for pair in pairs)


def bounds(settings: Settings) -> Bounds:
    """What may come of a file, as the settings say; and a row is no larger than there is room for in the home's own engine."""
    one = settings
    room = one.driver_memory // one.slots // _COPIES
    if room >= one.result_row_bytes or one.spark_remote or "spark.master" in one.spark_conf:
        return Bounds(one.result_row_bytes, one.result_file_bytes, one.log_file_bytes, one.log_batch_bytes)
    rule = f"1/{_COPIES} of driver_memory for each of the engine's {one.slots} slots, setting cores"
    return Bounds(room, one.result_file_bytes, one.log_file_bytes, one.log_batch_bytes, rule)

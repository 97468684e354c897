"""What each worker of a job needs, and how many of them the home's own engine can run at a time.

Spark itself divides a cluster by the CPUs and GPUs of its tasks. The home's engine runs a task in each slot, so there the number
of tasks is limited.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psutil

from volstream.base.config import Settings
from volstream.base.definitions import FileJob
from volstream.base.model.text import counted
from volstream.base.model.units import format_size
from volstream.errors import InvalidStateError
from volstream.functions import concurrency
from volstream.functions.concurrency import Gpus


def most_workers(job: FileJob, settings: Settings) -> int | None:
    """Returns how many workers of a job may run at a time; None: as many as Spark runs.

    Raises:
        InvalidStateError: this host has less than one of them needs.
    """
    if settings.on_cluster:
        return job.parallel
    limits = [] if job.parallel is None else [job.parallel]
    if job.cpus is not None:
        limits.append(_fitting(job, job.cpus, settings.slots, lambda count: counted(count, "CPU"), "the engine"))
    if job.memory is not None:
        room = psutil.virtual_memory().total - settings.driver_memory
        limits.append(_fitting(job, job.memory, room, lambda size: f"{format_size(size)} of memory", "this host"))
    if job.gpus is not None:
        limits.append(_fitting(job, job.gpus, len(concurrency.devices()), lambda count: counted(count, "GPU"), "this host"))
    return min(limits, default=None)


def gpus_of(job: FileJob, settings: Settings) -> Gpus | None:
    """Returns the GPUs that each worker takes; None: none."""
    if job.gpus is None:
        return None
    return Gpus(job.gpus, () if settings.on_cluster else tuple(concurrency.devices()))


def profile_of(job: FileJob, settings: Settings) -> Any:
    """Returns Spark's resource profile for the tasks of a job on a cluster; None: the default."""
    if not settings.on_cluster or (job.cpus is None and job.gpus is None):
        return None
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    requests = TaskResourceRequests().cpus(job.cpus or 1)
    if job.gpus is not None:
        requests = requests.resource("gpu", job.gpus)
    return ResourceProfileBuilder().require(requests).build


def _fitting(job: FileJob, needed: int, there: int, shown: Callable[[int], str], where: str) -> int:
    if needed <= there:
        return there // needed
    raise InvalidStateError(
        f"Each worker of the job {job.name} needs {shown(needed)}, and {where} has {shown(max(there, 0))} for workers.",
        f"Ask for less (volstream alter-job {job.name}), or run it on a cluster.",
    )

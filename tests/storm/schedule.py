"""What happens in a storm, and when: determined by the seed alone, whatever the machine does meanwhile. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Deed(StrEnum):
    """What is done to the home at a step."""

    KILL = "kill"
    POWER = "power"  # everything of the home at once, and what was not synced is lost
    FREEZE = "freeze"
    COMMAND = "command"
    STOP = "stop"  # the daemon, as its supervisor does
    LULL = "lull"  # until something works again, so that what follows meets work
    CATALOG = "catalog"  # the database server is started again
    DISK = "disk"  # is full for a while
    SEALED = "sealed"  # the disk, after the power went: it is read-only for a while
    CLOCK = "clock"  # is moved, and moved back
    EDIT = "edit"  # of the code of all jobs
    CLOUD = "cloud"  # bucket and queue are slow or fail for a while


class Kind(StrEnum):
    """What a process of the home is."""

    DAEMON = "daemon"
    ENGINE = "engine"  # in the background
    JVM = "jvm"
    WORKER = "worker"
    CHILD = "child"  # of a worker, for one file
    COMMAND = "command"


#: How often each is done, of a hundred or so.
_DEEDS = {
    Deed.KILL: 50,
    Deed.POWER: 1,
    Deed.FREEZE: 4,
    Deed.COMMAND: 32,
    Deed.STOP: 1,
    Deed.LULL: 5,
    Deed.CATALOG: 2,
    Deed.DISK: 2,
    Deed.SEALED: 1,
    Deed.CLOCK: 2,
    Deed.EDIT: 2,
    Deed.CLOUD: 4,
}

#: How often each is aimed at. Those that take long to come again are hit more rarely.
_KINDS = {Kind.DAEMON: 12, Kind.ENGINE: 5, Kind.JVM: 9, Kind.WORKER: 30, Kind.CHILD: 15, Kind.COMMAND: 25}

#: Points that a daemon or a command gets to (``volstream.base.faults``).
POINTS = (
    "plan.written",
    "plan.opened",
    "plan.recut",
    "batch.intent",
    "columns.adopted",
    "batch.staged",
    "batch.written",
    "batch.committed",
    "refresh.intent",
    "refresh.first",
    "refresh.committed",
    "compaction.written",
    "compaction.committed",
    "listing.file",
    "recover.fence",
    "recover.fenced",
    "catalog.migrate",
    "history.trimmed",
    "history.written",
)


#: Points that only jobs with outputs get to.
OUTPUT_POINTS = ("outputs.written", "outputs.noted", "outputs.placed", "outputs.moved", "outputs.aside", "outputs.removed")


@dataclass(frozen=True)
class Aim:
    """Who is hit: of the processes of a kind, ordered by their start, the one at ``place`` (0 to 1)."""

    kind: Kind
    place: float


@dataclass(frozen=True)
class PlanStep:
    """One step of a storm.

    Attributes:
        pause: seconds before it.
        changes: files that are changed before the deed.
        aims: at whom the deed is aimed, where it has an aim.
        seconds: how long the deed lasts, where it does.
        choice: which command is run, how far the clock is moved, what a cloud does (0 to 1).
        point: where a daemon or command that is started at this step kills itself, as ``VOLSTREAM_FAULT`` says it; or empty.
    """

    number: int
    pause: float
    changes: int
    deed: Deed
    aims: Sequence[Aim]
    seconds: float
    choice: float
    point: str


#: What works after a lull is killed in the middle of its work, one after the other.
_BURST = 8
_BURST_KINDS = {Kind.DAEMON: 5, Kind.JVM: 6, Kind.WORKER: 45, Kind.CHILD: 44}


def steps(seed: int, *, longest_pause: float, often: Deed | None = None, points: Sequence[str] = POINTS) -> Iterator[PlanStep]:
    """The steps of the storm of a seed, without end.

    Args:
        longest_pause: seconds.
        often: is done at every third step.
        points: those that processes get to.
    """
    weights = {**_DEEDS, **({} if often is None else {often: sum(_DEEDS.values()) // 2})}
    chance = random.Random(f"steps {seed}")
    number = burst = 0
    while True:
        number += 1
        deed = chance.choices([*weights], [*weights.values()])[0] if burst == 0 else Deed.KILL
        kinds, longest = (_KINDS, longest_pause) if burst == 0 else (_BURST_KINDS, longest_pause / 2)
        aims = [
            Aim(chance.choices([*kinds], [*kinds.values()])[0], chance.random()) for _ in range(chance.choice((1, 1, 2, 2, 3, 4)))
        ]
        point = f"{chance.choice(points)}#{chance.choice((1, 1, 1, 2, 3))}" if chance.random() < 0.5 else ""
        burst = _BURST if deed is Deed.LULL else max(0, burst - 1)
        yield PlanStep(
            number,
            chance.uniform(0.05, longest),
            chance.choice((0, 1, 2, 2, 5)),
            deed,
            aims,
            chance.uniform(0.3, 4.0),
            chance.random(),
            point,
        )

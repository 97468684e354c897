"""Background tasks of the console: queued, run a few at a time, shown with their progress, and cancelled on request.

Tasks are in the daemon's memory, the newest ones. A queue in the catalog would be too much: the rows of a run are exact by the
batches of its job, and the job's next run goes on with what a killed one left. A daemon that is killed loses the request for
what had not begun, and comparisons, which write nothing; the audit shows both as not ended.

What does not belong here: what is done (``actions``, ``comparisons``), and when jobs are due (``daemon.jobs``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from volstream.base.lifecycle.stop import Stop
from volstream.base.lifecycle.supervisor import join_all
from volstream.base.log import get
from volstream.catalog.audit import Audit
from volstream.errors import CatalogError, InvalidStateError, NotFoundError, VolstreamError, in_brief, unexpected

_log = get("console")

#: Tasks at once; that may wait besides; and ended ones that are kept.
_MAX_WORKING, _MAX_WAITING, _KEPT = 4, 50, 50

#: Seconds for all of them to end when the daemon stops.
_END_SECONDS = 5.0

#: Interval at which pages get the progress.
_TELL_SECONDS = 1.0


class TaskState(StrEnum):
    """``queued`` is also what waits for another run of its job."""

    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class Task:
    """A background task and its progress.

    Attributes:
        id: of its entry in the audit.
        action, object: such as ``replay`` and ``job sizes``.
        asked: the parameters of the request; None for those that were not given.
        step: what is being done, or waited for.
        done, files: how many of how many; None: unknown.
        result: how it ended, in a sentence.
        error: the class of the error if it failed by one of volstream's.
        remedy: what helps if it failed.
        outcome: what it found, for its page.
    """

    id: int
    action: str
    object: str
    asked: Mapping[str, str | None]
    queued_on: datetime
    began_on: datetime | None = None
    ended_on: datetime | None = None
    state: TaskState = TaskState.QUEUED
    step: str = ""
    done: int | None = None
    files: int | None = None
    result: str | None = None
    error: str | None = None
    remedy: str = ""
    outcome: Any = None

    @property
    def page(self) -> Sequence[str]:
        """The parts of the path of its page."""
        if self.action == "compare":
            return "jobs", self.object.partition(" ")[2], "compare", str(self.id)
        return "tasks", str(self.id)


class Work:
    """A task in hand, for the function that does it. Thread-safe.

    Attributes:
        stop: set when it is to end.
        cancelled: a user cancelled it; otherwise the daemon stops, or its time is up.
    """

    def __init__(self, task: Task, audit: Audit, tell: Callable[[Task], None]) -> None:
        self.task = task
        self.stop = Stop()
        self.cancelled = False
        self.why: str | None = None
        self.remedy = ""
        self._audit = audit
        self._tell = tell
        self._reported_at = 0.0
        self.over = threading.Event()  #: set when it has ended
        self._interrupt: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def waits(self, why: str) -> None:
        """Reports that it waits for others."""
        self.task.state, self.task.step = TaskState.QUEUED, why
        self._audit.queued(self.task.id, why)
        self._tell(self.task)

    def observe(self, done: int | None, files: int | None, step: str = "") -> None:
        """Reports progress. Raises InvalidStateError if the task is to end and its engine calls are being interrupted."""
        if self._interrupt is not None:
            self.check()
        task, news = self.task, (TaskState.RUNNING, step)
        changed = (task.state, task.step) != news
        (task.state, task.step), task.done, task.files = news, done, files
        if changed or time.monotonic() - self._reported_at > _TELL_SECONDS:
            self._reported_at = time.monotonic()
            self._tell(task)

    def interruptible(self, interrupt: Callable[[], object]) -> None:
        """Sets what interrupts the task's engine calls when it is to end. Raises InvalidStateError if it is to end already."""
        with self._lock:
            self._interrupt = interrupt
        self.check()

    def check(self) -> None:
        """Raises InvalidStateError if it is to end."""
        if self.why is not None:
            raise InvalidStateError(self.why, self.remedy)

    def end(self, why: str, remedy: str = "") -> None:
        """Makes it end."""
        with self._lock:
            if self.why is None:
                self.why, self.remedy = why, remedy
            interrupt = self._interrupt
        self.stop.set()
        if interrupt is not None:
            threading.Thread(
                target=self._interrupt_until_over, args=(interrupt,), name="interrupt", daemon=True
            ).start()

    def _interrupt_until_over(self, interrupt: Callable[[], object]) -> None:
        """Again and again: the first may come just before what it is to interrupt has begun."""
        while True:
            with suppress(Exception):  # the engine may have ended, or may be ending
                interrupt()
            if self.over.wait(_INTERRUPT_SECONDS):
                return


#: Time between two interruptions of a task that is to end.
_INTERRUPT_SECONDS = 1.0

#: Does a task and returns the result in a sentence.
Doing = Callable[[Work], str]


class Background:
    """Does tasks in threads: a few at once, and of the same action on the same object one after the other.

    Args:
        tell: tells open pages which topics changed.
    """

    def __init__(self, audit: Audit, tell: Callable[[Collection[str]], None]) -> None:
        self._audit = audit
        self._tell = tell
        self._changed = threading.Condition()  # guards all that follows
        self._tasks: dict[int, Task] = {}
        self._in_hand: dict[int, Work] = {}  # in the order of the requests
        self._working: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def begin(self, entry: int, action: str, object_: str, asked: Mapping[str, str | None], doing: Doing) -> Task:
        """Queues a task with an entry in the audit. Raises InvalidStateError if too many wait already."""
        task = Task(entry, action, object_, asked, datetime.now(UTC))
        work = Work(task, self._audit, self._publish)
        with self._changed:
            if self._stopped:
                raise InvalidStateError("The daemon is stopping.")
            if len(self._in_hand) >= _MAX_WORKING + _MAX_WAITING:
                raise InvalidStateError("Too many actions are queued already.", "Wait for some to end, or cancel some.")
            self._tasks[entry] = task
            self._in_hand[entry] = work
            named = f"{action} {object_}"
            thread = threading.Thread(target=self._run, args=(work, doing), name=named, daemon=True)
            self._threads = [*(running for running in self._threads if running.is_alive()), thread]
            thread.start()
        return task

    def newest(self, object_: str | None = None, action: str | None = None) -> list[Task]:
        """Returns tasks as they are now, without outcomes, newest first: all, or those on an object, or of an action."""
        with self._changed:
            tasks = [*reversed(self._tasks.values())]
        return [
            replace(task, outcome=None)
            for task in tasks
            if object_ in (None, task.object) and action in (None, task.action)
        ]

    def get(self, identity: str) -> Task:
        """Returns a task. Raises NotFoundError."""
        task = (
            self._tasks.get(int(identity))
            if identity.isascii() and identity.isdecimal() and len(identity) < 16
            else None
        )
        if task is None:
            raise NotFoundError(
                f"There is no task {identity}.",
                "Only the newest tasks are kept, until the daemon stops; the audit lists all of them. Start it again.",
            )
        return task

    def cancel(self, identity: str) -> Task:
        """Makes a task end: at once if it is queued, else after the current piece of work.

        Raises:
            NotFoundError: there is no such task.
            InvalidStateError: it has ended.
        """
        task = self.get(identity)
        with self._changed:
            work = self._in_hand.get(task.id)
            if work is None:
                raise InvalidStateError(f"The task {identity} has already ended.")
            work.cancelled = True
        self._end(work, "It was cancelled.")
        return task

    def stop(self) -> None:
        """Ends all tasks. Idempotent."""
        with self._changed:
            self._stopped = True
            working = [*self._in_hand.values()]
        for work in working:
            self._end(work, "The daemon has stopped.")
        join_all(self._threads, _END_SECONDS)

    def _end(self, work: Work, why: str) -> None:
        work.end(why)
        with self._changed:
            self._changed.notify_all()

    def _run(self, work: Work, doing: Doing) -> None:
        task = work.task
        error: Exception | None = None
        try:
            self._await_turn(work)
            task.began_on, task.state, task.step = datetime.now(UTC), TaskState.RUNNING, ""
            self._publish(task)
            result = doing(work)
        except Exception as exc:  # noqa: BLE001  # the thread's outermost handler
            error, result = exc, work.why or in_brief(exc)
            task.remedy = work.remedy if work.why else getattr(exc, "remedy", "")
            task.error = type(exc).__name__ if isinstance(exc, VolstreamError) and not work.why else None
        finally:
            work.over.set()
        if work.cancelled:
            state, said = TaskState.CANCELLED, f"cancelled: {result}"
        elif error is not None:
            state, said = TaskState.FAILED, f"failed: {result}"
            trace = None if work.why else unexpected(error)
            _log.warning("action_failed", action=task.action, object=task.object, error=result, exc_info=trace)
        else:
            state, said = TaskState.FINISHED, result
            _log.info("action", action=task.action, object=task.object, result=result)
        with suppress(CatalogError):  # the page has it
            self._audit.end(task.id, said)
        with self._changed:
            del self._in_hand[task.id]
            self._working.discard(task.id)
            task.state, task.step, task.result, task.ended_on = state, "", result, datetime.now(UTC)
            ended = [entry for entry in self._tasks if entry not in self._in_hand]
            for oldest in ended[:-_KEPT]:
                del self._tasks[oldest]
            self._changed.notify_all()
        self._publish(task)

    def _await_turn(self, work: Work) -> None:
        """Waits until the task may begin. Raises InvalidStateError if it is to end before."""
        with self._changed:
            while not work.stop and not self._may_begin(work.task):
                work.task.step = "Waiting for earlier actions."
                self._changed.wait()
            work.check()
            self._working.add(work.task.id)

    def _may_begin(self, task: Task) -> bool:
        first = next(
            work
            for work in self._in_hand.values()
            if (work.task.action, work.task.object) == (task.action, task.object)
        )
        return first.task is task and len(self._working) < _MAX_WORKING

    def _publish(self, task: Task) -> None:
        self._tell({"tasks", task.object.replace(" ", ":", 1)})

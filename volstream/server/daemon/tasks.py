"""Runs the tasks requested in the console: a few at once, and those of an object one after another.

Each is a row of the catalog until it has ended. So a daemon that starts continues the tasks of an earlier one
from their beginning: commits of a run stay, and a comparison writes nothing.

The tasks themselves are in ``console.actions``, and due jobs in ``daemon.jobs``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress

from volstream.base.config import Settings
from volstream.base.log import get
from volstream.base.model.text import to_json
from volstream.base.model.work import ActionState, AuditEntry
from volstream.base.threads import Backoff, FailureTracker, Stop, join_all, run_loop
from volstream.catalog import Catalog
from volstream.catalog.database import Version
from volstream.catalog.leases import of_tasks
from volstream.errors import CatalogError, VolstreamError, in_brief, unexpected
from volstream.server.console.queries import CANCELLED, TaskBody, Work
from volstream.server.daemon.leased import LeasedWorker

_log = get("tasks")

#: Maximum number of concurrent tasks.
_MAX_WORKING = 4

#: A task during which this many daemons were killed is not started again: it may be the cause.
_MAX_ATTEMPTS = 3

#: Interval of checks for new and cancelled tasks if nothing wakes the worker.
_CHECK_SECONDS = 0.5

#: Seconds for all tasks to end when the daemon stops.
_END_SECONDS = 5.0


class TaskWorker(LeasedWorker):
    """Runs the tasks of a virtual cluster while it holds their lease.

    Args:
        task_body: returns the function that performs a task. Raises VolstreamError if its object no longer
            exists.
        engine_is_up: whether tasks that need the engine can start.
    """

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        cluster: str,
        task_body: Callable[[AuditEntry], TaskBody],
        engine_is_up: Callable[[], bool],
    ) -> None:
        super().__init__("tasks", of_tasks(cluster), catalog, settings, _log)
        self._audit = catalog.audit
        self._cluster = cluster
        self._task_body = task_body
        self._engine_is_up = engine_is_up
        self._wake = threading.Event()
        self._running: dict[int, Work] = {}
        self._threads: list[threading.Thread] = []

    def wake(self) -> None:
        """Makes it check for tasks now, because of a change."""
        self._wake.set()

    def end(self) -> None:
        """See :meth:`LeasedWorker.end`."""
        super().end()
        self.wake()

    def work(self, turn: Stop) -> None:
        """See :meth:`LeasedWorker.work`. Unfinished tasks stay in the catalog for the next holder."""

        seen: Version | None = None  # the catalog's version at the last check; None while tasks are open

        def check() -> None:
            nonlocal seen
            self._wake.clear()
            self._collect()
            version = self._catalog.database.version()
            if version != seen:
                seen = None if self._follow(turn) else version
            self._wake.wait(_CHECK_SECONDS)

        try:
            trouble = FailureTracker("tasks", _log, Backoff())
            run_loop(check, turn, trouble, survives=lambda error: isinstance(error, CatalogError))
        finally:
            for work in self._running.values():
                work.end("The daemon has stopped.")
            join_all(self._threads, _END_SECONDS)
            with suppress(CatalogError):  # they will be done again
                self._collect()
                for identity, work in self._running.items():
                    self._audit.note(identity, attempts=work.task.attempts)
            self._running.clear()

    def _collect(self) -> None:
        """Records how tasks ended. They count as running until the catalog has the record."""
        for identity, work in [*self._running.items()]:
            if work.ended is not None:
                self._audit.end(identity, **work.ended)
                del self._running[identity]

    def _follow(self, turn: Stop) -> bool:
        """Starts tasks whose turn it is, and ends cancelled ones. Returns whether there are any tasks."""
        busy = set[str]()
        tasks = self._audit.open(self._cluster)
        for task in tasks:
            if task.id in self._running:
                if task.cancelled:
                    self._running[task.id].cancel()
            elif task.cancelled:
                self._audit.end(task.id, ActionState.CANCELLED, CANCELLED)
                continue
            elif task.attempts >= _MAX_ATTEMPTS:
                why = f"The daemon was killed {task.attempts} times while it did this."
                self._audit.end(task.id, ActionState.FAILED, why, remedy="See its log before you request it again.")
                continue
            elif task.object in busy or len(self._running) >= _MAX_WORKING:
                self._queue(task, "Waiting for earlier actions.")
            elif task.object.startswith("job ") and not self._engine_is_up():
                self._queue(task, "Waiting for the Spark engine.")
            else:
                self._audit.note(task.id, attempts=task.attempts + 1)
                work = self._running[task.id] = Work(task, self._audit)
                name = f"{task.action} {task.object}"
                thread = threading.Thread(target=self._perform, args=(work, turn), name=name, daemon=True)
                self._threads = [*(alive for alive in self._threads if alive.is_alive()), thread]
                thread.start()
            busy.add(task.object)
        return bool(tasks)

    def _queue(self, task: AuditEntry, why: str) -> None:
        if (task.state, task.step) != (ActionState.QUEUED, why):
            self._audit.note(task.id, state=ActionState.QUEUED, step=why)

    def _perform(self, work: Work, turn: Stop) -> None:
        task, state, error, remedy, outcome = work.task, ActionState.FINISHED, None, None, None
        try:
            work.observe(None, None)
            result = self._task_body(task)(work)
            outcome = json.loads(to_json(work.outcome))
        except Exception as exc:  # noqa: BLE001  # the thread's outermost handler
            state, result = ActionState.FAILED, work.why or in_brief(exc)
            error = type(exc).__name__ if isinstance(exc, VolstreamError) and not work.why else None
            remedy = "" if work.why else getattr(exc, "remedy", "")
            if not turn:
                trace = None if work.why else unexpected(exc)
                _log.warning("action_failed", action=task.action, object=task.object, error=result, exc_info=trace)
        else:
            _log.info("action", action=task.action, object=task.object, result=result)
        if turn:  # the task may have been cut short
            return
        if work.cancelled:
            state = ActionState.CANCELLED
        work.ended = {"state": state, "result": result, "error": error, "remedy": remedy, "outcome": outcome}
        self.wake()

"""A task in hand, for the function that does it: it reports progress here, and learns here that it is to end.

What does not belong here: when tasks begin, and what becomes of their results (``daemon.tasks``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from volstream.base.model.work import ActionState, AuditEntry
from volstream.base.threads import Stop
from volstream.catalog.audit import Audit
from volstream.errors import CatalogError, InvalidStateError

#: Interval at which the catalog gets the progress.
_NOTE_SECONDS = 1.0

#: Time between two interruptions of a task that is to end.
_INTERRUPT_SECONDS = 0.5

CANCELLED = "It was cancelled."


class Work:
    """A task in hand. Thread-safe.

    Attributes:
        stop: set when it is to end.
        cancelled: a user cancelled it; otherwise the daemon stops, or its time is up.
        why, remedy: it is to end.
        plan_id: see :class:`AuditEntry`.
        outcome: what it found, for its page; anything that has a document.
        ended: how it ended, as columns of its entry; None: it has not.
    """

    def __init__(self, task: AuditEntry, audit: Audit) -> None:
        self.task = task
        self.stop = Stop()
        self.cancelled = False
        self.why: str | None = None
        self.remedy = ""
        self.plan_id = task.plan_id
        self.outcome: Any = None
        self.ended: dict[str, Any] | None = None
        self.over = threading.Event()  #: set when nothing of it is left to interrupt
        self._audit = audit
        self._noted: tuple[ActionState, str] | None = None
        self._noted_at = 0.0

    def waits(self, why: str) -> None:
        """Reports that it waits for others."""
        self._note(ActionState.QUEUED, why)

    def observe(self, done: int | None, files: int | None, step: str = "") -> None:
        """Reports progress."""
        self._note(ActionState.RUNNING, step, done=done, files=files)

    def planned(self, plan_id: str) -> None:
        """Records the plan of a replay, with which another daemon goes on."""
        if self.plan_id != plan_id:
            self._audit.note(self.task.id, plan_id=plan_id)
            self.plan_id = plan_id

    def _note(self, state: ActionState, step: str, **progress: int | None) -> None:
        now = time.monotonic()
        if self._noted != (state, step) or now - self._noted_at > _NOTE_SECONDS:
            self._noted, self._noted_at = (state, step), now
            with suppress(CatalogError):  # the next one says as much
                self._audit.note(self.task.id, state=state, step=step, **progress)

    def check(self) -> None:
        """Raises InvalidStateError if it is to end."""
        if self.why is not None:
            raise InvalidStateError(self.why, self.remedy)

    def interruptible(self, interrupt: Callable[[], object]) -> None:
        """Sets what interrupts the task's engine calls when it is to end."""

        def watch() -> None:
            # Again and again: the first may come just before what it is to interrupt has begun.
            while not self.over.wait(_INTERRUPT_SECONDS):
                if self.stop:
                    with suppress(Exception):  # the engine may have ended, or may be ending
                        interrupt()

        threading.Thread(target=watch, name="interrupt", daemon=True).start()

    def cancel(self) -> None:
        """Makes it end because a user asked for that. Idempotent."""
        self.cancelled = True
        self.end(CANCELLED)

    def end(self, why: str, remedy: str = "") -> None:
        """Makes it end. Idempotent: the first reason stays."""
        if self.why is None:
            self.remedy, self.why = remedy, why
        self.stop.set()


#: Does a task and returns the result in a sentence.
TaskBody = Callable[[Work], str]

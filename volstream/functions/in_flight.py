"""Several calls in flight in one child process, for functions that wait and run in an environment.

If the child dies, or answers nothing any more, it is not known which call was to blame: each is made again alone, in a child of
its own.
"""

from __future__ import annotations

import itertools
import queue
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from volstream.base.model.work import FailureKind
from volstream.functions.child import ChildWorker
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.processes import receive, send

if TYPE_CHECKING:
    from volstream.functions.worker import Work

#: The child itself ends a call at its limit, or gives it up soon after. A child that does not is killed this long after the
#: limit.
_GRACE_SECONDS = 5.0

#: The child may take this long to close what the function has set up.
_CLOSE_SECONDS = 10.0

#: The outcomes of a call; None: the child has died.
_Answer: TypeAlias = "queue.SimpleQueue[list[FileOutcome] | None]"


class ManyCallsWorker(ChildWorker):
    """A :class:`ChildWorker` with several calls at once, each from a thread of its own.

    Args:
        concurrency: calls at once; None: as many as the function wants.
    """

    def __init__(self, work: Work, concurrency: int | None) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, _Answer] = {}
        self._numbers = itertools.count()
        self._one_alone = threading.Lock()
        self._reader = threading.Thread()
        self._wanted = concurrency
        super().__init__(work)

    def fetch(self, group: Sequence[FileTask]) -> None:
        """See :class:`ChildWorker`."""
        with self._lock:
            super().fetch(group)

    def call(self, group: Sequence[FileTask]) -> list[FileOutcome]:
        """See :class:`ChildWorker`."""
        if self.concurrency == 1:
            return super().call(group)
        answer = self._ask(group)
        limit = None if self._work.timeout_seconds is None else self._work.timeout_seconds * len(group)
        try:
            outcomes = answer.get(timeout=None if limit is None else limit + _GRACE_SECONDS)
        except queue.Empty:
            self._kill()
            outcomes = None
        if outcomes is None:
            return self._alone(group)
        return [
            self._alone([outcome.task])[0].after(outcome) if outcome.kind is FailureKind.OUT_OF_MEMORY else outcome
            for outcome in outcomes
        ]

    def close(self) -> None:
        """See :class:`ChildWorker`."""
        if self._reader.is_alive():
            with self._lock, suppress(BrokenPipeError):
                if self._child is not None:
                    send(self._requests, ("end", ()))
            self._reader.join(_CLOSE_SECONDS)
            self._kill()
            self._reader.join()
        super().close()

    def _ask(self, group: Sequence[FileTask]) -> _Answer:
        answer: _Answer = queue.SimpleQueue()
        with self._lock:
            if self._child is None and self._broken is None:
                self._start()
            if self._broken is not None:
                answer.put(None)  # a child alone would say why
                return answer
            number = next(self._numbers)
            self._waiting[number] = answer
            with suppress(BrokenPipeError):  # the reader notices
                send(self._requests, ("call", (number, group)))
        return answer

    def _start(self) -> None:
        super()._start()
        self.concurrency = self._wanted or self.wanted
        if self._broken is None and self.concurrency > 1:
            send(self._requests, ("many", self.concurrency))
            self._reader = threading.Thread(target=self._read, args=(self._answers,), name="answers", daemon=True)
            self._reader.start()

    def _read(self, answers: int) -> None:
        """Hands out answers until the child has ended."""
        with suppress(EOFError, OSError):
            while True:
                number, outcomes, self.fetch_ahead = receive(answers)
                with self._lock:
                    answer = self._waiting.pop(number, None)
                if answer is not None:
                    answer.put(outcomes)
        with self._lock:
            super().close()
            for answer in self._waiting.values():
                answer.put(None)
            self._waiting.clear()

    def _kill(self) -> None:
        with self._lock:
            child: subprocess.Popen[bytes] | None = self._child
            if child is not None:
                child.kill()

    def _alone(self, group: Sequence[FileTask]) -> list[FileOutcome]:
        """Makes one call in a child of its own, which would die with this thread."""
        with self._one_alone:
            child = ChildWorker(self._work)
            try:
                return child.call(group)
            finally:
                child.close()

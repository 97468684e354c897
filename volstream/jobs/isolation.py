"""Calling the function in a child process that can crash, be killed for its time, or exit, without harm to the batch.

The child is a plain Python process that reads tasks and writes outcomes over two pipes of its own (what the function
prints does not meet them). It is kept for file after file, and made anew after a death.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from volstream.model.units import format_duration
from volstream.model.work import FailureKind

if TYPE_CHECKING:
    from volstream.jobs.runtime import FileOutcome, FileTask, Work

#: A child interrupts Python code by itself at the limit; one that does not answer this much later is killed.
_GRACE_SECONDS = 2.0


class IsolatedCaller:
    """Calls a :class:`~volstream.jobs.runtime.Work` on one file at a time, in a child process."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._child: subprocess.Popen[bytes] | None = None
        self._requests = self._answers = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._end()

    def __call__(self, task: FileTask) -> FileOutcome:
        """What became of the file; a child that died is the file's failure."""
        from volstream.jobs.runtime import FileOutcome

        if self._child is None:
            self._start()
        limit = self._work.timeout_seconds
        deadline = None if limit is None else time.monotonic() + limit + _GRACE_SECONDS
        try:
            _send(self._requests, task)
            outcome = _receive(self._answers, deadline)
        except TimeoutError:
            self._end()
            message = f"The function ran longer than {format_duration(limit or 0)} and was killed."
            return FileOutcome(task, kind=FailureKind.TIMED_OUT, message=message)
        except (EOFError, BrokenPipeError):
            return FileOutcome(task, kind=FailureKind.WORKER_DIED, message=self._cause())
        assert isinstance(outcome, FileOutcome)
        return outcome

    def _start(self) -> None:
        child_reads, self._requests = os.pipe()
        self._answers, child_writes = os.pipe()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "volstream.jobs.isolation", str(child_reads), str(child_writes)],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        _send(self._requests, self._work)

    def _cause(self) -> str:
        assert self._child is not None
        code = self._child.wait()
        self._end()
        if code < 0:
            name = signal.Signals(-code).name if -code in {*signal.Signals} else str(-code)
            return f"The process that ran the function was killed by {name}."
        return f"The process that ran the function ended with exit status {code}."

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            os.close(self._requests)
            os.close(self._answers)
            self._child = None


def _send(descriptor: int, value: Any) -> None:
    data = pickle.dumps(value)
    view = memoryview(struct.pack(">Q", len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


def _receive(descriptor: int, deadline: float | None = None) -> Any:
    """The next value. Raises EOFError at the end, TimeoutError at the deadline (monotonic)."""
    (length,) = struct.unpack(">Q", _read(descriptor, 8, deadline))
    return pickle.loads(_read(descriptor, length, deadline))


def _read(descriptor: int, length: int, deadline: float | None) -> bytes:
    data = bytearray()
    while len(data) < length:
        if deadline is not None and not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError
        chunk = os.read(descriptor, min(1 << 20, length - len(data)))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def _serve(requests: int, answers: int) -> None:
    """The child: one Work, then task after task until the parent closes its end."""
    work: Work = _receive(requests)
    call = work.in_process()
    while True:
        try:
            task = _receive(requests)
        except EOFError:
            return
        outcome = call(task)
        work.plain(outcome)
        _send(answers, outcome)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), int(sys.argv[2]))

"""Calls the function in a child process that may crash, be killed on timeout, or exit, without harm to the
batch.

The child is a plain Python process of this interpreter or the function's environment. It reads calls and
writes outcomes over an inherited socket, separate from the function's output. It is reused for many files,
and replaced when it dies.
"""

from __future__ import annotations

import itertools
import os
import queue
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import IO, NamedTuple, TypeAlias

from volstream.base.model.units import format_duration
from volstream.base.model.work import FailureKind
from volstream.errors import FunctionLoadError
from volstream.files.storage.base import HasLocalPaths
from volstream.functions.call import Work
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.printing import CapturedOutput, Line
from volstream.functions.processes import end_of, last_line, starting
from volstream.functions.proxied_store import ProxiedBlobs, ProxiedStore, lend
from volstream.functions.schema import check_declared, of_declaration

#: At the limit a child itself interrupts Python code. A child that does not reply within this time is killed.
_GRACE_SECONDS = 2.0

#: Time that an idle child has to close what the function set up.
_CLOSE_SECONDS = 10.0

#: Maximum characters of the last output, of a dead child or of the function, that are kept with the failure.
_MAX_LAST_OUTPUT = 4000


class Ready(NamedTuple):
    """The child's message after importing the function.

    Attributes:
        returns: see :class:`~volstream.functions.call.Caller`.
        concurrency: maximum number of its concurrent calls.
    """

    batch_size: int
    returns: str | None
    concurrency: int


class ChildWorker:
    """Calls a function in a child process, which runs :mod:`volstream.functions.serving`.

    Attributes:
        batch_size, fetch_ahead: as reported by the child, because this process does not import the function.
        concurrency: one call at a time, so that a dead child identifies its file.
    """

    #: Maximum number of concurrent calls. None for as many as the function wants.
    _max_calls: int | None = 1

    def __init__(self, work: Work) -> None:
        self.batch_size = self.concurrency = 1
        self.fetch_ahead = False
        self._work = work
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection
        self._errors: IO[bytes] | None = None
        # Temporary files, including copies of objects, which a killed child cannot remove itself.
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._broken: tuple[FailureKind, str, str | None] | None = None
        self._served = self._calling = False
        self._start()

    def fetch(self, group: Sequence[FileTask]) -> None:
        """Makes the child fetch the contents of an upcoming group."""
        if self._child is not None:
            try:
                self._connection.send(("fetch", group))
            except OSError:  # the next call will notice and report why
                self.fetch_ahead = False

    def call(self, group: Sequence[FileTask]) -> list[FileOutcome]:
        """Returns the outcome of each file. A dead child is a failure of its file, which is found by calls on
        single files.

        Running out of memory is a file's failure only in a fresh child. Otherwise data kept from other files
        may be the cause.
        """
        fresh = not self._served
        kind, message, output = self._call(group)
        if not isinstance(kind, FailureKind):
            if fresh or all(outcome.kind is not FailureKind.OUT_OF_MEMORY for outcome in kind):
                return kind
            self.close()
            return self.call(group)
        if len(group) > 1:
            return [FileOutcome(task, kind=kind, message=message, of_group=True) for task in group]
        printed = () if output is None else (CapturedOutput([group[0].info.relative_path], _lines(output)),)
        return [FileOutcome(group[0], kind=kind, message=message, traceback=output, printed=printed)]

    def close(self) -> None:
        """Ends the child. A later call starts another."""
        self._served = False
        if self._child is not None:
            self._connection.close()  # which ends it, unless it is in a call
            if not self._calling:
                with suppress(subprocess.TimeoutExpired):
                    self._child.wait(_CLOSE_SECONDS)
            self._child.kill()
            self._child.wait()
            self._child = None
        self._calling = False
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def _call(self, group: Sequence[FileTask]) -> tuple[FailureKind | list[FileOutcome], str, str | None]:
        """Returns the outcomes or, without outcomes, the reason with the child's last output."""
        if self._child is None and self._broken is None:
            self._start()
        if self._broken is not None:
            return self._broken
        limit = None if self._work.timeout_seconds is None else self._work.timeout_seconds * len(group)
        try:
            self._calling = True
            if limit is not None:
                _limit_silence(self._connection, limit + _GRACE_SECONDS)
            self._connection.send(("call", (0, group)))
            _, outcomes, self.fetch_ahead = self._connection.recv()
            self._calling, self._served = False, True
        except BlockingIOError:
            output = self._last_output()
            self.close()
            message = f"The function ran longer than {format_duration(limit or 0)} and was killed."
            return FailureKind.TIMED_OUT, message, output
        except (EOFError, OSError):
            return FailureKind.WORKER_DIED, *self._cause()
        return outcomes, "", None

    def _start(self) -> None:
        environment = self._work.source.environment
        environment = environment and environment.here()
        if environment is not None and environment.missing is not None:
            self._broken = FailureKind.SET_UP, environment.missing, None
            return
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._errors = tempfile.TemporaryFile(prefix="volstream-")  # noqa: SIM115  # closed by `close`
        self._scratch = tempfile.TemporaryDirectory(prefix="volstream-", ignore_cleanup_errors=True)
        command, variables = starting(environment, "volstream.functions.serving", self._scratch.name)
        work, inherited = self._work, [theirs.detach()]
        if environment is not None and not isinstance(work.store, HasLocalPaths):
            control = lend(work.store)
            inherited.append(control.detach())
            work = replace(work, store=ProxiedStore(inherited[-1]))
        if environment is not None and work.steps is not None and work.steps.store is not None:
            control = lend(work.steps.store)
            inherited.append(control.detach())
            work = replace(work, steps=replace(work.steps, store=ProxiedBlobs(inherited[-1])))
        self._child = subprocess.Popen(
            [*command, str(os.getpid()), str(inherited[0])],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**variables, "TMPDIR": self._scratch.name},
        )
        for descriptor in inherited:
            os.close(descriptor)
        try:
            self._connection.send((work, self._max_calls))
            ready: Ready = self._connection.recv()
            self.batch_size, self.concurrency = ready.batch_size, ready.concurrency
            if ready.returns is not None:
                check_declared(of_declaration(ready.returns), self._work.schema)
        except (EOFError, OSError):  # every child would die while importing the function
            self._broken = self._start_failure()
        except FunctionLoadError as error:
            self._broken = FailureKind.SET_UP, str(error), None

    def _start_failure(self) -> tuple[FailureKind, str, str | None]:
        """Returns why no child can be started."""
        cause, output = self._cause()
        environment = self._work.source.environment
        if environment is None:
            return FailureKind.WORKER_DIED, cause, output
        cause = f"{cause.rstrip('.')}{last_line((output or '').encode())}"
        return FailureKind.SET_UP, f"The environment of {environment.name} cannot run the function. {cause}.", output

    def _cause(self) -> tuple[str, str | None]:
        """Returns why the child died, and its last output."""
        assert self._child is not None
        code = self._child.wait()
        output = self._last_output()
        self.close()
        return f"The process that ran the function {end_of(code)}.", output

    def _last_output(self) -> str | None:
        """Returns the end of the child's standard error, and of the function's output."""
        assert self._errors is not None
        descriptor = self._errors.fileno()
        start = max(0, os.fstat(descriptor).st_size - _MAX_LAST_OUTPUT)
        return os.pread(descriptor, _MAX_LAST_OUTPUT, start).decode("utf-8", "replace") or None


def _limit_silence(connection: Connection, seconds: float) -> None:
    """Makes reading fail with BlockingIOError after this many seconds without data."""
    whole = int(seconds)
    with socket.socket(fileno=os.dup(connection.fileno())) as reading:
        reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, int((seconds - whole) * 1e6)))


def _lines(output: str) -> Sequence[Line]:
    """Splits the last output into lines, whose original times are unknown."""
    now = time.time()
    return [Line(now, "stderr", line) for line in output.splitlines()]


# Several calls in flight in one child process, for functions that wait and run in an environment.
#
# If the child dies, or answers nothing any more, it is not known which call was to blame: each is made again
# alone, in a child of its own.

#: The child itself ends a call at its limit, or gives it up soon after. A child that does not is killed this
#: long after the limit.
_MANY_GRACE_SECONDS = 5.0

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
        self._max_calls = concurrency
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
            outcomes = answer.get(timeout=None if limit is None else limit + _MANY_GRACE_SECONDS)
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
            with self._lock, suppress(OSError):
                if self._child is not None:
                    self._connection.send(("end", None))
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
            with suppress(OSError):  # the reader notices
                self._connection.send(("call", (number, group)))
        return answer

    def _start(self) -> None:
        super()._start()
        if self._broken is None and self.concurrency > 1:
            self._reader = threading.Thread(target=self._read, args=(self._connection,), name="answers", daemon=True)
            self._reader.start()

    def _read(self, answers: Connection) -> None:
        """Hands out answers until the child has ended."""
        with suppress(EOFError, OSError):
            while True:
                number, outcomes, self.fetch_ahead = answers.recv()
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

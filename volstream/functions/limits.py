"""Limits of a function's time and memory, in the process that calls it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from volstream.base.model.units import format_size
from volstream.base.model.work import FailureKind
from volstream.functions.outcomes import FileOutcome


class TimeLimitError(BaseException):
    """Raised inside a function that runs too long; not an Exception, so that a broad except does not swallow it."""


class ThreadLimit:
    """The time limit of a call in a thread, which receives no signals: another thread watches and interrupts it.

    Attributes:
        seconds: the limit.
        until: when the limit is reached (monotonic).
        interrupted: whether the call was interrupted.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.until = time.monotonic() + seconds
        self.interrupted = False
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._over = False

    def interrupt(self) -> None:
        """Raises TimeLimitError in the call's thread, at its next Python instruction, unless the call has ended."""
        with self._lock:
            if not self._over:
                self.interrupted = True
                _raise_in(self._thread, TimeLimitError)

    def end(self) -> None:
        """Ends the limit, in the call's thread, where a pending error would otherwise hit the next call.

        Raises:
            TimeLimitError: it was raised meanwhile; call this again. It is raised at most once.
        """
        with self._lock:
            self._over = True
        if self.interrupted:
            # Takes the place of a pending error. To cancel that would leave CPython 3.11 looking for it: each instruction of all
            # threads is slower from then on, and a profiler or debugger hangs at the next call.
            with suppress(TimeLimitError):
                _raise_in(self._thread, TimeLimitError)
                while True:
                    pass


#: The limits of running calls, by thread.
_of_threads: dict[int, ThreadLimit] = {}


def limit_of(thread: int) -> ThreadLimit | None:
    """Returns the limit of the call running in a thread; None: no call runs, or it has no limit."""
    return _of_threads.get(thread)


def seconds_left() -> float | None:
    """Returns how long this thread's call may still run; None: unlimited, or a signal will interrupt it."""
    limit = limit_of(threading.get_ident())
    return None if limit is None else max(0.0, limit.until - time.monotonic())


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupts Python code in the block after ``seconds``: in a main thread by a signal, elsewhere if another thread watches
    :func:`limit_of`.

    Does not interrupt code that never returns to the interpreter; use isolation for that.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        limit = _of_threads[threading.get_ident()] = ThreadLimit(seconds)
        try:
            yield
        finally:
            try:
                limit.end()
            except TimeLimitError:
                limit.end()
            del _of_threads[threading.get_ident()]
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimitError

    previous = signal.signal(signal.SIGALRM, interrupt)
    # Repeated, so that a function that swallows the first one in a finally or a bare except gets another.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def memory_limit(size: int | None) -> Iterator[None]:
    """Limits the memory that the process may allocate in the block to ``size`` more bytes; Python then raises MemoryError.

    Linux only, where the kernel counts a process's private writable memory; elsewhere there is no limit.
    """
    used = _data_bytes() if size is not None else None
    if size is None or used is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + size
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def explain_memory(outcome: FileOutcome, limit: int | None) -> None:
    """Adds the limit to the message of an outcome that ran out of memory."""
    if outcome.kind is FailureKind.OUT_OF_MEMORY and limit is not None:
        outcome.message = (
            f"The function needs more than {format_size(limit)} of memory (option --memory, setting function_memory)."
        )


def _data_bytes() -> int | None:
    """Returns the bytes that the kernel counts against RLIMIT_DATA, or None if unknown."""
    if not sys.platform.startswith("linux"):
        return None
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Makes a thread raise an error, at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))

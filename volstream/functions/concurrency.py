"""Concurrent calls of a function in threads, and coroutine functions.

A coroutine function is called like any other: a worker's thread waits for its coroutine, which runs on the
process's event loop. So time limits, output and failures work as for a plain function.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import inspect
import os
import queue
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from volstream.base.model.units import format_duration, format_size
from volstream.base.model.work import FailureKind
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.functions.source import own_folder

#: Interval of checks of the limits, in seconds.
_CHECK_SECONDS = 0.1

#: A call that has not ended this long after its interruption is abandoned.
_GRACE_SECONDS = 2.0

_Group: TypeAlias = Sequence[FileTask]


@dataclass(eq=False)
class _Call:
    group: _Group
    thread: int | None = None
    interrupted: float | None = None
    abandoned: bool = False


class Calls:
    """The calls of a worker in flight. Used in one thread.

    A single call runs in that thread, where a signal interrupts it at its time limit. Several calls run in
    threads, and are interrupted between two Python instructions. A call that does not end then, such as a
    request without a timeout, has failed, and its thread is abandoned.

    Args:
        call: returns the outcomes of a group. Called from several threads if ``maximum`` is more than one.
        maximum: maximum number of concurrent calls.

    Attributes:
        free: whether another call may start.
        running: whether a call was started that :meth:`next` has not returned.
        has_abandoned: whether an abandoned call still runs in this process.
    """

    def __init__(self, call: Callable[[_Group], list[FileOutcome]], maximum: int) -> None:
        self._call = call
        self._maximum = maximum
        self._running: deque[_Call] = deque()
        self._threads = 0
        self.has_abandoned = False
        self._checked_at = 0.0
        self._requests: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Call, list[FileOutcome] | BaseException] | None] = queue.SimpleQueue()

    @property
    def free(self) -> bool:
        """See the class."""
        return len(self._running) < self._maximum

    @property
    def running(self) -> bool:
        """See the class."""
        return bool(self._running)

    def start(self, group: _Group) -> None:
        """Starts a call."""
        call = _Call(group)
        self._running.append(call)
        if self._maximum == 1:
            return  # `next` makes it
        if self._threads < len(self._running):
            self._threads += 1
            # A daemon thread: if abandoned, it must not keep the process alive.
            threading.Thread(target=self._serve, name="function", daemon=True).start()
        self._requests.put(call)

    def next(self) -> list[FileOutcome]:
        """Waits until any call has ended, and returns its outcomes. Returns none after :meth:`wake`."""
        if self._maximum == 1:
            return self._call(self._running.popleft().group)
        while True:
            if time.monotonic() >= self._checked_at + _CHECK_SECONDS and (abandoned := self._check_limits()) is not None:
                return abandoned
            try:
                done = self._done.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                continue
            if done is None:
                return []
            call, result = done
            if call.abandoned:
                continue
            self._running.remove(call)
            if isinstance(result, BaseException):
                raise result
            return result

    def wake(self) -> None:
        """Makes :meth:`next` return. May be called from another thread."""
        self._done.put(None)

    def close(self) -> None:
        """Ends the idle threads without waiting for the others."""
        self._requests.put(None)

    def _serve(self) -> None:
        while (call := self._requests.get()) is not None:
            call.thread = threading.get_ident()
            try:
                result: list[FileOutcome] | BaseException = self._call(call.group)
            except BaseException as error:  # noqa: BLE001  # raised by the waiting thread
                result = error
            self._done.put((call, result))
            if call.abandoned:
                return  # another thread has taken its place
        self._requests.put(None)  # for the next thread

    def _check_limits(self) -> list[FileOutcome] | None:
        """Interrupts calls that have reached their time limit. Returns the outcomes of a call that does not
        end."""
        self._checked_at = now = time.monotonic()
        for call in self._running:
            limit = None if call.thread is None else limit_of(call.thread)
            if limit is None or now < limit.until:
                call.interrupted = None  # a group's files are repeated one by one, each with its own limit
            elif call.interrupted is None:
                call.interrupted = now
                limit.interrupt()
            elif now > call.interrupted + _GRACE_SECONDS:
                call.abandoned = self.has_abandoned = True
                self._running.remove(call)
                self._threads -= 1
                message = f"The function ran longer than {format_duration(limit.seconds)}, and could not be interrupted."
                return [FileOutcome(task, kind=FailureKind.TIMED_OUT, message=message) for task in call.group]
        return None


# The pace of a job's calls, which its workers share without communicating. Runs on executors.
#
# Each of n workers makes every n-th call of the job: its calls are n intervals apart, and begin one interval
# after the previous worker's. So calls stay within the rate even if a worker falls behind. A turn that a
# worker does not use is lost.


@dataclass(frozen=True)
class Pace:
    """The intervals between a job's calls.

    Attributes:
        seconds: between two calls.
        wait: seconds before the first call, because of earlier calls.
        workers: number of workers that share the calls.
    """

    seconds: float
    wait: float = 0.0
    workers: int = 1

    def of_worker(self) -> CallSchedule:
        """Returns the turns of this process's worker, which is a Spark task, or the only worker."""
        from pyspark import TaskContext

        task = TaskContext.get()
        number = 0 if task is None else task.partitionId() % self.workers
        return CallSchedule(self.seconds * self.workers, self.wait + number * self.seconds)


class CallSchedule:
    """The turns of a worker's calls. Thread-safe.

    Args:
        seconds: between two turns.
        wait: seconds before the first turn.
    """

    def __init__(self, seconds: float, wait: float = 0.0) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + wait
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Waits for the next turn. A missed turn is not made up."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._seconds
        time.sleep(turn - now)


def awaited(returned: Any, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    """Returns a function's result, awaited if it is awaitable. Asynchronously yielded values become an
    iterator.

    Args:
        convert: converts an awaited value before other coroutines continue.

    Raises:
        TimeLimitError: this thread's limit was reached.
    """
    if inspect.isawaitable(returned):
        return _result(returned, convert)
    return _items(returned, convert) if isinstance(returned, AsyncIterator) else returned


def _items(items: AsyncIterator[Any], convert: Callable[[Any], Any]) -> Iterator[Any]:
    while True:
        try:
            yield _result(anext(items), convert)
        except StopAsyncIteration:
            return


async def _awaiting(awaitable: Any, convert: Callable[[Any], Any]) -> tuple[Any, BaseException | None]:
    try:
        return convert(await awaitable), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # a future would replace some errors, without a traceback
        return None, error


def _result(awaitable: Any, convert: Callable[[Any], Any]) -> Any:
    future = asyncio.run_coroutine_threadsafe(_awaiting(awaitable, convert), _loop())
    try:
        value, error = future.result(seconds_left())
    except BaseException as interruption:
        future.cancel()
        if isinstance(interruption, TimeoutError):
            raise TimeLimitError from None
        raise
    if error is not None:
        raise error
    return value


def is_blocked() -> bool:
    """Returns whether coroutines can no longer run in this process, because one of them blocks the event
    loop.

    The process is then no longer usable for calls: resources that functions opened on the loop cannot move to
    another loop.
    """
    if not _loops:
        return False
    responded = threading.Event()
    _loops[0].call_soon_threadsafe(responded.set)
    return not responded.wait(_GRACE_SECONDS)


_loops: list[asyncio.AbstractEventLoop] = []
_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Returns this process's event loop for functions, which runs in a thread.

    Resources that a class opened on it during its setup stay valid from batch to batch.
    """
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_run, args=_loops, name="event loop of functions", daemon=True).start()
    return _loops[0]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop forever, even if a function stops it, or leaves a task behind that ends with
    SystemExit."""
    while True:
        with suppress(BaseException):
            loop.run_forever()


# Limits on a function's time and memory, in the process that calls it.


class TimeLimitError(BaseException):
    """Raised inside a function that runs too long. Not an Exception, so that a broad except does not catch
    it."""


class ThreadLimit:
    """The time limit of a call in a thread, which receives no signals. Another thread watches and interrupts
    it.

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
        """Raises TimeLimitError in the call's thread, at its next Python instruction, unless the call has
        ended."""
        with self._lock:
            if not self._over:
                self.interrupted = True
                _raise_in(self._thread, TimeLimitError)

    def end(self) -> None:
        """Ends the limit, in the call's thread, where a pending error would otherwise hit the next call.

        Raises:
            TimeLimitError: it was raised meanwhile. Call this again. It is raised at most once.
        """
        with self._lock:
            self._over = True
        if self.interrupted:
            # Replaces a pending error. Cancelling that would leave CPython 3.11 checking for it: every
            # instruction of all threads would be slower, and a profiler or debugger would hang at the next
            # call.
            with suppress(TimeLimitError):
                _raise_in(self._thread, TimeLimitError)
                while True:
                    pass


#: The limits of running calls, by thread.
_limits: dict[int, ThreadLimit] = {}


def limit_of(thread: int) -> ThreadLimit | None:
    """Returns the limit of the call running in a thread, or None without a call or a limit."""
    return _limits.get(thread)


def seconds_left() -> float | None:
    """Returns how long this thread's call may still run, or None if it is unlimited, or a signal will
    interrupt it."""
    limit = limit_of(threading.get_ident())
    return None if limit is None else max(0.0, limit.until - time.monotonic())


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupts Python code in the block after ``seconds``: in a main thread with a signal, elsewhere if
    another thread watches :func:`limit_of`.

    Does not interrupt code that never returns to the interpreter. Use isolation for that.
    """
    if seconds is None:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        limit = _limits[threading.get_ident()] = ThreadLimit(seconds)
        try:
            yield
        finally:
            try:
                limit.end()
            except TimeLimitError:
                limit.end()
            del _limits[threading.get_ident()]
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise TimeLimitError

    previous = signal.signal(signal.SIGALRM, interrupt)
    # Repeated, so that a function that swallows the first error in a finally or a bare except gets another.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def memory_limit(size: int | None) -> Iterator[None]:
    """Limits the memory that the process may allocate in the block to ``size`` more bytes. Beyond it, Python
    raises MemoryError.

    The kernel counts a process's private writable memory.
    """
    if size is None:
        yield
        return
    used = _data_bytes()
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


def _data_bytes() -> int:
    """Returns the bytes that the kernel counts against RLIMIT_DATA."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raises an error in a thread, at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


# The GPUs of a worker. Its function sees only these, by ``CUDA_VISIBLE_DEVICES``.

_VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Locks of this host's GPUs, shared by all of the user's processes.
_LOCKS = Path(tempfile.gettempdir()) / f"volstream-gpus-{os.getuid()}"

_WAIT_SECONDS = 0.2

#: The GPUs that this process had last: libraries keep the GPU with which they started.
_last: list[str] = []


def devices() -> Sequence[str]:
    """Returns the GPUs of this host that its processes may use."""
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip()]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class Gpus:
    """The GPUs that each worker needs.

    Attributes:
        number: number of GPUs.
        devices: the host's GPUs. Empty if Spark assigns them.
    """

    number: int
    devices: tuple[str, ...] = ()

    @contextmanager
    def acquired(self) -> Iterator[None]:
        """Gives this process its GPUs for a block: assigned by Spark, or not used by other processes, once
        there are enough.

        Raises:
            RuntimeError: Spark assigned too few.
        """
        with ExitStack() as locks:
            chosen = self._free(locks) if self.devices else _assigned()
            while self.devices and len(chosen) < self.number:  # other jobs have them
                locks.close()
                time.sleep(_WAIT_SECONDS)
                chosen = self._free(locks)
            if len(chosen) < self.number:
                raise RuntimeError(f"A worker needs {self.number} GPUs, and Spark assigned {len(chosen)}.")
            _last[:] = chosen
            before = os.environ.get(_VISIBLE)
            os.environ[_VISIBLE] = ",".join(chosen)
            try:
                yield
            finally:
                if before is None:
                    del os.environ[_VISIBLE]
                else:
                    os.environ[_VISIBLE] = before

    def _free(self, locks: ExitStack) -> list[str]:
        own_folder(_LOCKS)
        chosen: list[str] = []
        for device in sorted(self.devices, key=lambda device: device not in _last):
            if len(chosen) == self.number:
                break
            descriptor = os.open(_LOCKS / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            locks.callback(os.close, descriptor)
            chosen.append(device)
        return chosen


def _assigned() -> list[str]:
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = {} if context is None else context.resources()
    return [*resources["gpu"].addresses] if "gpu" in resources else []

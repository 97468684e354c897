"""Concurrent calls of a function, in threads; and coroutine functions.

A coroutine function is called like any other: a thread of the window waits for its coroutine, which runs on the process's event
loop. So time limits, output and failures work as for a plain function.
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

#: How often limits are checked, in seconds.
_LOOK_SECONDS = 0.1

#: A call that has not ended this long after its interruption is given up.
_GRACE_SECONDS = 2.0

_Group: TypeAlias = Sequence[FileTask]


@dataclass(eq=False)
class _Call:
    group: _Group
    thread: int | None = None
    interrupted: float | None = None
    given_up: bool = False


class Calls:
    """The calls of a worker in flight. Used in one thread.

    A single call runs in that thread, where a signal interrupts it at its time limit; several run in threads, and are
    interrupted between two Python instructions. A call that does not end then, such as a request without a time-out, has
    failed, and its thread is given up.

    Args:
        call: returns the outcomes of a group; called from several threads if ``maximum`` is more than one.
        maximum: maximum number of calls at once.

    Attributes:
        free: whether another call may start.
        running: whether a call was started that :meth:`next` has not returned.
        gave_up: whether a call was given up, which still runs in this process.
    """

    def __init__(self, call: Callable[[_Group], list[FileOutcome]], maximum: int) -> None:
        self._call = call
        self._maximum = maximum
        self._running: deque[_Call] = deque()
        self._threads = 0
        self.gave_up = False
        self._looked = 0.0
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
            # A daemon thread: if given up, it must not keep the process from ending.
            threading.Thread(target=self._serve, name="function", daemon=True).start()
        self._requests.put(call)

    def next(self) -> list[FileOutcome]:
        """Waits until any call has ended, and returns its outcomes; none after :meth:`wake`."""
        if self._maximum == 1:
            return self._call(self._running.popleft().group)
        while True:
            if time.monotonic() >= self._looked + _LOOK_SECONDS and (given_up := self._look()) is not None:
                return given_up
            try:
                done = self._done.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if done is None:
                return []
            call, result = done
            if call.given_up:
                continue
            self._running.remove(call)
            if isinstance(result, BaseException):
                raise result
            return result

    def wake(self) -> None:
        """Makes :meth:`next` return. May be called from another thread."""
        self._done.put(None)

    def close(self) -> None:
        """Ends the idle threads, without waiting for the others."""
        self._requests.put(None)

    def _serve(self) -> None:
        while (call := self._requests.get()) is not None:
            call.thread = threading.get_ident()
            try:
                result: list[FileOutcome] | BaseException = self._call(call.group)
            except BaseException as error:  # noqa: BLE001  # raised by the waiting thread
                result = error
            self._done.put((call, result))
            if call.given_up:
                return  # another thread has taken its place
        self._requests.put(None)  # for the next thread

    def _look(self) -> list[FileOutcome] | None:
        """Interrupts calls that have reached their time limit; returns the outcomes of one that does not end."""
        self._looked = now = time.monotonic()
        for call in self._running:
            limit = None if call.thread is None else limit_of(call.thread)
            if limit is None or now < limit.until:
                call.interrupted = None  # a group's files are repeated one by one, each with its own limit
            elif call.interrupted is None:
                call.interrupted = now
                limit.interrupt()
            elif now > call.interrupted + _GRACE_SECONDS:
                call.given_up = self.gave_up = True
                self._running.remove(call)
                self._threads -= 1
                message = f"The function ran longer than {format_duration(limit.seconds)}, and could not be interrupted."
                return [FileOutcome(task, kind=FailureKind.TIMED_OUT, message=message) for task in call.group]
        return None


# The pace of a job's calls, which its workers share without communicating. Runs on executors.
#
# Each of n workers makes every n-th call of the job: its calls are n intervals apart, and begin one interval
# after the previous worker's. So calls stay within the rate, whichever worker falls behind; a turn that a
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
        """Waits for the next turn. A missed turn is not made up for."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._seconds
        time.sleep(turn - now)


def settled(returned: Any, taken: Callable[[Any], Any] = lambda value: value) -> Any:
    """Returns a function's result, after awaiting it if it is awaitable; asynchronously yielded values as an iterator.

    Args:
        taken: converts an awaited value before other coroutines continue.

    Raises:
        TimeLimitError: this thread's limit was reached.
    """
    if inspect.isawaitable(returned):
        return _result(returned, taken)
    return _items(returned, taken) if isinstance(returned, AsyncIterator) else returned


def _items(items: AsyncIterator[Any], taken: Callable[[Any], Any]) -> Iterator[Any]:
    while True:
        try:
            yield _result(anext(items), taken)
        except StopAsyncIteration:
            return


async def _awaiting(awaitable: Any, taken: Callable[[Any], Any]) -> tuple[Any, BaseException | None]:
    try:
        return taken(await awaitable), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # a future would replace some errors by others, without their traceback
        return None, error


def _result(awaitable: Any, taken: Callable[[Any], Any]) -> Any:
    future = asyncio.run_coroutine_threadsafe(_awaiting(awaitable, taken), _loop())
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
    """True if coroutines can no longer run in this process, because one of them blocks the event loop.

    The process is then no longer fit for calls: what functions have opened on the loop cannot move to another one.
    """
    if not _loops:
        return False
    answered = threading.Event()
    _loops[0].call_soon_threadsafe(answered.set)
    return not answered.wait(_GRACE_SECONDS)


_loops: list[asyncio.AbstractEventLoop] = []
_starting = threading.Lock()


def _loop() -> asyncio.AbstractEventLoop:
    """Returns this process's event loop for functions, which runs in a thread: whatever a class opened on it during set-up
    stays valid from batch to batch."""
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_run, args=_loops, name="event loop of functions", daemon=True).start()
    return _loops[0]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop forever, although a function may stop it, or leave a task behind that ends with SystemExit."""
    while True:
        with suppress(BaseException):
            loop.run_forever()


# Limits of a function's time and memory, in the process that calls it.


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
    """Makes a thread raise an error, at its next Python instruction."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


# The GPUs of a worker: its function sees these and no others, by ``CUDA_VISIBLE_DEVICES``.

_VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Locks of this host's GPUs, shared by all of the user's processes.
_LOCKS = Path(tempfile.gettempdir()) / f"volstream-gpus-{os.getuid()}"

_WAIT_SECONDS = 0.2

#: What this process had last: libraries keep the GPU with which they began.
_last: list[str] = []


def devices() -> Sequence[str]:
    """Returns the GPUs of this host that its processes may use."""
    visible = os.environ.get(_VISIBLE)
    if visible is not None:
        return [device.strip() for device in visible.split(",") if device.strip()]
    return sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))


@dataclass(frozen=True)
class Gpus:
    """What each worker needs.

    Attributes:
        number: of GPUs.
        devices: the host's; empty: Spark assigns them.
    """

    number: int
    devices: tuple[str, ...] = ()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Gives this process its GPUs for a block: those that Spark assigned, or ones that no other process has, once there are
        some.

        Raises:
            RuntimeError: Spark assigned too few.
        """
        with ExitStack() as held:
            mine = self._free(held) if self.devices else _assigned()
            while self.devices and len(mine) < self.number:  # another job's
                held.close()
                time.sleep(_WAIT_SECONDS)
                mine = self._free(held)
            if len(mine) < self.number:
                raise RuntimeError(f"A worker needs {self.number} GPUs, and Spark assigned {len(mine)}.")
            _last[:] = mine
            before = os.environ.get(_VISIBLE)
            os.environ[_VISIBLE] = ",".join(mine)
            try:
                yield
            finally:
                if before is None:
                    del os.environ[_VISIBLE]
                else:
                    os.environ[_VISIBLE] = before

    def _free(self, held: ExitStack) -> list[str]:
        own_folder(_LOCKS)
        mine: list[str] = []
        for device in sorted(self.devices, key=lambda device: device not in _last):
            if len(mine) == self.number:
                break
            descriptor = os.open(_LOCKS / device.replace("/", "_"), os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            held.callback(os.close, descriptor)
            mine.append(device)
        return mine


def _assigned() -> list[str]:
    from pyspark import TaskContext

    context = TaskContext.get()
    resources = {} if context is None else context.resources()
    return [*resources["gpu"].addresses] if "gpu" in resources else []

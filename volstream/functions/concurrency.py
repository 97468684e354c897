"""Concurrent calls of a function, in threads; and coroutine functions.

A coroutine function is called like any other: a thread of the window waits for its coroutine, which runs on the process's event
loop. So time limits, output and failures work as for a plain function.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from volstream.base.model.units import format_duration
from volstream.base.model.work import FailureKind
from volstream.functions.limits import TimeLimitError, limit_of, seconds_left
from volstream.functions.outcomes import FileOutcome, FileTask

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

"""A stop signal that is only ever set, and the signal handling that sets it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop(threading.Event):
    """A flag that is only ever set. Every wait of a long-running part is ``stop.wait(seconds)``."""

    def __bool__(self) -> bool:
        return self.is_set()


@contextmanager
def stop_on_signals(
    stop: Stop, *, first: Callable[[], None] = lambda: None, second: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """While the block runs, the first SIGTERM or SIGINT calls ``first`` and sets ``stop``; the second calls ``second`` and ends
    the process.

    Must be entered in the main thread. The exit status after the second signal is 130, as for an interrupted command.

    A thread handles the signals, because Python runs handlers only in the main thread: a signal that arrives just as that
    thread starts to wait would be handled after the wait, and ``stop.set()`` in a handler could wait for a lock that the
    interrupted thread holds.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    heard, wake = os.pipe()
    os.set_blocking(wake, False)

    def serve() -> None:
        while received := os.read(heard, 1):
            if received[0] not in numbers:
                continue
            if stop:
                second()
                os._exit(130)
            first()
            stop.set()

    thread = threading.Thread(target=serve, name="signals", daemon=True)
    thread.start()
    earlier = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, _nothing) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(earlier)
        os.close(wake)
        thread.join()
        os.close(heard)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """Does nothing; without a handler the signal would not be written to the pipe."""

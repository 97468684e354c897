"""One stop signal that is only ever set, and what sets it when the operating system asks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """A flag that is only ever set. Every wait of a long-running part is ``stop.wait(seconds)``."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Asks everything that watches to end. Idempotent; safe in a signal handler."""
        self._event.set()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits until the flag is set or the time is over; true where it is set."""
        return self._event.wait(seconds)


@contextmanager
def stop_on_signals(stop: Stop, *, second: Callable[[], None] | None = None) -> Iterator[None]:
    """While the block runs, the first SIGTERM or SIGINT sets ``stop``; the second calls ``second`` and ends the process.

    To be entered by the main thread. The exit status of the second signal is 130, as for an interrupted command.
    """

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop:
            if second is not None:
                second()
            os._exit(130)
        stop.set()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

"""Waiting for a condition with a deadline, instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: Seconds between two checks.
_POLL_SECONDS = 0.01


def eventually(check: Callable[[], object], timeout: float = 10) -> None:
    """Returns as soon as ``check()`` is true; fails after ``timeout`` seconds."""
    never = threading.Event()
    deadline = time.monotonic() + timeout
    while not check():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s")
        never.wait(_POLL_SECONDS)

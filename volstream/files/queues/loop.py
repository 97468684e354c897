"""The event loop in which queues wait: one thread for all of them, started when it is needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache
from typing import Any

_lock = threading.Lock()  # threads that call at once would each start a loop


def begin(task: Coroutine[Any, Any, None]) -> Future[None]:
    """Starts a coroutine in the loop. It must handle its own errors."""
    return asyncio.run_coroutine_threadsafe(task, _loop())


def later(seconds: float, call: Callable[[], None]) -> None:
    """Calls a function in the loop after a delay. The function must not block."""
    loop = _loop()
    loop.call_soon_threadsafe(loop.call_later, seconds, call)


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        return _started()


@cache
def _started() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="queues", daemon=True).start()
    return loop

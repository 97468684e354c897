"""Keeps the metastore of the setting ``metastore`` in line with the home's tables."""

from __future__ import annotations

import time
from collections.abc import Callable

from volstream.api.statements.registration import register
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.home import Home

_log = get("metastore")

#: Interval of looks for tables that were made or dropped, and of looks at all entries.
_LOOK_SECONDS, _CHECK_SECONDS = 10.0, 3600.0


class Registrar:
    """Registers tables while a daemon runs, in a thread of its own: a metastore that does not answer delays nothing else.

    Args:
        is_up: returns whether the engine is up.
    """

    def __init__(self, home: Home, is_up: Callable[[], bool], stop: Stop) -> None:
        self._home = home
        self._is_up = is_up
        self._stop = stop
        self._next_check = time.monotonic()

    def run(self) -> None:
        """Returns when stopped."""
        trouble = FailureTracker("registration", _log, Backoff(first_seconds=_LOOK_SECONDS))
        run_loop(self._tick, self._stop, trouble)

    def _tick(self) -> None:
        if self._is_up():
            check = time.monotonic() >= self._next_check
            if check:
                self._next_check = time.monotonic() + _CHECK_SECONDS
            register(self._home, check=check)
        self._stop.wait(_LOOK_SECONDS)

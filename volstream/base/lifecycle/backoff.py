"""Delays after failures: capped, jittered, exponential. A value; nothing here waits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

#: Enough doublings to pass any sensible cap from any sensible first delay; beyond it floats overflow.
_MAX_DOUBLINGS = 60


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from ``first_seconds`` up to ``cap_seconds``.

    Attributes:
        first_seconds: the delay after the first failure, before jitter.
        cap_seconds: no delay is longer.
    """

    first_seconds: float = 0.5
    cap_seconds: float = 60.0

    def delay(self, failures: int, uniform: Callable[[], float] = random.random) -> float:
        """Returns the seconds to wait after ``failures`` consecutive failures (1 or more).

        Between half and all of the doubled delay, so that processes that failed together do not retry together.

        Args:
            failures: consecutive failures, including the last.
            uniform: returns a number in [0, 1).
        """
        doubled = self.first_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        return min(self.cap_seconds, doubled) * (0.5 + 0.5 * uniform())

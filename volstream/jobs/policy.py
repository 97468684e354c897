"""Decides whether and when a failed file is retried. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from volstream.lifecycle.backoff import Backoff
from volstream.model.work import LASTING, OVERTAKEN, FailureKind


@dataclass(frozen=True)
class RetryPolicy:
    """Retries after failures.

    Attributes:
        retries: maximum number of retries after the first attempt.
        backoff: the delays before them.
    """

    retries: int
    backoff: Backoff

    def next_try(self, kind: FailureKind, attempts: int, now: datetime, randomness: random.Random) -> datetime | None:
        """Returns when a file that failed ``attempts`` times is due again; None: not automatically."""
        if kind in LASTING or (attempts > self.retries and kind not in OVERTAKEN):
            return None
        return now + timedelta(seconds=self.backoff.delay(attempts, randomness.random))

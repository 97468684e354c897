"""Decides whether and when a failed file is retried. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from volstream.base.lifecycle.backoff import Backoff
from volstream.base.model.work import PERMANENT, SUPERSEDED, Failure, FailureKind


@dataclass(frozen=True)
class RetryPolicy:
    """Retries after failures.

    Attributes:
        retries: maximum number of retries after the first attempt.
        backoff: the delays before the retries.
        later_max_seconds: how long a function may ask to be called later for a file.
    """

    retries: int
    backoff: Backoff
    later_max_seconds: float

    def waiting_since(self, kind: FailureKind, before: Failure | None, now: datetime) -> datetime | None:
        """Returns since when the function has asked to be called later; None: it did not ask, or has asked for too long.

        Args:
            before: the earlier failure of the same file version.
        """
        since = (None if before is None else before.waiting_since) or now
        too_long = (now - since).total_seconds() > self.later_max_seconds
        return None if kind is not FailureKind.RETRY_LATER or too_long else since

    def later(self, after: float, now: datetime) -> datetime:
        """Returns when to call a function again that asked to be called ``after`` seconds later."""
        return now + timedelta(seconds=min(after, self.later_max_seconds))

    def next_try(self, kind: FailureKind, attempts: int, now: datetime, randomness: random.Random) -> datetime | None:
        """Returns when a file that failed ``attempts`` times is due again; None: no automatic retry."""
        if kind in PERMANENT or (attempts > self.retries and kind not in SUPERSEDED):
            return None
        return now + timedelta(seconds=self.backoff.delay(attempts, randomness.random))

"""What follows from a failure: whether and when a file is tried again. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta

from volstream.model.work import LASTING, OVERTAKEN, FailureKind


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with jitter.

    Attributes:
        retries: tries after the first.
        first_seconds: delay before the first of them; each next one doubles.
        most_seconds: longest delay.
    """

    retries: int
    first_seconds: float
    most_seconds: float

    def next_try(self, kind: FailureKind, attempts: int, now: datetime, randomness: random.Random) -> datetime | None:
        """When a file that failed ``attempts`` times is due again; None: not by itself.

        The delay is between half of its nominal length and all of it, so that files that failed together do not return
        together.
        """
        if kind in LASTING or (attempts > self.retries and kind not in OVERTAKEN):
            return None
        nominal = min(self.most_seconds, self.first_seconds * 2.0 ** min(attempts - 1, 40))
        return now + timedelta(seconds=nominal * randomness.uniform(0.5, 1.0))

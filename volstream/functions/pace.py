"""The pace of a job's calls, which its workers share without communicating. Runs on executors.

Each of n workers makes every n-th call of the job: its calls are n intervals apart, and begin one interval after the previous
worker's. So calls stay within the rate, whichever worker falls behind; a turn that a worker does not use is lost.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """The intervals between a job's calls.

    Attributes:
        seconds: between two calls.
        wait: seconds before the first call, because of earlier calls.
        workers: number of workers that share the calls.
    """

    seconds: float
    wait: float = 0.0
    workers: int = 1

    def of_worker(self) -> CallSchedule:
        """Returns the turns of this process's worker, which is a Spark task, or the only worker."""
        from pyspark import TaskContext

        task = TaskContext.get()
        number = 0 if task is None else task.partitionId() % self.workers
        return CallSchedule(self.seconds * self.workers, self.wait + number * self.seconds)


class CallSchedule:
    """The turns of a worker's calls. Thread-safe.

    Args:
        seconds: between two turns.
        wait: seconds before the first turn.
    """

    def __init__(self, seconds: float, wait: float = 0.0) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + wait
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Waits for the next turn. A missed turn is not made up for."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._seconds
        time.sleep(turn - now)

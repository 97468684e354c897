"""The pace of a job's calls, which its workers share without talking to each other. Runs on executors.

Each worker makes every n-th call of the job: its calls are n times as far apart, and begin one call after those of the worker
before it. So a second never has more calls than it may, whatever falls behind; what one worker does not use is lost.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """How far a job's calls are apart.

    Attributes:
        seconds: between two calls.
        wait: seconds before the first one, because of calls that were made already.
        workers: number of workers that share the calls.
    """

    seconds: float
    wait: float = 0.0
    workers: int = 1

    def of_worker(self) -> Turns:
        """Returns the turns of this process's worker, which is a task of Spark's, or the only one."""
        from pyspark import TaskContext

        task = TaskContext.get()
        number = 0 if task is None else task.partitionId() % self.workers
        return Turns(self.seconds * self.workers, self.wait + number * self.seconds)


class Turns:
    """The turns of a worker's calls. Thread-safe.

    Args:
        seconds: between two of them.
        wait: seconds before the first one.
    """

    def __init__(self, seconds: float, wait: float = 0.0) -> None:
        self._seconds = seconds
        self._next = time.monotonic() + wait
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Waits for the next turn. What came too late for one does not make up for it."""
        with self._lock:
            now = time.monotonic()
            turn = max(now, self._next)
            self._next = turn + self._seconds
        time.sleep(turn - now)

"""The process from which Spark's Python workers are forked: PySpark's daemon, with what the workers import already imported.

Spark ends workers after a minute without work. A new process would spend a second on imports, which a fork inherits. Spark
starts one for each session, and keeps it when the session has ended; so it ends itself, and Spark starts another one if needed.
"""

from __future__ import annotations

import gc
import os
import select
import time
from typing import Any

import pandas as pd  # noqa: F401  # PyArrow imports it to make an array
import pyspark.daemon
import pyspark.sql.streaming.stateful_processor_util  # imported by each worker, like the next one
import pyspark.worker

import volstream.jobs.batches.staging  # noqa: F401

#: The process ends after so long without workers.
_IDLE_SECONDS = 600.0


class _EndingPoll:
    """The poll by which the daemon waits for requests; ends the process when there were no workers for a while.

    Nothing is lost: it ends only between requests, and Spark repeats one that arrives meanwhile with a new process.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister
        self._used = time.monotonic()

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        ready = self._poll.poll(milliseconds)
        if ready or _has_children():
            self._used = time.monotonic()
        elif time.monotonic() - self._used > _IDLE_SECONDS:
            raise SystemExit
        return ready


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


class _Select:
    """The module ``select`` as the daemon sees it."""

    poll = _EndingPoll

    def __getattr__(self, name: str) -> Any:
        return getattr(select, name)


def serve() -> None:
    """Forks workers as Spark asks for them; does not return."""
    pyspark.daemon.select = _Select()  # type: ignore[attr-defined, assignment]
    # For the socket on which Spark asks: in the scratch folder, whose own path may be too long for one.
    os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"] = f"/proc/{os.getppid()}/cwd"
    gc.freeze()  # keeps the collector from touching, and so copying, these pages
    pyspark.daemon.manager()


if __name__ == "__main__":
    serve()

"""The process from which Spark's Python workers are forked: PySpark's daemon with the workers' imports
loaded.

Spark ends workers after a minute without work. A new process would spend a second on imports, which a fork
inherits. Spark starts one daemon for each session and keeps it after the session. So the daemon ends when
idle, and Spark starts another one when needed.
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

#: The process ends after this time without workers.
_IDLE_SECONDS = 600.0


class _EndingPoll:
    """The poll with which the daemon waits for requests. Ends the process after a while without workers.

    Nothing is lost: it ends only between requests, and Spark repeats a request that arrives meanwhile with a
    new process.
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
    """The module ``select`` for the daemon."""

    poll = _EndingPoll

    def __getattr__(self, name: str) -> Any:
        return getattr(select, name)


def serve() -> None:
    """Forks workers on Spark's requests. Does not return."""
    pyspark.daemon.select = _Select()  # type: ignore[attr-defined, assignment]
    # Spark's request socket is in the scratch folder, whose full path may be too long for a socket.
    os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"] = f"/proc/{os.getppid()}/cwd"
    gc.freeze()  # keeps the collector from touching, and so copying, these pages
    pyspark.daemon.manager()


if __name__ == "__main__":
    serve()

"""The services shared by the runs of a home's file jobs: what the home has, planner and result tables, sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from volstream.base.definitions import FileJob, Job, Stream
from volstream.base.model.work import Plan
from volstream.errors import FencedError
from volstream.jobs.batches import handshake
from volstream.jobs.batches.handshake import Places
from volstream.jobs.batches.results import ResultTables
from volstream.jobs.plans import plan
from volstream.jobs.plans.planner import Planner
from volstream.spark.errors import as_sql_errors
from volstream.spark.tasks import given_up
from volstream.tables.delta import places
from volstream.tables.delta.warehouse import options_of

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.home import Home


class JobServices:
    """A home's parts as runs use them. Thread-safe."""

    def __init__(self, home: Home) -> None:
        self.catalog = home.catalog
        self.gateway = home.gateway
        self.settings = home.settings
        self.warehouse = home.warehouse
        self.staging = f"{home.warehouse}/{places.STAGING}"
        self.delta = home.delta
        self.reader = home.reader
        self.consumer = home.consumer
        self.planner = Planner(home, self.slots)
        self.results = ResultTables(home)
        self.residents = home.residents
        self._shaking = threading.Lock()
        self._shaken = False

    @contextmanager
    def session(self, shared: SparkSession | None = None) -> Iterator[SparkSession]:
        """Yields this thread's session, for reading and staging, with Spark's errors mapped. On a Spark that others started, work
        does not wait for executors for ever.

        All runs of a thread share it: the first run of a session waits for Python to start.

        Args:
            shared: another thread's session, to be yielded instead.
        """
        with as_sql_errors():
            session = self.gateway.session() if shared is None else shared
            if not self.settings.spark_remote:
                yield session
                return
            with given_up(session, self.settings.executor_wait_seconds):
                self._shake_hands(session)
                yield session

    def slots(self) -> int:
        """Returns the task slots of the engine."""
        return (self.gateway.server_slots or 1) if self.settings.spark_remote else self.settings.slots

    def _shake_hands(self, session: SparkSession) -> None:
        """Checks once whether a Spark that others started can do jobs' work, whatever becomes of volumes. Raises EngineError."""
        with self._shaking:
            if not self._shaken:
                handshake.check(session, Places(self.warehouse, options_of(self.warehouse)))
                self._shaken = True

    def stream(self, job: Job) -> Stream:
        """Returns the stream of a job. Raises FencedError if the job was dropped."""
        stream = self.catalog.streams.by_id(job.stream_id)
        if stream is None:
            raise FencedError(f"The job {job.name} was dropped while it ran.")
        return stream

    def has_files(self, job: FileJob, open_plan: Plan) -> bool:
        """Returns whether a plan's files are available; those of a range of versions are re-created if missing."""
        return plan.exists(open_plan.location) or self.planner.write_again(self.session, job, open_plan, self.stream(job))

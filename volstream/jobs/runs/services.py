"""The services that the runs of a home's file jobs share: the home's parts, planner, result tables and
sessions."""

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
    """The parts of a home that runs use. Thread-safe."""

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
        self._handshake_lock = threading.Lock()
        self._handshake_done = False

    @contextmanager
    def session(self, shared: SparkSession | None = None) -> Iterator[SparkSession]:
        """Yields this thread's session for reading and staging, with Spark's errors mapped.

        All runs of a thread share it, because a session's first run waits for Python to start. On an external
        Spark, the wait for executors is limited.

        Args:
            shared: another thread's session, which is yielded instead.
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
        """Checks once that an external Spark can run jobs, without regard to volumes. Raises EngineError."""
        with self._handshake_lock:
            if not self._handshake_done:
                handshake.check(session, Places(self.warehouse, options_of(self.warehouse)))
                self._handshake_done = True

    def stream(self, job: Job) -> Stream:
        """Returns the stream of a job. Raises FencedError if the job was dropped."""
        stream = self.catalog.streams.by_id(job.stream_id)
        if stream is None:
            raise FencedError(f"The job {job.name} was dropped while it ran.")
        return stream

    def has_files(self, job: FileJob, open_plan: Plan) -> bool:
        """Returns whether a plan's files are available. Re-creates missing files of a range of versions."""
        return plan.exists(open_plan.location) or self.planner.write_again(self.session, job, open_plan, self.stream(job))

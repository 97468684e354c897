"""What the runs of a home's file jobs share: catalog, settings, and the readers and writers made of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.delta import folders
from volstream.delta.writer import DeltaWriter
from volstream.jobs import plan
from volstream.jobs.planner import Planner
from volstream.jobs.results import ResultTables
from volstream.model.objects import FileJob, Job, Stream
from volstream.model.work import Plan
from volstream.spark.errors import as_sql_errors
from volstream.streams.consume import Consumer
from volstream.streams.read import StreamReader

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.spark.session import SparkGateway


class Parts:
    """Catalog, settings and what reads and writes with them. Safe for threads."""

    def __init__(self, catalog: Catalog, gateway: SparkGateway, settings: Settings) -> None:
        self.catalog = catalog
        self.gateway = gateway
        self.settings = settings
        self.warehouse = settings.warehouse_path
        self.staging = f"{self.warehouse}/_staging"
        self.delta = DeltaWriter(gateway)
        self.reader = StreamReader(catalog, self.warehouse)
        self.planner = Planner(catalog, self.reader, settings)
        self.consumer = Consumer(catalog, self.delta)
        self.results = ResultTables(catalog, self.delta, self.warehouse)

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """This thread's session, for reading and staging, with Spark's errors mapped.

        One for all runs of a thread: Spark keeps Python workers, which hold the imported function, by session.
        """
        with as_sql_errors():
            yield self.gateway.session()

    def stream(self, job: Job) -> Stream:
        """The stream of a job."""
        stream = self.catalog.streams.by_id(job.stream_id)
        assert stream is not None, "a job's stream cannot be dropped before the job"
        return stream

    def table_of(self, job: Job) -> str:
        """The location of a job's result table."""
        return folders.table_location(self.warehouse, job.into)

    def has_files(self, job: FileJob, made: Plan) -> bool:
        """Returns whether the files of a plan are known; those of a range of versions are written again if need be."""
        return plan.exists(made.location) or self.planner.write_again(self.session, job, made, self.stream(job))

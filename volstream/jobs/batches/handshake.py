"""Checks that an external Spark can do volstream's work: its settings, and a small task in each of its
slots."""

from __future__ import annotations

import json
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from volstream.base.model.paths import local_path, scheme_of
from volstream.errors import EngineError
from volstream.jobs.batches import probe
from volstream.spark.errors import condition_of
from volstream.spark.frames import is_guarding
from volstream.spark.jvm.install import EXTENSION_CLASS, LOG_STORE_CLASS, LOG_STORE_SCHEMES
from volstream.tables.delta.warehouse import options_of

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from volstream.catalog import Catalog

#: Required settings that only the server can set, with their values. A list must contain the value.
_REQUIRED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}

#: Spark starts the same program on all workers, and looks up its name only on the server.
_CHOOSE = "start the server with PYSPARK_PYTHON set to a Python that all workers have"

_ANSWER = pa.schema([("answer", pa.string())])


@dataclass(frozen=True)
class Places:
    """Locations that tasks must reach.

    Attributes:
        warehouse: where they write.
        options: options of the warehouse's store (``delta.warehouse``).
        folders: local folders of volumes, which they read.
        schemes: schemes of all volumes' locations.
    """

    warehouse: str
    options: Mapping[str, str]
    folders: Collection[str] = ()
    schemes: Collection[str] = ()


def places_of(catalog: Catalog, warehouse: str) -> Places:
    """Returns the locations that the tasks of jobs must reach."""
    locations = [volume.location for volume in catalog.volumes.list()]
    folders = [local_path(location) for location in locations if scheme_of(location) == "file"]
    return Places(warehouse, options_of(warehouse), folders, sorted({*map(scheme_of, locations)}))


@dataclass(frozen=True)
class Answer:
    """The result of the check in one slot.

    Attributes:
        problems: one sentence each.
    """

    host: str
    user: str
    python: str
    problems: Sequence[str]


def check(session: SparkSession, places: Places) -> None:
    """Runs a small task in each slot. Raises EngineError with the first problem."""
    problems = [*setting_problems(session), *(problem for answer in ask(session, places) for problem in answer.problems)]
    if problems:
        raise EngineError(f"The Spark server cannot do this work: {problems[0]}", "Run: volstream doctor --cluster.")


def setting_problems(session: SparkSession) -> Sequence[str]:
    """Returns the problems with the server's version and settings, a sentence each."""
    import pyspark

    problems = []
    if session.version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        problems.append(f"it is Spark {session.version}, and volstream needs {pyspark.__version__}.")
    for key, value in _REQUIRED.items():
        present = str(session.conf.get(key, "") or "")
        if value not in present.split(","):
            problems.append(f"{key} is {present or 'not set'}; it must be {value}.")
    return problems


def missing_parts(session: SparkSession, warehouse: str) -> Iterator[str]:
    """Yields missing optional parts of the server, a sentence each: volstream's log store and Spark
    extension."""
    scheme = scheme_of(warehouse)
    key = f"spark.delta.logStore.{scheme}.impl"
    present = str(session.conf.get(key, "") or "")
    if scheme in LOG_STORE_SCHEMES and present != LOG_STORE_CLASS:
        yield f"{key} is {present or 'not set'}; without {LOG_STORE_CLASS}, Spark's commits may replace those of other writers."
    if not is_guarding(session):
        yield (
            f"spark.sql.extensions lacks {EXTENSION_CLASS}: SQL functions can read files and call Java, rows that a session "
            "caches stay as they are when their table changes, and the console's SQL page does not work."
        )


def ask(session: SparkSession, places: Places) -> Sequence[Answer]:
    """Returns the results of all slots, or a single one if no task can run. Raises PySpark's errors if the
    server is lost."""
    from pyspark.errors import PySparkException

    slots = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    arguments = (places.warehouse, dict(places.options), list(places.folders), list(places.schemes))

    def check_slot(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pa.record_batch([pa.array([probe.check(*arguments)])], schema=_ANSWER)

    try:
        rows = session.range(0, slots, 1, slots).mapInArrow(check_slot, "answer STRING").collect()
    except PySparkException as error:
        problem = _worker_problem(error)
        if problem is None:
            raise
        return [Answer("", "", "", [problem])]
    return [Answer(**json.loads(row.answer)) for row in rows]


def _worker_problem(error: Exception) -> str | None:
    """Returns why workers cannot run volstream's Python code, or None for another error."""
    text = str(error)
    if condition_of(error) == "PYTHON_VERSION_MISMATCH" or "PYTHON_VERSION_MISMATCH" in text:
        ours = ".".join(platform.python_version_tuple()[:2])
        return f"its workers have another version of Python than this process, {ours}: {_CHOOSE}."
    missing = text.partition("ModuleNotFoundError: No module named '")[2].partition("'")[0]
    if missing:
        return f"the Python of its workers lacks {missing}: install pandas and pyarrow there, or {_CHOOSE}."
    return None

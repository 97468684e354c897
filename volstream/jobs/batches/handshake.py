"""Asks a Spark that others started whether it can do volstream's work: its settings, and one small task in each of its slots."""

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

#: Settings that only a server can have, and the value of each; a list must contain it.
_REQUIRED = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}

#: Spark starts the same program on all workers, and asks only the server for it.
_CHOOSE = "start the server with PYSPARK_PYTHON set to a Python that all workers have"

_ANSWER = pa.schema([("answer", pa.string())])


@dataclass(frozen=True)
class Places:
    """What tasks must reach.

    Attributes:
        warehouse: where they write.
        options: of its store (``delta.warehouse``).
        folders: of volumes, which they read.
        schemes: of volumes' other locations.
    """

    warehouse: str
    options: Mapping[str, str]
    folders: Collection[str] = ()
    schemes: Collection[str] = ()


def places_of(catalog: Catalog, warehouse: str) -> Places:
    """Returns what the tasks of jobs must reach."""
    locations = [volume.location for volume in catalog.volumes.list()]
    folders = [local_path(location) for location in locations if scheme_of(location) == "file"]
    return Places(warehouse, options_of(warehouse), folders, sorted({*map(scheme_of, locations)}))


@dataclass(frozen=True)
class Answer:
    """What one slot says.

    Attributes:
        problems: one sentence each.
    """

    host: str
    user: str
    python: str
    problems: Sequence[str]


def check(session: SparkSession, places: Places) -> None:
    """Raises EngineError with the first thing that is wrong. Runs one small task in each slot."""
    wrong = [*settings_of(session), *(said for answer in ask(session, places) for said in answer.problems)]
    if wrong:
        raise EngineError(f"The Spark server cannot do this work: {wrong[0]}", "Run: volstream doctor --cluster.")


def settings_of(session: SparkSession) -> Sequence[str]:
    """Returns what is wrong with the server's version and settings, a sentence each."""
    import pyspark

    wrong = []
    if session.version.split(".")[:2] != pyspark.__version__.split(".")[:2]:
        wrong.append(f"it is Spark {session.version}, and volstream needs {pyspark.__version__}.")
    for key, value in _REQUIRED.items():
        present = str(session.conf.get(key, "") or "")
        if value not in present.split(","):
            wrong.append(f"{key} is {present or 'not set'}; it must be {value}.")
    return wrong


def missing_from(session: SparkSession, warehouse: str) -> Iterator[str]:
    """Yields what the server does without, a sentence each: volstream's log store and its extension of Spark."""
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
    """Returns the answers of all slots; a single one if no task can run. Raises PySpark's exceptions for a lost server."""
    from pyspark.errors import PySparkException

    slots = int(session.conf.get("spark.sql.shuffle.partitions") or 1)
    asked = (places.warehouse, dict(places.options), list(places.folders), list(places.schemes))

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pa.record_batch([pa.array([probe.look(*asked)])], schema=_ANSWER)

    try:
        rows = session.range(0, slots, 1, slots).mapInArrow(look, "answer STRING").collect()
    except PySparkException as error:
        said = _why_none(error)
        if said is None:
            raise
        return [Answer("", "", "", [said])]
    return [Answer(**json.loads(row.answer)) for row in rows]


def _why_none(error: Exception) -> str | None:
    """Returns why workers cannot run Python of ours; None: it is something else."""
    text = str(error)
    if condition_of(error) == "PYTHON_VERSION_MISMATCH" or "PYTHON_VERSION_MISMATCH" in text:
        ours = ".".join(platform.python_version_tuple()[:2])
        return f"its workers have another version of Python than this process, {ours}: {_CHOOSE}."
    missing = text.partition("ModuleNotFoundError: No module named '")[2].partition("'")[0]
    if missing:
        return f"the Python of its workers lacks {missing}: install pandas and pyarrow there, or {_CHOOSE}."
    return None

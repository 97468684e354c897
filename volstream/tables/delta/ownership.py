"""The job that maintains a table. The rows reflect its files or query, so other writers need permission."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from volstream.base.definitions import FileJob, Job
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.errors import InvalidStateError
from volstream.tables.delta.opened import properties_at

# The transaction id that makes a consumption's commit happen at most once, and the commit's metadata.

#: Table property: the id of the only job that maintains the table.
OWNER = "volstream.job"


@dataclass(frozen=True)
class Marker:
    """The marker of a commit: Delta accepts one per (table, ``app_id``, ``version``).

    Attributes:
        metadata: identifies the commit's origin. Stored as JSON in its user metadata.
    """

    app_id: str
    version: int
    metadata: Mapping[str, Any]

    @property
    def user_metadata(self) -> str:
        """Returns the metadata as stored in the log."""
        return json.dumps(self.metadata, sort_keys=True)

    def settings(self) -> dict[str, str]:
        """Returns the session settings that make Spark's next DML statement carry the marker."""
        return {
            "spark.databricks.delta.write.txnAppId": self.app_id,
            "spark.databricks.delta.write.txnVersion": str(self.version),
            "spark.databricks.delta.commitInfo.userMetadata": self.user_metadata,
        }


#: Table property. The value ``any`` lets statements and real-time streams write to a job's table, too.
WRITERS = "volstream.writers"

#: Table property: ``on`` or ``off``. Without it, upkeep (:mod:`volstream.tables.delta.upkeep`) covers the
#: tables of jobs.
UPKEEP = "volstream.upkeep"

#: Columns of a file's rows that differ each time a job writes them, regardless of the function's result.
INCIDENTAL = frozenset({"_file_version", "_refresh_id", "_batch_id", "_processed_at"})


def owner_of(catalog: Catalog, location: str) -> Job | None:
    """Returns the job that maintains the table at a location, or None without one. Raises DependencyError."""
    return _owner(catalog, properties_at(location).get(OWNER))


def check_writable(catalog: Catalog, name: Name, location: str, warehouse: str) -> None:
    """Checks that writers other than a table's job may write rows to it. The job may belong to another home.

    If they may, the job from now on removes the rows of each file's path before it adds new ones, even where
    it has added none itself.

    Raises:
        InvalidStateError: only the job may write to the table.
        DependencyError: the table cannot be read.
    """
    properties = properties_at(location)
    job = _owner(catalog, properties.get(OWNER))
    if is_open(properties):
        if isinstance(job, FileJob) and job.clean:
            catalog.jobs.change(job, clean=False)
        return
    is_elsewhere = OWNER in properties and not location.startswith(f"{warehouse}/")
    if job is not None or is_elsewhere:
        writer = f"job {job.name}" if job is not None else "a job of another home"
        raise InvalidStateError(
            f"Only {writer} may write the table {name}: it would not detect other changes.",
            f"To change it nevertheless: ALTER TABLE {name} SET PROPERTIES ('{WRITERS}' = 'any')",
        )


def is_open(properties: Mapping[str, str]) -> bool:
    """Returns whether a table's properties let any writer change its rows."""
    return properties.get(WRITERS, "").lower() == "any"


def _owner(catalog: Catalog, owner: str | None) -> Job | None:
    return catalog.jobs.by_id(owner) if owner else None

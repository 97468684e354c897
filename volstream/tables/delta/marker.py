"""The transaction id that lets a consumption's commit happen at most once, and the commit's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Table property: the id of the only job that maintains the table.
OWNER = "volstream.job"


@dataclass(frozen=True)
class Marker:
    """The marker of a commit: Delta accepts one per (table, ``app_id``, ``version``).

    Attributes:
        metadata: identifies the commit's origin; stored as JSON in its user metadata.
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

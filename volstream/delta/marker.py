"""The transaction id that makes a commit of a consumption happen at most once, and what the commit says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: Table property: the id of the one job that keeps the table.
OWNER = "volstream.job"


@dataclass(frozen=True)
class Marker:
    """What a commit carries: Delta admits one per (table, ``app_id``, ``version``).

    Attributes:
        metadata: goes into the commit's user metadata as JSON; says whose commit it is.
    """

    app_id: str
    version: int
    metadata: Mapping[str, Any]

    @property
    def user_metadata(self) -> str:
        """The metadata as the log has it."""
        return json.dumps(self.metadata, sort_keys=True)

    def settings(self) -> dict[str, str]:
        """The session settings under which one DML statement of Spark's carries the marker."""
        return {
            "spark.databricks.delta.write.txnAppId": self.app_id,
            "spark.databricks.delta.write.txnVersion": str(self.version),
            "spark.databricks.delta.commitInfo.userMetadata": self.user_metadata,
        }

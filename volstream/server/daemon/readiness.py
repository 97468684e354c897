"""Whether a daemon is ready: everything that it keeps makes progress. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Readiness:
    """What a daemon knows about its parts.

    Attributes:
        serving: it has begun to follow the catalog, and does not end.
        kept: number of volumes that it keeps.
        engine: the state of its engine, which restarts automatically.
        volumes, sources, tables: the reasons of those that stand still, by name: a volume or its queue is missing, a topic cannot
            be read, rows that arrived cannot be committed.
        jobs: the reasons of those that fail, where the catalog cannot be written and so does not have them.
        held_removals: for their owners to look at.
    """

    serving: bool
    kept: int
    engine: Mapping[str, Any]
    volumes: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    jobs: Mapping[str, str] = field(default_factory=dict)
    held_removals: Mapping[str, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """True if everything that this daemon keeps makes progress."""
        return self.serving and not (self.volumes or self.sources or self.tables)

    def said(self) -> dict[str, Any]:
        """Returns the daemon's part of the answer of ``/readyz``, without empty entries."""
        parts = {
            "failing_volumes": self.volumes,
            "failing_jobs": self.jobs,
            "failing_sources": self.sources,
            "failing_tables": self.tables,
            "held_removals": self.held_removals,
        }
        status = {"status": "ready" if self.ready else "not ready", "volumes": self.kept}
        return status | {name: failing for name, failing in parts.items() if failing} | {"engine": self.engine}

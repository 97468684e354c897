"""All objects of a home."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from volstream.api.objects.collections import Connections, Environments, Functions, Streams
from volstream.api.objects.dynamic import DynamicTables
from volstream.api.objects.jobs import Jobs
from volstream.api.objects.sources import Connectors, Sources
from volstream.api.objects.volumes import Batches, Volumes
from volstream.home import Home


class Objects:
    """All objects of a home, one collection per kind.

    Attributes:
        by_kind: the collections by the singular noun that SQL and the command line use.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self.connections = Connections(home)
        self.functions = Functions(home)
        self.environments = Environments(home)
        self.streams = Streams(home)
        self.jobs = Jobs(home, self.streams)
        self.dynamic_tables = DynamicTables(home, self.jobs)
        self.source = Sources(home, self.functions, self.dynamic_tables)
        self.connector = Connectors(home)
        self.volumes = Volumes(home, self.streams, self.jobs, self.dynamic_tables)
        self.batches = Batches(home, self.jobs)
        self.by_kind: Mapping[str, Any] = {
            "connection": self.connections,
            "volume": self.volumes,
            "stream": self.streams,
            "job": self.jobs,
            "function": self.functions,
            "dynamic": self.dynamic_tables,
            "source": self.source,
        }

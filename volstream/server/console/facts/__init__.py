"""The facts of the console's pages: values for a template and for programs, as JSON. Their types describe the
JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from volstream.api.session import Session
from volstream.base.definitions import Job, Volume
from volstream.base.model.names import Name
from volstream.catalog.audit import Audit
from volstream.home import Home
from volstream.server.console.http import Query
from volstream.server.console.queries import Queries

#: Number of an object's newest tasks on its page.
FEW_TASKS = 5

#: Returns the daemon's state.
Probed = Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class PageRequest:
    """The input of a page.

    Attributes:
        names: the parts of the path that name objects.
    """

    session: Session
    probed: Probed
    names: Mapping[str, str]
    query: Query
    queries: Queries

    @property
    def home(self) -> Home:
        """The home of the page."""
        return self.session.home

    @property
    def audit(self) -> Audit:
        """The actions from the console."""
        return self.home.catalog.audit

    @property
    def job(self) -> Job:
        """The job that the path names. Raises NotFoundError."""
        return self.home.catalog.jobs.get(Name.parse(self.names["job"]))

    @property
    def volume(self) -> Volume:
        """The volume that the path names. Raises NotFoundError."""
        return self.home.catalog.volumes.get(Name.parse(self.names["volume"]))

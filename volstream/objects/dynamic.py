"""Dynamic tables: tables that a job keeps equal to a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from volstream.errors import NotFoundError
from volstream.model.names import Name
from volstream.model.objects import Job, Trigger

if TYPE_CHECKING:
    from volstream.session import Session


class DynamicTables:
    """Tables that show what a query returns. Each is kept by the job of its name, which can be paused, run and listed."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def create(
        self,
        name: str,
        query: str,
        *,
        trigger: Trigger | None = None,
        comment: str | None = None,
        or_replace: bool = False,
        if_not_exists: bool = False,
    ) -> Job:
        """Makes a dynamic table and fills it; see :func:`volstream.sql.dynamic.create`.

        Args:
            query: reads tables whose changes are tracked, and directories of volumes.
            trigger: when the daemon refreshes it; None: :meth:`refresh` does.
        """
        from volstream.sql import dynamic

        return dynamic.create(
            self._session, Name.parse(name), query, trigger=trigger, comment=comment, or_replace=or_replace,
            if_not_exists=if_not_exists,
        )  # fmt: skip

    def get(self, name: str) -> Job:
        """The job that keeps the table. Raises NotFoundError."""
        from volstream.sql import dynamic

        return dynamic.get(self._session, Name.parse(name))

    def list(self) -> Sequence[Job]:
        """The jobs that keep them, by name."""
        return self._session.catalog.jobs.list(dynamic=True)

    def refresh(self, name: str) -> int:
        """Makes the table show what its query returns now; rows written, as far as is known. Raises as a run of a job."""
        return self._session.jobs.run(str(self.get(name).name)).progress.rows

    def drop(self, name: str, *, if_exists: bool = False) -> bool:
        """Drops a dynamic table with its rows; false where there was none and that is allowed."""
        from volstream.sql import dynamic

        try:
            dynamic.drop(self._session, Name.parse(name))
        except NotFoundError:
            if if_exists:
                return False
            raise
        return True

"""Environments of functions: lists them with the jobs that use them, and removes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from volstream.base.definitions import FileJob
from volstream.base.model.arguments import checked
from volstream.errors import NotFoundError, ObjectInUseError
from volstream.functions.environments import EnvironmentStore, MadeEnvironment
from volstream.home import Home


@dataclass(frozen=True)
class EnvironmentUse(MadeEnvironment):
    """An environment in the home, and its use.

    Attributes:
        jobs: names of those that use it now; a job whose file has changed uses another one.
    """

    jobs: Sequence[str]


@checked
class Environments:
    """Environments that were made for the functions of jobs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._store = EnvironmentStore(home.settings.environments_directory)

    def list(self) -> Sequence[EnvironmentUse]:
        """Returns the environments of the home with the jobs that use them."""
        users: dict[str | None, list[str]] = {}
        for job in self._home.catalog.jobs.list():
            if isinstance(job, FileJob) and job.environment is not None:
                users.setdefault(self._store.id_of(job.environment), []).append(str(job.name))
        return [EnvironmentUse(**vars(made), jobs=users.get(made.id, ())) for made in self._store.all()]

    def remove(self, id: str, *, force: bool = False) -> None:
        """Removes an environment. A job that needs it makes it again, with the newest packages that its file allows.

        Args:
            force: also one that jobs use; calls in progress may fail.

        Raises:
            NotFoundError: there is none with this id.
            ObjectInUseError: a job uses it.
        """
        found = next((made for made in self.list() if made.id == id), None)
        if found is None:
            raise NotFoundError(f"There is no environment {id}.", "See: volstream env list.")
        if found.jobs and not force:
            raise ObjectInUseError(
                f"The environment {id} is used by {', '.join(found.jobs)}.",
                f"To remove it anyway: volstream env rm {id} --force. The next run creates it again.",
            )
        self._store.remove(id)

    def remove_unused(self) -> Sequence[str]:
        """Removes the environments that no job uses; returns their ids."""
        unused = [made.id for made in self.list() if not made.jobs]
        for id in unused:
            self._store.remove(id)
        return unused

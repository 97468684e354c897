"""Volumes, and the refreshing of their directory tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from volstream.catalog.leases import held
from volstream.directory import definitions as volume_rules
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError
from volstream.lifecycle.identity import new_owner
from volstream.lifecycle.stop import Stop
from volstream.model.files import printable, why_no_row
from volstream.model.names import Name
from volstream.model.objects import Volume, VolumeSpec
from volstream.objects.base import Objects

if TYPE_CHECKING:
    from volstream.directory.reconcile import Reconciled
    from volstream.session import Session

#: A foreground refresh asks the daemon this often whether it is done.
_ASK_SECONDS = 0.1


@dataclass(frozen=True)
class Refreshed:
    """What a refresh came to.

    Attributes:
        reconciled: what the listing found; None where the daemon's writer did it, which tells the catalog only.
        held: removals that were found and wait for ``accept_removals``.
    """

    inserted: int
    updated: int
    deleted: int
    reconciled: Reconciled | None
    held: int = 0


class Volumes(Objects[Volume]):
    """Volumes and their directory tables."""

    def __init__(self, session: Session) -> None:
        super().__init__(session, session.catalog.volumes)

    def create(
        self,
        name: str,
        location: str,
        *,
        or_replace: bool = False,
        if_not_exists: bool = False,
        check: bool = True,
        **options: Any,
    ) -> Volume:
        """Makes a volume; options are the attributes of :class:`~volstream.model.objects.VolumeSpec`.

        Args:
            check: ask for the directory or bucket, and the queue, first.
        """
        if isinstance(options.get("connection"), str):
            options["connection"] = Name.parse(options["connection"])
        spec = VolumeSpec(Name.parse(name), location, **options)
        return volume_rules.create_volume(
            self._session.catalog,
            self._session.settings,
            spec,
            or_replace=or_replace,
            if_not_exists=if_not_exists,
            check=check,
        )

    def alter(self, name: str, *, check: bool = True, **changes: Any) -> Volume:
        """Changes a volume: attributes of a :class:`~volstream.model.objects.VolumeSpec` but for name and location.

        The next full listing carries new patterns out: files that they leave out go, files that they let in are new.

        Args:
            check: ask for the directory or bucket, and the queue, first.
        """
        if isinstance(changes.get("connection"), str):
            changes["connection"] = Name.parse(changes["connection"])
        catalog, settings = self._session.catalog, self._session.settings
        return volume_rules.alter_volume(catalog, settings, Name.parse(name), check=check, **changes)

    def drop(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> bool:
        """Drops a volume; its files stay, its streams become stale. False where there was none and that is allowed.

        Args:
            cascade: with the streams on it, and the jobs and dynamic tables that consume them; result tables stay.

        Raises:
            ObjectInUseError: a job processes its files.
        """
        volume = self._session.catalog.volumes.find(Name.parse(name)) if cascade else None
        if volume is not None:
            for job in volume_rules.jobs_on(self._session.catalog, volume):
                (self._session.dynamic_tables if job.dynamic else self._session.jobs).drop(str(job.name))
            for stream in volume_rules.streams_on(self._session.catalog, volume):
                self._session.streams.drop(str(stream.name))
        return volume_rules.drop_volume(self._session.catalog, Name.parse(name), if_exists=if_exists)

    def refresh(
        self, name: str, subdirectory: str = "", *, accept_removals: bool = False, stop: Stop | None = None
    ) -> Refreshed:
        """Lists the volume, or a sub-directory of it, and makes the directory table true, before it returns.

        Where a daemon keeps the volume it is asked to, and waited for.

        Args:
            accept_removals: remove what is gone, however much it is.

        Raises:
            StorageError: the listing did not come to its end; nothing was changed.
            NotFoundError: there are no files in the sub-directory, and none were known.
        """
        from volstream.delta.places import reached
        from volstream.directory.keeper import DirectoryKeeper, lease_name

        catalog, settings = self._session.catalog, self._session.settings
        volume = self.get(name)
        prefix = _prefix(subdirectory)
        if not volume.selection.descends(prefix.rstrip("/")):
            raise InvalidValueError(f"{printable(prefix)} is not part of volume {name}: it is ignored.")
        if accept_removals and prefix:
            raise InvalidValueError(
                "Only a listing of the whole volume holds removals.", "Leave the sub-directory out."
            )
        if accept_removals:
            volume = catalog.volumes.change(volume, accept_removals=True)
        before = catalog.refreshes.last(volume.id)
        owner, stopped = new_owner(), Stop() if stop is None else stop
        asked: datetime | None = None
        while not stopped:
            with held(
                catalog.leases, lease_name(volume), owner, f"refresh of {volume.name}", settings.lease_seconds
            ) as other:
                if other is None:
                    keeper = DirectoryKeeper(volume, catalog, settings, stopped.wait, stopped.__bool__)
                    with reached(settings.warehouse_path):
                        done = keeper.reconcile(prefix)
                        keeper.maintain()
                    if asked is not None:
                        catalog.refreshes.checked(volume.id, {prefix: asked})
                    if prefix and not (done.files or done.findings or done.counts):
                        raise NotFoundError(f"There is nothing below {prefix} in volume {name}, and there was not.")
                    return Refreshed(
                        done.counts.inserted, done.counts.updated, done.counts.deleted, done, done.held
                    )  # fmt: skip
            if asked is None:
                asked = catalog.refreshes.ask_check(volume.id, [prefix])
            elif not catalog.refreshes.is_asked(volume.id, prefix):
                number = before.number if before else 0
                since = catalog.refreshes.sums_after(volume.id, number)
                return Refreshed(*since, reconciled=None, held=0 if prefix else self.get(name).held_removals)
            stopped.wait(_ASK_SECONDS)
        raise InvalidStateError(f"The refresh of volume {volume.name} was stopped.")


def _prefix(subdirectory: str) -> str:
    """A sub-directory as users write it, as a prefix of relative paths. Raises InvalidValueError."""
    parts = [part for part in subdirectory.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidValueError(f"The sub-directory {subdirectory!r} leads out of the volume.")
    prefix = "".join(f"{part}/" for part in parts)
    if why_no_row(prefix) is not None:
        raise InvalidValueError(f"No file below {printable(prefix)} can be in the directory.", "Its name is not text.")
    return prefix

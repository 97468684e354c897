"""Refreshes a volume in the foreground: in this process, or by the daemon that keeps the volume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.model.paths import printable, why_no_row
from volstream.base.processes import new_owner
from volstream.base.threads import Stop
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import lease, of_volume
from volstream.changes.directory.inventory import check_newer, open_inventory
from volstream.changes.directory.keeper import DirectoryKeeper
from volstream.changes.directory.reconcile import ReconcileResult
from volstream.errors import CatalogError, InvalidStateError, InvalidValueError, NotFoundError, StorageError, in_brief
from volstream.tables.delta.places import reached

#: A daemon that fails for so long does not answer soon.
_FAILING_SECONDS = 5.0

#: Interval at which the catalog is polled for the daemon's result, in seconds.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class RefreshResult:
    """The result of a foreground refresh.

    Attributes:
        listing: result of the listing; None if the daemon ran it, which reports only to the catalog.
        held: removals found that wait for ``accept_removals``.
    """

    inserted: int
    updated: int
    deleted: int
    listing: ReconcileResult | None
    held: int = 0


def refresh(
    catalog: Catalog,
    settings: Settings,
    volume: Volume,
    subdirectory: str = "",
    *,
    accept_removals: bool = False,
    inventory: str | None = None,
    stop: Stop | None = None,
) -> RefreshResult:
    """Lists a volume, or a sub-directory of it, and returns once the directory table matches.

    If a daemon keeps the volume, this call asks the daemon to do it, and waits.

    Args:
        accept_removals: accept all removals, however many.
        inventory: URI of a provider's report, or of the folder of an inventory for its newest one, to be read instead of
            listing the whole volume. The directory is then complete as of the report.

    Raises:
        StorageError: the listing failed, or the daemon cannot list; nothing was changed.
        NotFoundError: the sub-directory has no files and had none before.
        InvalidValueError: the sub-directory is ignored, or is outside the volume; the report does not suit the volume.
        InvalidStateError: the refresh was stopped; the directory is newer than the report; a daemon keeps the volume, and a
            report was given.
    """
    prefix = _prefix(subdirectory)
    if not volume.selection.may_contain(prefix.rstrip("/")):
        raise InvalidValueError(f"{printable(prefix)} is not part of volume {volume.name}: it is ignored.")
    if accept_removals and prefix:
        raise InvalidValueError("Removals can be accepted only for the whole volume.", "Leave the sub-directory out.")
    if inventory is not None and prefix:
        raise InvalidValueError("A report is read for the whole volume.", "Leave the sub-directory out.")
    report = None if inventory is None else open_inventory(inventory, volume, catalog, settings)
    if report is not None:
        check_newer(report.manifest, volume)
    if accept_removals:
        volume = catalog.volumes.change(volume, accept_removals=True)
    before = catalog.refreshes.last(volume.id)
    number = before.number if before else 0
    owner, stopped = new_owner(), Stop() if stop is None else stop
    asked: datetime | None = None
    failing_since: float | None = None
    while not stopped:
        name, purpose = of_volume(volume.id), f"refresh of {volume.name}"
        with lease(catalog.leases, name, owner, purpose, settings.lease_seconds) as other:
            if other is None:
                keeper = DirectoryKeeper(volume, catalog, settings, stopped.wait, stopped.__bool__)
                with reached(settings.warehouse_path), _troubles(catalog, volume, whole=not prefix):
                    done = keeper.reconcile(prefix, inventory=report)
                    keeper.maintain()
                if asked is not None:
                    catalog.refreshes.checked(volume.id, {prefix: asked})
                if prefix and not (done.files or done.findings or done.counts):
                    raise NotFoundError(f"There are no files below {prefix} in volume {volume.name}, and there were none before.")
                return RefreshResult(*catalog.refreshes.sums_after(volume.id, number), listing=done, held=done.held)
        if report is not None:
            raise InvalidStateError(
                f"A daemon keeps the volume {volume.name} and reads its reports.",
                f"Tell it where they are: volstream alter-volume {volume.name} --inventory FOLDER",
            )
        if asked is None:
            asked = catalog.refreshes.ask_check(volume.id, [prefix])
        elif not catalog.refreshes.is_asked(volume.id, prefix):
            since = catalog.refreshes.sums_after(volume.id, number)
            return RefreshResult(*since, listing=None, held=0 if prefix else catalog.volumes.get(volume.name).held_removals)
        cause = catalog.conditions.cause(ConditionKind.VOLUME, volume.id)
        failing_since = None if cause is None else failing_since or time.monotonic()
        if failing_since is not None and time.monotonic() - failing_since > _FAILING_SECONDS:
            raise StorageError(
                f"The daemon cannot refresh the volume {volume.name} yet: {cause}", "It keeps retrying; run refresh again later."
            )
        stopped.wait(_POLL_SECONDS)
    raise InvalidStateError(f"The refresh of volume {volume.name} was stopped.")


@contextmanager
def _troubles(catalog: Catalog, volume: Volume, *, whole: bool) -> Iterator[None]:
    """Records what a listing of the whole volume reveals about the store, as the daemon does when it keeps the volume."""
    try:
        yield
    except StorageError as error:
        if whole:
            with suppress(CatalogError):
                catalog.conditions.note(ConditionKind.VOLUME, volume.id, in_brief(error))
        raise
    if whole and catalog.conditions.cause(ConditionKind.VOLUME, volume.id) is not None:
        catalog.conditions.note(ConditionKind.VOLUME, volume.id, None)


def _prefix(subdirectory: str) -> str:
    """Converts a sub-directory as written by a user to a prefix of relative paths. Raises InvalidValueError."""
    parts = [part for part in subdirectory.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidValueError(f"The sub-directory {subdirectory!r} is outside the volume.")
    prefix = "".join(f"{part}/" for part in parts)
    if why_no_row(prefix) is not None:
        raise InvalidValueError(f"No file below {printable(prefix)} can be in the directory.", "Its name is not valid UTF-8.")
    return prefix

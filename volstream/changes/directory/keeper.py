"""Keeps one volume's directory table up to date: turns ticks of hints into refreshes and reconciles.

Used by the holder of the volume's lease (:func:`volstream.catalog.leases.of_volume`), in one thread. Needs no
Spark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from volstream.base.config import Settings
from volstream.base.definitions import Volume
from volstream.base.log import get
from volstream.base.model.hints import Hint, HintSet, KeyHint, SubtreeHint, unusable
from volstream.base.model.paths import printable, why_no_row
from volstream.base.processes import new_owner
from volstream.base.threads import Backoff, Stop
from volstream.base.tracing import span
from volstream.catalog import Catalog
from volstream.catalog.alerts import ConditionKind
from volstream.catalog.leases import lease, of_volume
from volstream.changes.directory.inventory import Inventory, check_newer, is_older, list_report, open_inventory
from volstream.changes.directory.listing import Listing
from volstream.changes.directory.reconcile import (
    Confirm,
    Observations,
    ReconcileResult,
    add_differences,
    add_keys,
    list_subtrees,
    reconcile,
    record_failed,
    record_findings,
)
from volstream.changes.directory.writer import Counts, DirectoryWriter
from volstream.errors import (
    CatalogError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    StorageDeniedError,
    StorageError,
    in_brief,
)
from volstream.files.storage.base import PROBE, Checkable, HasLocalPaths, KeyOrdered, ObjectStore
from volstream.files.volumes.access import store_of
from volstream.tables.delta import places
from volstream.tables.delta.places import reached

_log = get("directory")

#: Maximum number of keys remembered during a listing. With more, the listing's findings are checked instead.
_MAX_SEEN = 100_000

#: Delay before the retry of a key that could not be checked.
_LATER = Backoff(first_seconds=1.0, cap_seconds=300.0)

#: Interval of sweeps for unneeded data files. A sweep lists the tables' folders.
_SWEEP_SECONDS = 6 * 3600.0

#: Interval of checks that the store exists. For a bucket, each check is a request.
_LOCAL_CHECK_SECONDS, _REMOTE_CHECK_SECONDS = 2.0, 60.0


#: The result of hints without effect.
_NOTHING = ReconcileResult(files=0, bytes=0, counts=Counts(), late=0, commit=None, findings=0, unsettled=(), seconds=0.0)


class DirectoryKeeper:
    """Refreshes and reconciles one volume.

    Args:
        wait: sleeps. A daemon passes a function that its stop signal interrupts.
        stopped: interrupts a listing when it returns true.
        store: store of the volume's files. By default, opened through the volume's connection.

    Attributes:
        check_seconds: interval of checks that the store exists.
        is_asked: True if there were requested checks at the last call of :meth:`requested_checks`, due or
            not.
    """

    def __init__(
        self,
        volume: Volume,
        catalog: Catalog,
        settings: Settings,
        wait: Callable[[float], object] = time.sleep,
        stopped: Callable[[], object] = lambda: False,
        store: ObjectStore | None = None,
    ) -> None:
        self.volume = volume
        self._catalog = catalog
        self._settings = settings
        self._wait = wait
        self._stopped = stopped
        self._store = store or store_of(volume, catalog, settings)
        self._writer = DirectoryWriter(volume, catalog, settings.warehouse_path, settings.directory_versions)
        self._seen: HintSet | None = None  # since the start of a background listing
        self._seen_more = False  # more than the maximum number of keys
        # whether the folder has this keeper's listing; None before the first
        self._resumes: bool | None = None
        self._listing_cause = "listing"
        self._postponed: dict[str, tuple[int, float]] = {}  # by key: number of attempts, and time of the next
        self._next_sweep = time.monotonic() + _SWEEP_SECONDS
        local = isinstance(self._store, HasLocalPaths)
        self.check_seconds = _LOCAL_CHECK_SECONDS if local else _REMOTE_CHECK_SECONDS
        self.is_asked = True
        self._next_check = time.monotonic() + self.check_seconds

    @property
    def held_removals(self) -> int:
        """Removals found by the newest full listing that wait for confirmation."""
        return self._writer.volume.held_removals

    @property
    def last_listing(self) -> datetime | None:
        """The last time as of which the directory was complete."""
        return self._writer.volume.last_listing

    def check_store(self) -> None:
        """Checks periodically that the store responds. Otherwise only the next event or full listing would
        reveal a failure.

        Raises:
            StorageError: the store is missing or does not respond.
        """
        if time.monotonic() < self._next_check:
            return
        with suppress(StorageDeniedError):  # the store exists, but permission covers only some prefixes
            if isinstance(self._store, Checkable):
                self._store.check()
            else:
                self._store.head(PROBE)
        self._next_check = time.monotonic() + self.check_seconds

    def reconcile(self, prefix: str = "", cause: str = "listing", inventory: Inventory | None = None) -> ReconcileResult:
        """Lists everything below ``prefix`` (empty, or ending in ``/``) and commits the differences.

        Skips files that are still being written, and schedules them for another check.

        Args:
            inventory: a report to read instead of listing the whole volume.

        Raises:
            StorageError: the listing failed. Nothing was changed.
            InvalidValueError: the report does not suit the volume. Nothing was changed.
        """
        if prefix:
            return self._refresh([prefix], [], cause)
        listing = self._list_all() if inventory is None else self._read(inventory)
        done = self._commit(listing, cause, self._observations_since(listing))
        # a resumed listing lacks recent changes
        return self.reconcile(cause=cause) if listing.resumed else done

    def bootstrap(self) -> ReconcileResult:
        """Fills the directory for the first time: from the newest report about the volume, or else by listing
        it.

        Raises:
            StorageError: the listing failed, or a report cannot be read or does not suit the volume. Nothing
                was changed.
        """
        listing = self._list_or_read()
        assert listing is not None, "no report is older than a directory that was never complete"
        return self._commit(listing, "first-listing", self._observations_since(listing))

    def begin_listing(self, request: str | None = None) -> Callable[[], Listing | None]:
        """Returns a function that lists the whole volume, or reads its newest report, to run in a separate
        thread.

        Pass the function's result to :meth:`end_listing`. It is None if no report is newer than the
        directory.

        Args:
            request: why to list the volume even if there are reports.
        """
        self._seen, self._seen_more, self._listing_cause = HintSet(self.volume.selection), False, request or "listing"
        return self._list_or_read if request is None else self._list_all

    def end_listing(self, listing: Listing | None) -> ReconcileResult | None:
        """Commits the findings of a background listing, unless newer observations contradict them.

        Args:
            listing: None if the listing failed, or if nothing was due.
        """
        seen, self._seen = self._seen, None
        if listing is None or seen is None:
            return None
        prefixes = tuple(prefix for prefix, _ in seen.listings())
        since = Observations(frozenset(seen.keys), prefixes, unknown=self._seen_more or listing.resumed)
        return self._commit(listing, self._listing_cause, since)

    @property
    def _folder(self) -> str:
        """The folder for listings of the whole volume. It outlives the process, so that the next one can
        resume."""
        return f"{self._settings.warehouse_path}/_listings/{self.volume.id}"

    @property
    def _was_filled(self) -> bool:
        """True if the directory was ever filled."""
        return self._catalog.refreshes.last(self.volume.id) is not None

    def _observations_since(self, listing: Listing) -> Observations:
        """Returns the known changes since the start of a foreground listing."""
        # An earlier process's observations are unknown.
        return Observations(unknown=listing.resumed and self._was_filled)

    def _list(self, folder: str, prefixes: Sequence[str], *, resume: bool = False) -> Listing:
        return list_subtrees(
            folder,
            self._store,
            prefixes,
            self.volume.selection,
            settle_seconds=self._settings.settle_seconds,
            wait=self._wait,
            stopped=self._stopped,
            resume=resume,
        )

    def _list_all(self) -> Listing:
        """Lists the whole volume.

        Only resumes this keeper's own listing and, because it takes longest, the volume's first one: a
        listing begun by another process misses the changes between the two processes.
        """
        resumes, self._resumes = self._resumes, True
        return self._list(self._folder, [""], resume=not self._was_filled if resumes is None else resumes)

    def _list_or_read(self) -> Listing | None:
        """Returns the content of the volume's newest report or, without reports, a listing. None without a
        newer report."""
        if self.volume.inventory is None:
            return self._list_all()
        try:
            inventory = open_inventory(self.volume.inventory, self.volume, self._catalog, self._settings)
            if is_older(inventory.manifest, self.last_listing):
                return None
            return self._read(inventory)
        except NotFoundError as error:
            _log.info("no_inventory_report", volume=str(self.volume.name), reason=error.message, next="the volume is listed")
            return self._list_all()
        except InvalidValueError as error:  # transient: the provider's next report may suit the volume again
            raise StorageError(error.message, error.remedy) from error

    def _read(self, inventory: Inventory) -> Listing:
        self._resumes = False
        place, selection = self.volume.location, self.volume.selection
        return list_report(self._folder, inventory, place, self._store, selection, stopped=self._stopped)

    def _commit(self, listing: Listing, cause: str, since: Observations) -> ReconcileResult:
        with span("refresh", volume=str(self.volume.name), cause=cause, listed=listing.files) as current:
            done = reconcile(self._writer, self._store, self._catalog, self._folder, listing, cause, since)
            current.set(**_span_attributes(done))
        self._resumes = False
        self._catalog.refreshes.ask_check(self.volume.id, done.unsettled)
        _log.info(
            "listed",
            volume=str(self.volume.name),
            cause=cause,
            files=done.files,
            inserted=done.counts.inserted,
            updated=done.counts.updated,
            deleted=done.counts.deleted,
            findings=done.findings,
            unsettled=len(done.unsettled),
            seconds=round(done.seconds, 3),
        )
        return done

    def apply(self, hints: HintSet) -> ReconcileResult:
        """Applies all ``hints`` to the directory in at most one commit.

        Args:
            hints: no hint for the whole volume: the caller lists it.

        Raises:
            StorageError: nothing was committed. Apply the hints again.
            FencedError: another writer took over.
        """
        listings = dict(hints.listings())
        subtrees = {prefix: listings[prefix] for prefix in self._readable(listings)}
        assert "" not in subtrees, "see above"
        keys = self._readable(hints.single_keys())
        if self._seen is not None:
            self._seen.keys |= hints.keys
            self._seen.subtrees |= hints.subtrees
            if len(self._seen.keys) > _MAX_SEEN:
                self._seen.keys, self._seen_more = {}, True
        if not (keys or subtrees):
            return _NOTHING
        return self._refresh(sorted(subtrees), keys, ", ".join(sorted({*subtrees.values()})) or "events")

    def _refresh(self, prefixes: Sequence[str], keys: Sequence[str], cause: str) -> ReconcileResult:
        """Makes one commit for subtrees and single keys."""
        with span("refresh", volume=str(self.volume.name), cause=cause, keys=len(keys)) as current:
            done = self._refresh_now(prefixes, keys, cause)
            current.set(**_span_attributes(done))
            return done

    def _refresh_now(self, prefixes: Sequence[str], keys: Sequence[str], cause: str) -> ReconcileResult:
        folder = f"{self._folder}-beside"
        listing = self._list(folder, prefixes) if prefixes else Listing()
        snapshot = self._writer.open()
        changes = self._writer.begin(snapshot)
        try:
            late = 0
            confirm = Confirm(self._store, self.volume.selection)
            if prefixes:
                late = add_differences(changes, snapshot, folder, prefixes, listing, confirm)
            failed = add_keys(changes, snapshot, self._store, keys, self._settings.tick_keys)
        except BaseException:
            changes.drop()
            raise
        commit = self._writer.commit(snapshot, changes, cause)
        if prefixes:
            places.remove(folder)
            record_findings(self._catalog, self.volume.id, listing)
            self._catalog.refreshes.ask_check(self.volume.id, listing.unsettled)
        record_failed(self._catalog, self.volume.id, {**confirm.failed, **failed})
        self._postpone(keys, failed)
        if commit is not None:
            _log.info(
                "refreshed",
                volume=str(self.volume.name),
                keys=len(keys),
                subtrees=len(prefixes),
                refresh=commit.number,
                inserted=commit.inserted,
                updated=commit.updated,
                deleted=commit.deleted,
            )
        return ReconcileResult.of(listing, changes.counts, late, commit)

    def _postpone(self, keys: Sequence[str], failed: Mapping[str, StorageError]) -> None:
        """Schedules retries of keys that could not be checked, with growing delays.

        Keys without permission wait for the next listing.
        """
        retried = [key for key, error in failed.items() if error.transient]
        delays = {key: self._postponed.get(key, (0, 0.0))[0] + 1 for key in retried}
        for key in keys:
            self._postponed.pop(key, None)
        for key, times in delays.items():
            self._postponed[key] = times, time.monotonic() + _LATER.delay(times)
        if retried:
            self._catalog.refreshes.ask_check(self.volume.id, retried)

    def maintain(self, *, idle: bool = True) -> None:
        """Maintains the directory's tables: compacts the tail, drops unneeded history, deletes old files.

        Args:
            idle: True if no other work is waiting.
        """
        self._writer.maintain()
        if idle and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._writer.sweep()

    def requested_checks(self) -> Mapping[Hint, datetime]:
        """Returns the requested checks that are due, with the times of the requests: settled files, subtrees,
        and retries."""
        hints: dict[Hint, datetime] = {}
        requested = self._catalog.refreshes.asked_checks(self.volume.id, self._settings.tick_keys)
        self.is_asked = bool(requested)
        for path, when in requested.items():
            if path == "" or path.endswith("/"):
                hints[SubtreeHint(path, "requested")] = when
            elif time.monotonic() >= self._postponed.get(path, (0, 0.0))[1] and self._is_settled(path):
                hints[KeyHint(path)] = when
        return hints

    def complete_checks(self, requested: Mapping[Hint, datetime]) -> None:
        """Removes requests returned by :meth:`requested_checks`. Call it once they are applied."""
        if requested:
            paths = {hint.path if isinstance(hint, KeyHint) else hint.prefix: when for hint, when in requested.items()}
            self._catalog.refreshes.checked(self.volume.id, paths)

    def _is_settled(self, path: str) -> bool:
        if isinstance(self._store, KeyOrdered):
            return True  # the store's objects appear complete
        try:
            now = self._store.head(path)
        except StorageError:  # applying the key will report it
            return True
        age = None if now is None else (datetime.now(UTC) - now.last_modified_time).total_seconds()
        return age is None or abs(age) >= self._settings.settle_seconds

    def _readable(self, paths: Collection[str]) -> list[str]:
        """Returns the valid ones of ``paths``. Records paths that no row can have or be below as rejected."""
        invalid = unusable(paths)
        self._catalog.refreshes.reject(self.volume.id, invalid.values())
        return [path for path in paths if path not in invalid]


def _span_attributes(done: ReconcileResult) -> dict[str, int]:
    """Returns the attributes of a refresh's span."""
    counts = done.counts
    return {"rows": counts.rows, "inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}


# Refreshes a volume in the foreground: in this process, or through the daemon that keeps the volume.

#: After failing for this long, a daemon is not expected to respond soon.
_FAILING_SECONDS = 5.0

#: Interval at which the catalog is polled for the daemon's result, in seconds.
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class RefreshResult:
    """The result of a foreground refresh.

    Attributes:
        listing: result of the listing. None if the daemon ran it, which only reports to the catalog.
        held: number of removals that wait for ``accept_removals``.
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
    """Lists a volume or a sub-directory of it, and returns once the directory table matches.

    If a daemon keeps the volume, asks the daemon to do it, and waits.

    Args:
        accept_removals: accept all removals, however many.
        inventory: URI of a provider's report, or of an inventory's folder for its newest report, to read
            instead of listing the whole volume. The directory is then complete as of the report.

    Raises:
        StorageError: the listing failed, or the daemon cannot list. Nothing was changed.
        NotFoundError: the sub-directory has no files and had none before.
        InvalidValueError: the sub-directory is ignored or outside the volume, or the report does not suit the
            volume.
        InvalidStateError: the refresh was stopped, the directory is newer than the report, or a report was
            given although a daemon keeps the volume.
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
    requested_on: datetime | None = None
    failing_since: float | None = None
    while not stopped:
        name, purpose = of_volume(volume.id), f"refresh of {volume.name}"
        with lease(catalog.leases, name, owner, purpose, settings.lease_seconds) as other:
            if other is None:
                keeper = DirectoryKeeper(volume, catalog, settings, stopped.wait, stopped.__bool__)
                with reached(settings.warehouse_path), _recorded_failure(catalog, volume, whole=not prefix):
                    done = keeper.reconcile(prefix, inventory=report)
                    keeper.maintain()
                if requested_on is not None:
                    catalog.refreshes.checked(volume.id, {prefix: requested_on})
                if prefix and not (done.files or done.findings or done.counts):
                    raise NotFoundError(f"There are no files below {prefix} in volume {volume.name}, and there were none before.")
                return RefreshResult(*catalog.refreshes.sums_after(volume.id, number), listing=done, held=done.held)
        if report is not None:
            raise InvalidStateError(
                f"A daemon keeps the volume {volume.name} and reads its reports.",
                f"Tell it where they are: volstream alter-volume {volume.name} --inventory FOLDER",
            )
        if requested_on is None:
            requested_on = catalog.refreshes.ask_check(volume.id, [prefix])
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
def _recorded_failure(catalog: Catalog, volume: Volume, *, whole: bool) -> Iterator[None]:
    """Records whether the store failed during a listing of the whole volume, like a daemon that keeps the
    volume."""
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
    """Converts a user's spelling of a sub-directory to a prefix of relative paths. Raises
    InvalidValueError."""
    parts = [part for part in subdirectory.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise InvalidValueError(f"The sub-directory {subdirectory!r} is outside the volume.")
    prefix = "".join(f"{part}/" for part in parts)
    if why_no_row(prefix) is not None:
        raise InvalidValueError(f"No file below {printable(prefix)} can be in the directory.", "Its name is not valid UTF-8.")
    return prefix

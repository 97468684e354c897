"""Keeps one volume's directory table up to date: turns ticks of hints into refreshes and reconciles.

Used by the holder of the volume's lease (see :func:`volstream.catalog.leases.of_volume`), in one thread. No Spark.
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
    note_failed,
    note_findings,
    reconcile,
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

#: Maximum number of keys remembered during a listing; beyond it, the listing's findings are checked instead.
_MAX_SEEN = 100_000

#: Delay until a key that could not be checked is retried.
_LATER = Backoff(first_seconds=1.0, cap_seconds=300.0)

#: Interval of sweeps for unneeded data files, which list the table's folders.
_SWEEP_SECONDS = 6 * 3600.0

#: Interval of checks that the store exists; for a bucket each check is a request.
_LOCAL_CHECK_SECONDS, _REMOTE_CHECK_SECONDS = 2.0, 60.0


#: What comes of hints that concern nothing.
_NOTHING = ReconcileResult(files=0, bytes=0, counts=Counts(), late=0, commit=None, findings=0, unsettled=(), seconds=0.0)


class DirectoryKeeper:
    """Refreshes and reconciles one volume.

    Args:
        wait: sleeps; a daemon passes a function that its stop signal interrupts.
        stopped: interrupts a listing when it returns true.
        store: store of the volume's files; None: opened through its connection.

    Attributes:
        check_seconds: interval of checks that the store exists.
        is_asked: the last look at requested checks found some, due or not.
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
        self._seen_more = False  # than the maximum number of keys
        self._resumes: bool | None = None  # what is in the folder is of this keeper's; None: it has not listed yet
        self._listed_for = "listing"
        self._put_off_until: dict[str, tuple[int, float]] = {}  # by key: number of attempts, and time of the next
        self._next_sweep = time.monotonic() + _SWEEP_SECONDS
        local = isinstance(self._store, HasLocalPaths)
        self.check_seconds = _LOCAL_CHECK_SECONDS if local else _REMOTE_CHECK_SECONDS
        self.is_asked = True
        self._next_check = time.monotonic() + self.check_seconds

    @property
    def held_removals(self) -> int:
        """Removals that the newest full listing found and that wait for confirmation."""
        return self._writer.volume.held_removals

    @property
    def last_listing(self) -> datetime | None:
        """The time as of which the directory was complete at last."""
        return self._writer.volume.last_listing

    def check_store(self) -> None:
        """Checks periodically that the store answers; otherwise only the next event or full listing would reveal a failure.

        Raises:
            StorageError: the store is missing or does not answer.
        """
        if time.monotonic() < self._next_check:
            return
        with suppress(StorageDeniedError):  # denied: permission covers only some prefixes; the store exists
            if isinstance(self._store, Checkable):
                self._store.check()
            else:
                self._store.head(PROBE)
        self._next_check = time.monotonic() + self.check_seconds

    def reconcile(self, prefix: str = "", cause: str = "listing", inventory: Inventory | None = None) -> ReconcileResult:
        """Lists everything below ``prefix`` (empty, or ending in ``/``) and commits the differences.

        Files that are still being written are skipped, and scheduled for another check.

        Args:
            inventory: a report to be read instead of listing the whole volume.

        Raises:
            StorageError: the listing failed; nothing was changed.
            InvalidValueError: the report does not suit the volume; nothing was changed.
        """
        if prefix:
            return self._refresh([prefix], [], cause)
        listing = self._list_all() if inventory is None else self._read(inventory)
        done = self._commit(listing, cause, self._earlier(listing))
        return self.reconcile(cause=cause) if listing.resumed else done  # what has changed since an earlier process began it

    def bootstrap(self) -> ReconcileResult:
        """Fills the directory for the first time: from the newest report about the volume or, if there is none, by listing it.

        Raises:
            StorageError: the listing failed, or a report cannot be read or does not suit; nothing was changed.
        """
        listing = self._list_or_read()
        assert listing is not None, "no report is older than a directory that was never complete"
        return self._commit(listing, "first-listing", self._earlier(listing))

    def begin_listing(self, request: str | None = None) -> Callable[[], Listing | None]:
        """Returns a function that lists the whole volume, or reads the newest report about it, to run in a separate thread;
        :meth:`end_listing` takes its result. None: there is no newer report than the directory.

        Args:
            request: why the volume is to be listed even if there are reports.
        """
        self._seen, self._seen_more, self._listed_for = HintSet(self.volume.selection), False, request or "listing"
        return self._list_or_read if request is None else self._list_all

    def end_listing(self, listing: Listing | None) -> ReconcileResult | None:
        """Commits the findings of a background listing, unless newer observations contradict them.

        Args:
            listing: None: the listing failed, or nothing was due.
        """
        seen, self._seen = self._seen, None
        if listing is None or seen is None:
            return None
        prefixes = tuple(prefix for prefix, _ in seen.listings())
        since = Observations(frozenset(seen.keys), prefixes, unknown=self._seen_more or listing.resumed)
        return self._commit(listing, self._listed_for, since)

    @property
    def _folder(self) -> str:
        """The folder for listings of the whole volume. It survives the process, so that the next one can resume."""
        return f"{self._settings.warehouse_path}/_listings/{self.volume.id}"

    @property
    def _is_there(self) -> bool:
        """True if the directory was ever filled."""
        return self._catalog.refreshes.last(self.volume.id) is not None

    def _earlier(self, listing: Listing) -> Observations:
        """Returns what is known of changes since a listing began that nothing else ran beside."""
        # It is unknown what an earlier process observed since it began its part.
        return Observations(unknown=listing.resumed and self._is_there)

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
        """Lists the whole volume. Resumes only this keeper's own listing and, because it takes longest, the volume's first one:
        a listing that another process began misses the changes between the two processes."""
        resumes, self._resumes = self._resumes, True
        return self._list(self._folder, [""], resume=not self._is_there if resumes is None else resumes)

    def _list_or_read(self) -> Listing | None:
        """Returns what the newest report says of the volume or, without one, a listing; None: there is no newer report."""
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
        except InvalidValueError as error:  # what the provider writes may suit again: the volume is kept meanwhile
            raise StorageError(error.message, error.remedy) from error

    def _read(self, inventory: Inventory) -> Listing:
        self._resumes = False
        place, selection = self.volume.location, self.volume.selection
        return list_report(self._folder, inventory, place, self._store, selection, stopped=self._stopped)

    def _commit(self, listing: Listing, cause: str, since: Observations) -> ReconcileResult:
        with span("refresh", volume=str(self.volume.name), cause=cause, listed=listing.files) as current:
            done = reconcile(self._writer, self._store, self._catalog, self._folder, listing, cause, since)
            current.set(**_numbers(done))
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
        """Applies all ``hints`` to the directory, by at most one commit.

        Args:
            hints: none of the whole volume, which the caller lists.

        Raises:
            StorageError: nothing was committed; apply the hints again.
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
            current.set(**_numbers(done))
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
            note_findings(self._catalog, self.volume.id, listing)
            self._catalog.refreshes.ask_check(self.volume.id, listing.unsettled)
        note_failed(self._catalog, self.volume.id, {**confirm.failed, **failed})
        self._put_off(keys, failed)
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

    def _put_off(self, keys: Sequence[str], failed: Mapping[str, StorageError]) -> None:
        """Schedules keys that could not be checked for a retry, with growing delays. Keys without permission wait for the next
        listing."""
        later = [key for key, error in failed.items() if error.transient]
        delays = {key: self._put_off_until.get(key, (0, 0.0))[0] + 1 for key in later}
        for key in keys:
            self._put_off_until.pop(key, None)
        for key, times in delays.items():
            self._put_off_until[key] = times, time.monotonic() + _LATER.delay(times)
        if later:
            self._catalog.refreshes.ask_check(self.volume.id, later)

    def maintain(self, *, idle: bool = True) -> None:
        """Maintains the directory's tables: compacts the tail, drops unneeded history, deletes old files.

        Args:
            idle: no other work is waiting.
        """
        self._writer.maintain()
        if idle and time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_SECONDS
            self._writer.sweep()

    def requested_checks(self) -> Mapping[Hint, datetime]:
        """Returns what this volume's writer was asked to check again, with the times of the requests: settled files, subtrees,
        and keys due for a retry."""
        hints: dict[Hint, datetime] = {}
        requested = self._catalog.refreshes.asked_checks(self.volume.id, self._settings.tick_keys)
        self.is_asked = bool(requested)
        for path, when in requested.items():
            if path == "" or path.endswith("/"):
                hints[SubtreeHint(path, "requested")] = when
            elif time.monotonic() >= self._put_off_until.get(path, (0, 0.0))[1] and self._settled(path):
                hints[KeyHint(path)] = when
        return hints

    def complete_checks(self, requested: Mapping[Hint, datetime]) -> None:
        """Removes requests that :meth:`requested_checks` returned, once they are applied."""
        if requested:
            paths = {hint.path if isinstance(hint, KeyHint) else hint.prefix: when for hint, when in requested.items()}
            self._catalog.refreshes.checked(self.volume.id, paths)

    def _settled(self, path: str) -> bool:
        if isinstance(self._store, KeyOrdered):
            return True  # the store's objects appear complete
        try:
            now = self._store.head(path)
        except StorageError:  # applying the key will report it
            return True
        age = None if now is None else (datetime.now(UTC) - now.last_modified_time).total_seconds()
        return age is None or abs(age) >= self._settings.settle_seconds

    def _readable(self, paths: Collection[str]) -> list[str]:
        """Returns ``paths`` without those that no row can have or be below; records these as rejected."""
        odd = unusable(paths)
        self._catalog.refreshes.reject(self.volume.id, odd.values())
        return [path for path in paths if path not in odd]


def _numbers(done: ReconcileResult) -> dict[str, int]:
    """Returns the attributes of a refresh for spans."""
    counts = done.counts
    return {"rows": counts.rows, "inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}


# Refreshes a volume in the foreground: in this process, or by the daemon that keeps the volume.

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

"""Keeps one volume's directory table true: what a tick of hints comes to, in refreshes and reconciles.

To be used by the holder of the volume's lease, in one thread; :func:`lease_name` names it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.delta.writer import DeltaWriter
from volstream.directory.access import store_of
from volstream.directory.confirm import Since
from volstream.directory.fold import Fold
from volstream.directory.listing import Listing
from volstream.directory.reconcile import Reconciled, listed, reconcile
from volstream.directory.refresh import refresh_keys
from volstream.directory.upkeep import SWEPT_EVERY, compact, shorten, sweep
from volstream.directory.writer import Counts, DirectoryWriter
from volstream.log import get
from volstream.model.files import is_utf8, printable
from volstream.model.hints import Hint, KeyHint, Rejection, SubtreeHint
from volstream.model.objects import Volume
from volstream.storage.base import KeyOrdered

if TYPE_CHECKING:
    from volstream.spark.session import SparkGateway

_log = get("directory")

#: Keys that are remembered while a listing runs; with more, what it found is looked at instead.
_MOST_SEEN = 100_000


def lease_name(volume: Volume) -> str:
    """The lease whose holder is the volume's one writer."""
    return f"volume:{volume.id}"


@dataclass(frozen=True)
class Tick:
    """What a tick did: rows changed, and commits made."""

    counts: Counts
    commits: int


class DirectoryKeeper:
    """Refreshes and reconciles one volume.

    Args:
        wait: sleeps; a daemon passes one that its stop signal interrupts.
    """

    def __init__(
        self,
        volume: Volume,
        catalog: Catalog,
        gateway: SparkGateway,
        settings: Settings,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self.volume = volume
        self._catalog = catalog
        self._gateway = gateway
        self._settings = settings
        self._wait = wait
        self._store = store_of(volume, catalog, settings)
        self._delta = DeltaWriter(gateway)
        self._writer = DirectoryWriter(volume, catalog, self._delta, settings.warehouse_path)
        self._seen: Fold | None = None  # since a listing in the background began
        self._next_sweep = float("-inf")  # when old files are looked for again, by time.monotonic()

    def reconcile(self, prefix: str = "", cause: str = "reconcile") -> Reconciled:
        """Lists everything below ``prefix`` (empty, or ending in ``/``) and commits what differs.

        Files that are still being written are left for later, and asked for again.

        Raises:
            StorageError: the listing did not end; nothing was changed.
        """
        staging = f"{self._settings.warehouse_path}/_staging"
        folder = f"{staging}/listing-{uuid.uuid4().hex}" if prefix else self._folder
        listing = self._listed(folder, prefix)
        # What an earlier process saw since it began that part is not known.
        return self._commit(folder, listing, prefix, cause, Since(unknown=listing.resumed and self._is_there))

    def begin_listing(self) -> Callable[[], Listing]:
        """What lists the whole volume, in a thread of its own while the volume is kept; :meth:`end_listing` takes it."""
        self._seen = Fold(self.volume.selection)
        return lambda: self._listed(self._folder, "")

    def end_listing(self, listing: Listing | None, cause: str = "reconcile") -> Reconciled | None:
        """Commits what a listing in the background found and what was seen since does not contradict.

        Args:
            listing: None: it failed.
        """
        seen, self._seen = self._seen, None
        if listing is None or seen is None:
            return None
        many = len(seen.keys) > _MOST_SEEN
        prefixes = tuple(prefix for prefix, _ in seen.listings())
        since = Since(frozenset() if many else frozenset(seen.keys), prefixes, unknown=many or listing.resumed)
        return self._commit(self._folder, listing, "", cause, since)

    @property
    def _folder(self) -> str:
        """Where the volume is listed as a whole. It stays when a process dies: the next one goes on."""
        return f"{self._settings.warehouse_path}/_listings/{self.volume.id}"

    @property
    def _is_there(self) -> bool:
        """Whether the directory was ever filled."""
        return self._catalog.refreshes.last(self.volume.id) is not None

    def _listed(self, folder: str, prefix: str) -> Listing:
        return listed(
            folder, self._store, prefix, self.volume.selection, settle_seconds=self._settings.settle_seconds,
            wait=self._wait,
        )  # fmt: skip

    def _commit(self, folder: str, listing: Listing, prefix: str, cause: str, since: Since) -> Reconciled:
        done = reconcile(
            self._writer, self._gateway, self._store, self._catalog, folder, listing, prefix=prefix, cause=cause,
            since=since,
        )  # fmt: skip
        self._catalog.refreshes.ask_check(self.volume.id, done.unsettled)
        _log.info(
            "reconciled", volume=str(self.volume.name), prefix=prefix, cause=cause, files=done.files,
            inserted=done.counts.inserted, updated=done.counts.updated, deleted=done.counts.deleted,
            findings=done.findings, unsettled=len(done.unsettled), seconds=round(done.seconds, 3),
        )  # fmt: skip
        return done

    def take(self, fold: Fold) -> Tick:
        """Makes the directory true for everything in ``fold``: listings first, then the single keys.

        Raises:
            StorageError, EngineLostError: nothing of the part in hand was committed; taking the fold again is right.
            FencedError: another writer took over.
        """
        total, commits = Counts(), 0
        for prefix, reason in fold.listings():
            done = self.reconcile(prefix, reason)
            total, commits = total + done.counts, commits + (done.commit is not None)
        keys = self._readable(fold.single_keys())
        if self._seen is not None:
            self._seen.keys |= fold.keys
            self._seen.subtrees |= fold.subtrees
        for start in range(0, len(keys), self._settings.tick_keys):
            chunk = keys[start : start + self._settings.tick_keys]
            refreshed = refresh_keys(self._writer, self._store, chunk, "events")
            counts, commit = refreshed.counts, refreshed.commit
            total, commits = total + counts, commits + (commit is not None)
            denied = [Rejection(printable(key), error.message) for key, error in refreshed.denied.items()]
            self._catalog.refreshes.reject(self.volume.id, denied)
            if commit is not None:
                _log.info(
                    "refreshed", volume=str(self.volume.name), keys=len(chunk), inserted=counts.inserted,
                    updated=counts.updated, deleted=counts.deleted, version=commit.version,
                )  # fmt: skip
        return Tick(total, commits)

    def prepare(self) -> None:
        """Does beforehand what the next commit begins with; for times when nothing else is to be done."""
        self._delta.prepare(self._writer.location)

    def tend(self) -> bool:
        """Puts the table's files in order, shortens its log and removes old files, where that is needed; for times when
        nothing else is to be done. Whether it made a commit."""
        started = time.monotonic()
        compacted = compact(self._delta, self._writer.location)
        if compacted:
            _log.info("compacted", volume=str(self.volume.name), seconds=round(time.monotonic() - started, 3))
        if not shorten(self._catalog, self._writer.location, self.volume, self._settings.directory_versions):
            return compacted
        if time.monotonic() < self._next_sweep:
            return compacted
        self._next_sweep = time.monotonic() + SWEPT_EVERY.total_seconds()
        swept = sweep(self._delta, self._writer.location)
        if swept:
            _log.info("old_files_removed", volume=str(self.volume.name), seconds=round(time.monotonic() - started, 3))
        return compacted or swept

    def asked(self) -> Mapping[Hint, datetime]:
        """What others asked this volume's writer to look at again, and when: files that have settled, and subtrees."""
        hints: dict[Hint, datetime] = {}
        for path, when in self._catalog.refreshes.asked_checks(self.volume.id, self._settings.tick_keys).items():
            if path == "" or path.endswith("/"):
                hints[SubtreeHint(path, "asked")] = when
            elif self._settled(path):
                hints[KeyHint(path)] = when
        return hints

    def answered(self, asked: Mapping[Hint, datetime]) -> None:
        """Forgets what :meth:`asked` returned, after it was taken."""
        paths = {hint.path if isinstance(hint, KeyHint) else hint.prefix: when for hint, when in asked.items()}
        self._catalog.refreshes.checked(self.volume.id, paths)

    def _settled(self, path: str) -> bool:
        if isinstance(self._store, KeyOrdered):
            return True  # its objects appear whole
        now = self._store.head(path)
        age = None if now is None else (datetime.now(UTC) - now.last_modified_time).total_seconds()
        return age is None or abs(age) >= self._settings.settle_seconds

    def _readable(self, keys: list[str]) -> list[str]:
        """``keys`` without those that no row can hold, which are kept as rejected."""
        odd = [key for key in keys if not is_utf8(key)]
        if odd:
            reason = "Its name is not UTF-8, so that no table can hold it."
            self._catalog.refreshes.reject(self.volume.id, [Rejection(printable(key), reason) for key in odd])
        return [key for key in keys if is_utf8(key)]

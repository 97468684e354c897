"""Keeps one volume's directory table true: what a tick of hints comes to, in refreshes and reconciles.

To be used by the holder of the volume's lease, in one thread; :func:`lease_name` names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.delta.writer import DeltaWriter
from volstream.directory.compact import compact
from volstream.directory.fold import Fold
from volstream.directory.reconcile import Reconciled, reconcile
from volstream.directory.refresh import refresh_keys
from volstream.directory.writer import Counts, DirectoryWriter
from volstream.log import get
from volstream.model.files import is_utf8, printable
from volstream.model.hints import Hint, KeyHint, Rejection, SubtreeHint
from volstream.model.objects import Volume
from volstream.storage import open_store

if TYPE_CHECKING:
    from volstream.spark.session import SparkGateway

_log = get("directory")


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
        self._store = open_store(volume.location)
        self._delta = DeltaWriter(gateway)
        self._writer = DirectoryWriter(volume, catalog, self._delta, settings.warehouse_path)

    def reconcile(self, prefix: str = "", cause: str = "reconcile") -> Reconciled:
        """Lists everything below ``prefix`` (empty, or ending in ``/``) and commits what differs.

        Files that are still being written are left for later, and asked for again.
        """
        done = reconcile(
            self._writer, self._gateway, self._store, self._catalog, f"{self._settings.warehouse_path}/_staging",
            prefix=prefix, cause=cause, settle_seconds=self._settings.settle_seconds, wait=self._wait,
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
        for start in range(0, len(keys), self._settings.tick_keys):
            chunk = keys[start : start + self._settings.tick_keys]
            counts, commit = refresh_keys(self._writer, self._store, chunk, "events")
            total, commits = total + counts, commits + (commit is not None)
            if commit is not None:
                _log.info(
                    "refreshed", volume=str(self.volume.name), keys=len(chunk), inserted=counts.inserted,
                    updated=counts.updated, deleted=counts.deleted, version=commit.version,
                )  # fmt: skip
        return Tick(total, commits)

    def compact(self) -> bool:
        """Puts the table's files in order, where that is needed; for times when nothing else is to be done."""
        started = time.monotonic()
        done = compact(self._delta, self._writer.location)
        if done:
            _log.info("compacted", volume=str(self.volume.name), seconds=round(time.monotonic() - started, 3))
        return done

    def asked(self) -> list[Hint]:
        """What others asked this volume's writer to look at again: files that have settled, and subtrees."""
        hints: list[Hint] = []
        for path in self._catalog.refreshes.asked_checks(self.volume.id, self._settings.tick_keys):
            if path == "" or path.endswith("/"):
                hints.append(SubtreeHint(path, "asked"))
            elif self._settled(path):
                hints.append(KeyHint(path))
        return hints

    def answered(self, hints: list[Hint]) -> None:
        """Forgets what :meth:`asked` returned, after it was taken."""
        paths = [hint.path if isinstance(hint, KeyHint) else hint.prefix for hint in hints]
        self._catalog.refreshes.checked(self.volume.id, paths)

    def _settled(self, path: str) -> bool:
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

"""Keeps disk and catalog from growing: removes what crashes left, and what ended long ago.

What is needed and what is not, those know whose it is: the catalog its history, the functions their folders.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from volstream.catalog import Catalog
from volstream.config import Settings
from volstream.delta import folders
from volstream.delta.places import reached
from volstream.functions.file import COPIES
from volstream.functions.source import forget_unused
from volstream.jobs import logs
from volstream.jvm import log_file
from volstream.lifecycle.backoff import Backoff
from volstream.lifecycle.stop import Stop
from volstream.lifecycle.supervisor import run_loop
from volstream.log import get

_log = get("housekeeping")

#: What nobody has written to for so long is of nobody who still works on it. A batch takes minutes.
_LEFT = timedelta(days=1)

#: How often the JVM's log is looked at, and how often all else.
_LOOK_SECONDS, _SWEEP_SECONDS = 60.0, 3600.0


class Housekeeper:
    """Sweeps while a daemon runs."""

    def __init__(self, catalog: Catalog, settings: Settings, stop: Stop) -> None:
        self._catalog = catalog
        self._settings = settings
        self._stop = stop
        self._next = time.monotonic()

    def run(self) -> None:
        """The thread: returns when it is stopped."""
        run_loop("housekeeping", self._tick, self._stop, _log, Backoff(cap_seconds=600.0), survives=lambda _: True)

    def _tick(self) -> None:
        log_file.roll(self._settings.log_directory)
        if time.monotonic() >= self._next:
            self.sweep()
            self._next = time.monotonic() + _SWEEP_SECONDS
        self._stop.wait(_LOOK_SECONDS)

    def sweep(self) -> None:
        """Removes what is not needed any more, here and in the warehouse."""
        before = self._settings.history_begins()
        warehouse = self._settings.warehouse_path
        with reached(warehouse):
            clean(self._catalog, warehouse, alone=False)
            for job in self._catalog.jobs.list(statement=None):
                logs.trim(logs.location_of(warehouse, job.id), self._settings.log_bytes, before)
        forget_unused()
        _clean_temporary()
        forgotten = self._catalog.history.forget(before, kept=self._settings.directory_versions)
        if forgotten:
            _log.info("history_forgotten", entries=forgotten)


def clean(catalog: Catalog, warehouse: str, *, alone: bool) -> None:
    """Removes what crashes left in the warehouse: staged outcomes, plans, listings and logs that nothing refers to.

    Plans of open consumptions stay, listings of volumes that there are, which are gone on with, and logs of jobs that there are;
    staged outcomes of attempts never outlive their attempt.

    Args:
        alone: nobody else can be at work in the warehouse, nor this process. Otherwise what was written to within a day
            stays: a plan that is being made is in no catalog yet, and another host's batch may be staged right now.
    """
    plans = {*catalog.consumptions.open_plans()}
    volumes = {volume.id for volume in catalog.volumes.list()}
    kept = {
        "_plans": plans,
        "_staging": set[str](),
        "_listings": {*volumes, *(f"{one}-beside" for one in volumes)},
        "_logs": {job.id for job in catalog.jobs.list()},
    }
    found = [
        f"{warehouse}/{kind}/{name}"
        for kind, needed in kept.items()
        for name in folders.inside(f"{warehouse}/{kind}")
        if name not in needed
    ]
    now = datetime.now(UTC)
    gone = [location for location in found if alone or now - folders.last_written(location) > _LEFT]
    for location in gone:
        folders.remove(location)
    if gone:
        _log.info("leftovers_removed", folders=len(gone))


def _clean_temporary() -> None:
    """Removes copies of files that killed workers left on this host."""
    before = time.time() - _LEFT.total_seconds()
    for folder in Path(tempfile.gettempdir()).glob(f"{COPIES}*"):
        found = folder.lstat()
        if folder.is_dir() and not folder.is_symlink() and found.st_uid == os.getuid() and found.st_mtime < before:
            shutil.rmtree(folder, ignore_errors=True)

"""Bounds the growth of disk and catalog: removes leftovers of crashes, and old history.

The owners decide what is still needed: the catalog for history, functions for folders.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from volstream.api.statements.metastore import register
from volstream.base.config import Settings
from volstream.base.definitions import FileJob
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker, Stop, run_loop
from volstream.catalog import Catalog
from volstream.errors import VolstreamError
from volstream.functions.file import COPIES
from volstream.functions.source import forget_unused
from volstream.home import Home
from volstream.jobs.batches import logs, outputs
from volstream.jobs.batches.ledger import LOGS, STORES
from volstream.jobs.batches.step_values import sweep_step_values
from volstream.ops.backup import SCRATCH
from volstream.spark.jvm import log_file
from volstream.tables.delta import places
from volstream.tables.delta.places import reached
from volstream.tables.delta.writer import HOUR

# Keeps the metastore of the setting ``metastore`` in line with the home's tables.

_log = get("metastore")

#: Interval of checks for created and dropped tables, and of checks of all entries.
_METASTORE_SECONDS, _CHECK_SECONDS = 10.0, 3600.0


class Registrar:
    """Registers tables while a daemon runs, in its own thread: an unresponsive metastore delays nothing else.

    Args:
        is_up: returns whether the engine is up.
    """

    def __init__(self, home: Home, is_up: Callable[[], bool], stop: Stop) -> None:
        self._home = home
        self._is_up = is_up
        self._stop = stop
        self._next_check = time.monotonic()

    def run(self) -> None:
        """Returns when stopped."""
        trouble = FailureTracker("registration", _log, Backoff(first_seconds=_METASTORE_SECONDS))
        run_loop(self._tick, self._stop, trouble)

    def _tick(self) -> None:
        if self._is_up():
            check = time.monotonic() >= self._next_check
            if check:
                self._next_check = time.monotonic() + _CHECK_SECONDS
            register(self._home, check=check)
        self._stop.wait(_METASTORE_SECONDS)


#: A folder without writes for this long is no longer in use. A batch takes minutes.
_LEFTOVER_AGE = timedelta(days=1)

#: Interval of checks of the JVM's log, and of sweeps of everything else.
_LOG_SECONDS, _SWEEP_SECONDS = 60.0, 3600.0


class Housekeeper:
    """Sweeps periodically while a daemon runs."""

    def __init__(self, catalog: Catalog, settings: Settings, stop: Stop) -> None:
        self._catalog = catalog
        self._settings = settings
        self._stop = stop
        self._next = time.monotonic()

    def run(self) -> None:
        """Runs in its own thread. Returns when stopped."""
        run_loop(self._tick, self._stop, FailureTracker("housekeeping", _log, Backoff(cap_seconds=600.0)))

    def _tick(self) -> None:
        log_file.roll(self._settings.log_directory)
        if time.monotonic() >= self._next:
            self.sweep()
            self._next = time.monotonic() + _SWEEP_SECONDS
        self._stop.wait(_LOG_SECONDS)

    def sweep(self) -> None:
        """Removes unneeded files on this host and in the warehouse."""
        sweep_outputs = partial(outputs.sweep, self._catalog, self._settings)
        failed: Exception | None = None
        for step in (self._sweep_warehouse, sweep_outputs, forget_unused, _clean_temporary, self._forget_history):
            try:
                step()
            except (VolstreamError, OSError) as error:  # an outage must not delay the rest
                failed = failed or error
        if failed is not None:
            raise failed

    def _sweep_warehouse(self) -> None:
        warehouse, before = self._settings.warehouse_path, self._settings.history_begins()
        with reached(warehouse):
            clean(self._catalog, warehouse)
            for job in self._catalog.jobs.list(statement=None):
                logs.trim(LOGS.of(warehouse, job.id), self._settings.log_bytes, before)
                if isinstance(job, FileJob):
                    sweep_step_values(self._catalog, warehouse, job)

    def _forget_history(self) -> None:
        versions = self._settings.directory_versions
        forgotten = self._catalog.history.forget(self._settings.history_begins(), kept=versions)
        if forgotten:
            _log.info("history_forgotten", entries=forgotten)


def clean(catalog: Catalog, warehouse: str) -> None:
    """Removes leftovers of crashes in the warehouse to which nothing refers: staged outcomes, plans,
    listings, the stores of jobs.

    Plans of open consumptions stay, as do listings of existing volumes, which are resumed, and the stores of
    existing jobs. Staged outcomes never outlive their attempt. Folders written within a day stay, too:
    another process may be working even in a home that this one owns, because some work needs no engine.
    """
    plans = {*catalog.consumptions.open_plans()}
    volumes = {volume.id for volume in catalog.volumes.list()}
    jobs = {job.id for job in catalog.jobs.list()}
    needed_by_kind = {
        "_plans": plans,
        places.STAGING: set[str](),
        "_listings": {*volumes, *(f"{volume}-beside" for volume in volumes)},
        **{store.folder: jobs for store in STORES},
    }
    unneeded = [
        f"{warehouse}/{kind}/{name}"
        for kind, needed in needed_by_kind.items()
        if not places.is_link(f"{warehouse}/{kind}")  # made by somebody else: it may lead anywhere
        for name in places.inside(f"{warehouse}/{kind}")
        if name not in needed
    ]
    now = datetime.now(UTC)
    leftovers = [location for location in unneeded if now - (_hour_of(location) or places.last_written(location)) > _LEFTOVER_AGE]
    for location in leftovers:
        places.discard(location, within=warehouse)
    if leftovers:
        _log.info("leftovers_removed", folders=len(leftovers))


def _hour_of(location: str) -> datetime | None:
    """Returns the end of the hour whose excerpts a folder holds, or None for other folders. Excerpts are too
    many to list."""
    try:
        return datetime.strptime(location.rpartition("/")[2], HOUR).replace(tzinfo=UTC) + timedelta(hours=1)
    except ValueError:
        return None


def _clean_temporary() -> None:
    """Removes copies that killed workers and restores left on this host."""
    before = time.time() - _LEFTOVER_AGE.total_seconds()
    temporary = Path(tempfile.gettempdir())
    for folder in (*temporary.glob(f"{COPIES}*"), *temporary.glob(f"{SCRATCH}*")):
        status = folder.lstat()
        if folder.is_dir() and not folder.is_symlink() and status.st_uid == os.getuid() and status.st_mtime < before:
            shutil.rmtree(folder, ignore_errors=True)

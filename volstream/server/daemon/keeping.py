"""Keeps the volumes of a cluster: follows their definitions, gives each daemon an even share, and lets each
volume work when due, in a few threads for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from volstream.base.config import Settings
from volstream.base.definitions import Connection, Volume
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker, Steps, Stop, run_loop
from volstream.catalog import Catalog
from volstream.catalog.database import Version
from volstream.catalog.definitions import DefinitionCache
from volstream.catalog.leases import of_volume
from volstream.errors import CatalogError
from volstream.files.queues.base import EventQueue
from volstream.files.volumes.access import queue_of
from volstream.files.volumes.routing import Routing
from volstream.server.daemon.sharing import ClusterMembers, Receivers, Share
from volstream.server.daemon.volumes import VolumeWorker

_log = get("daemon")

#: Interval of checks of the catalog.
_CHECK_SECONDS = 0.5

#: Interval at which the cluster's daemons are counted.
_DIVIDE_SECONDS = 3.0

#: Number of threads for the steps of volumes, and for listings. They are started on demand.
_STEPPING, _LISTING = 12, 8


@dataclass
class VolumeKeeping:
    """Keeps the volumes of a virtual cluster until the stop signal.

    Args:
        changed: called after each commit, with the volume's id.
        disabled: returns why this daemon cannot run jobs, or None if it can.
        queue_of: makes a volume's queue, for each turn.

    Attributes:
        is_looking: it has begun to follow the catalog.
    """

    catalog: Catalog
    settings: Settings
    virtual_cluster: str
    stop: Stop
    changed: Callable[[str], None] = lambda _: None
    disabled: Callable[[], str | None] = lambda: None
    queue_of: Callable[[Volume, Catalog, Settings], EventQueue] = queue_of

    def __post_init__(self) -> None:
        self.is_looking = False
        self._trouble = FailureTracker("volumes", _log, Backoff())
        self._share = Share()
        self._members = ClusterMembers(self.catalog.leases, self.virtual_cluster, self.settings.lease_seconds)
        self._steps = Steps(_STEPPING, "volume")
        self._listings = ThreadPoolExecutor(_LISTING, thread_name_prefix="listing")
        self._volumes = DefinitionCache(self.catalog.volumes)
        self._connections: Mapping[str, Connection] = {}
        self._receivers = Receivers(self._pass_on, Routing(self.catalog))
        self._seen: Version | None = None  # the catalog's version at the last check
        self._divides_at = 0.0
        self._workers: dict[str, VolumeWorker] = {}

    @property
    def workers(self) -> Sequence[VolumeWorker]:
        """The workers of all volumes of the cluster."""
        return list(self._workers.values())

    @property
    def kept(self) -> Sequence[VolumeWorker]:
        """The workers of the volumes that this daemon keeps, in a constant order."""
        return [worker for worker in self.workers if worker.holds]

    def keeps(self, volume_id: str) -> bool:
        """Returns whether this daemon keeps a volume."""
        worker = self._workers.get(volume_id)
        return worker is not None and worker.holds

    @property
    def failing(self) -> dict[str, str]:
        """Why volumes cannot be kept, by their names."""
        reasons = {worker: worker.reason or (None if worker.holds else self._trouble.reason) for worker in self.workers}
        return {str(worker.volume.name): reason for worker, reason in reasons.items() if reason is not None}

    def run(self) -> None:
        """Runs the steps of volumes in threads. Returns when stopped, after all turns have ended."""
        try:
            self._steps.run()
        finally:
            self._listings.shutdown(wait=False, cancel_futures=True)

    def follow(self) -> None:
        """Follows the catalog until stopped. Runs in its own thread."""
        try:
            run_loop(self._check, self.stop, self._trouble)
        finally:
            with suppress(CatalogError):  # the others notice when the lease expires
                self._members.leave()
            for worker in self.workers:
                worker.end()
            self._steps.end()

    def _check(self) -> None:
        version = self.catalog.database.version()
        changed = version != self._seen
        if changed:
            self._read_changes()
        if changed or time.monotonic() >= self._divides_at:  # a killed daemon makes no commit
            disabled = self.disabled()
            self._share.divide(len(self._workers), self._members.count(disabled), disabled=disabled is not None)
            self._divides_at = time.monotonic() + _DIVIDE_SECONDS
        self._seen = version  # only now, so that failed work is retried
        kept = self.kept
        for worker in kept[self._share.maximum :]:
            worker.hand_over()
        free = self._share.maximum - len(kept)
        if free > 0 and len(kept) < len(self._workers):
            leased = {lease.name for lease in self.catalog.leases.held(of_volume(""))}
            waiting = [worker for worker in self.workers if worker.waits and of_volume(worker.volume.id) not in leased]
            for worker in waiting[:free]:
                worker.wake()
        self.is_looking = True
        self.stop.wait(_CHECK_SECONDS)

    def _read_changes(self) -> None:
        """Reads changes: starts to keep new volumes, ends dropped ones, and passes on requests."""
        before = self._volumes.all
        changed = {volume.id for volume in self._volumes.follow()}
        if self._volumes.all is not before:
            self._receivers.routing.follow()
        connections = {each.id: each for each in self.catalog.connections.list()}
        altered = {identity for identity, each in self._connections.items() if connections.get(identity) != each}
        self._connections = connections
        cluster = self.virtual_cluster.upper()
        wanted = {each.id: each for each in self._volumes.all.values() if each.virtual_cluster.upper() == cluster}
        for volume_id in self._workers.keys() - wanted.keys():
            self._workers.pop(volume_id).end()
            _log.info("volume_dropped", volume_id=volume_id)
        for volume_id in wanted.keys() & self._workers.keys() & changed:
            self._workers[volume_id].follow(wanted[volume_id])
        for volume_id in self._workers.keys() & {each.id for each in wanted.values() if each.connection_id in altered}:
            self._workers[volume_id].hand_over()
        for volume_id in wanted.keys() - self._workers.keys():
            self._add(wanted[volume_id])
        self._pass_on(self.catalog.refreshes.asked_volumes())

    def _pass_on(self, volume_ids: Iterable[str]) -> None:
        """Wakes this daemon's volumes that a user asked to refresh."""
        for worker in filter(None, map(self._workers.get, volume_ids)):
            worker.ask()

    def _add(self, volume: Volume) -> None:
        worker = VolumeWorker(
            volume, self.catalog, self.settings, self.changed, self._share, self._listings, self._receivers, self.queue_of
        )
        self._workers[volume.id] = worker
        worker.add_step = self._steps.add
        worker.wake = self._steps.add(worker.step).wake

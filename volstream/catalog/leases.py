"""Leases record who does what. They save work and order takeovers. Delta's fences, not leases, ensure
safety."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, delete, select, tuple_, update

from volstream.base.model.work import groups
from volstream.base.processes import is_gone
from volstream.catalog.database import MAX_BOUND, Database
from volstream.catalog.tables import leases
from volstream.errors import CatalogError

#: The longest plausible lease. An expiry farther ahead than this, and than ten times the next owner's lease,
#: comes from a database clock that was ahead, and is ignored.
_FARTHEST_SECONDS = 900.0

#: Leases of the daemon that decides which alerts are sent, of the process that restores a backup, and of the
#: process that registers tables in the metastore.
ALERTS, RESTORE, REGISTRATION = "alerts", "restore", "registration"

_JOB = "job:"


def of_volume(volume_id: str) -> str:
    """Returns the name of the lease whose holder is the volume's only writer."""
    return f"volume:{volume_id}"


def of_stream(stream_id: str) -> str:
    """Returns the name of the lease whose holder consumes the stream by statements."""
    return f"stream:{stream_id}"


def of_job(job_id: str) -> str:
    """Returns the name of the lease whose holder runs the job."""
    return f"{_JOB}{job_id}"


def of_source(source_id: str) -> str:
    """Returns the name of the lease whose holder reads the source."""
    return f"source:{source_id}"


def of_commits(location: str) -> str:
    """Returns the name of the lease whose holder commits rows that arrived for the table at a location."""
    return f"commits:{_digest(location)}"


def of_columns(location: str) -> str:
    """Returns the name of the lease whose holder changes the columns of the table at a location."""
    return f"columns:{_digest(location)}"


def of_creation(table: str) -> str:
    """Returns the name of the lease whose holder creates the table with this name."""
    return f"creation:{_digest(table)}"


def of_version(table: str) -> str:
    """Returns the name of the lease whose holder creates a version of the immutable table with this name."""
    return f"version:{_digest(table)}"


def of_tasks(virtual_cluster: str) -> str:
    """Returns the name of the lease whose holder does the tasks queued in the consoles of a cluster's
    daemons."""
    return f"tasks:{virtual_cluster}"


def of_daemons(virtual_cluster: str | None = None) -> str:
    """Returns the common prefix of the names of the leases of a cluster's daemons, or of all daemons."""
    return "daemon:" if virtual_cluster is None else f"daemon:{virtual_cluster.upper()}:"


#: Prefix of the purpose of a daemon's lease if the daemon cannot run jobs. The reason follows.
DISABLED = "a daemon without an engine: "


def _digest(text: str) -> str:
    """Shortens text for use in a name, which has up to 200 characters."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Lease:
    """A held lease. ``expires`` is in epoch seconds by the database's clock."""

    name: str
    owner: str
    purpose: str
    expires: float


_RELEASE = delete(leases).where(leases.c.name == bindparam("this"), leases.c.owner == bindparam("mine"))


class Leases:
    """Rows of ``leases``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.keeper = Keeper(self)

    def acquire(self, name: str, owner: str, purpose: str, seconds: float) -> Lease | None:
        """Takes or renews the lease for ``seconds``. Returns None on success, else the lease that prevents
        it.

        A lease is free if it has expired, if its owner was a process on this host that no longer exists, or
        if it was taken while the clock was ahead.
        """
        with self._database.transaction() as transaction:
            now = self._database.now(transaction)
            values = {"name": name, "owner": owner, "purpose": purpose, "expires": now + seconds}
            row = None
            while row is None:  # retry if the holder releases it between the two statements
                if self._database.add_missing(transaction, leases, ["name"], [values]):
                    return None
                row = transaction.execute(select(leases).where(leases.c.name == name).with_for_update()).one_or_none()
            if row.owner != owner and _holds(row, now, seconds):
                return Lease(*row)
            transaction.execute(update(leases).where(leases.c.name == name).values(**values))
            return None

    def is_free(self, name: str, seconds: float) -> bool:
        """True if a new owner could :meth:`acquire` the lease. Commits nothing: each commit wakes all
        daemons."""
        with self._database.reading() as transaction:
            now = self._database.now(transaction)
            row = transaction.execute(select(leases).where(leases.c.name == name)).one_or_none()
            return row is None or not _holds(row, now, seconds)

    def extend(self, pairs: Sequence[tuple[str, str]], seconds: float) -> set[str]:
        """Renews leases, given by name and owner, in one transaction. Returns the names of leases still
        held."""
        extended: set[str] = set()
        with self._database.transaction() as transaction:
            expires = self._database.now(transaction) + seconds
            for batch in groups(sorted(pairs), MAX_BOUND // 2):
                mine = tuple_(leases.c.name, leases.c.owner).in_(batch)
                transaction.execute(update(leases).where(mine).values(expires=expires))
                extended |= {row.name for row in transaction.execute(select(leases.c.name).where(mine))}
        return extended

    def release(self, name: str, owner: str) -> None:
        """Releases the lease. Does nothing if another owner has it by now."""
        self._database.write(_RELEASE, this=name, mine=owner)

    def held(self, prefix: str = "") -> Sequence[Lease]:
        """Returns unexpired leases, unless their owners are known to be dead. ``prefix`` filters by name."""
        with self._database.reading() as transaction:
            now = self._database.now(transaction)
            matches = leases.c.name.startswith(prefix, autoescape=True)
            rows = transaction.execute(select(leases).where(leases.c.expires > now, matches).order_by(leases.c.name))
            return [Lease(*row) for row in rows if _holds(row, now, 0.0)]

    def running_jobs(self) -> frozenset[str]:
        """Returns the ids of jobs that a process is currently running."""
        return frozenset(found.name.removeprefix(_JOB) for found in self.held(_JOB))


def _holds(row: Any, now: float, seconds: float) -> bool:
    """True if the owner of a lease still has it."""
    return now < row.expires <= now + max(_FARTHEST_SECONDS, 10 * seconds) and not is_gone(row.owner)


@contextmanager
def lease(
    leases_: Leases, name: str, owner: str, purpose: str, seconds: float, lost: Callable[[], object] = lambda: None
) -> Iterator[Lease | None]:
    """Holds a lease while the block runs, and renews it in the background. Releases it at the end, or as soon
    as the catalog is writable.

    Args:
        lost: called once if another process holds the lease, or may hold it because renewals failed for
            ``seconds``. Runs in another thread and must not block. The block should then end. If it does not,
            the other process's fence decides.

    Yields:
        None if the lease is held, else the lease that prevents it. In that case the block should do no work.
    """
    leases_.keeper.cancel_release(name, owner)
    other = leases_.acquire(name, owner, purpose, seconds)
    if other is not None:
        yield other
        return
    now = time.monotonic()
    held_lease = _HeldLease(name, owner, purpose, seconds, lost, now, now)
    leases_.keeper.add(held_lease)
    try:
        yield None
    finally:
        leases_.keeper.remove(held_lease)
        try:
            leases_.release(name, owner)
        except CatalogError:
            leases_.keeper.release_later(held_lease)


#: Delay before the retry of a failed release.
_RETRY_SECONDS = 1.0


@dataclass(eq=False)
class _HeldLease:
    name: str
    owner: str
    purpose: str
    seconds: float
    lost: Callable[[], object]
    renewed: float  # both monotonic
    tried: float

    @property
    def due(self) -> float:
        """The time of the next renewal (monotonic)."""
        return self.tried + self.seconds / 3


class Keeper:
    """Renews the leases that a process holds, in one thread and with one statement for any number of leases.

    Each renewal is a commit and wakes everyone who polls the catalog for changes.
    """

    def __init__(self, leases_: Leases) -> None:
        self._leases = leases_
        self._held_leases: set[_HeldLease] = set()
        self._unreleased: list[_HeldLease] = []  # the catalog was not writable at their end
        self._lock = threading.Lock()  # held during a renewal, so that none follows a release
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._soonest = 0.0  # time of the next renewal (monotonic)

    def add(self, held_lease: _HeldLease) -> None:
        """Renews a lease from now on."""
        with self._lock:
            self._held_leases.add(held_lease)
            is_next = held_lease.due < self._soonest
            self._start()
        if is_next:
            self._changed.set()

    def release_later(self, held_lease: _HeldLease) -> None:
        """Releases a lease as soon as the catalog can be written."""
        with self._lock:
            self._unreleased.append(held_lease)
            self._start()
        self._changed.set()

    def cancel_release(self, name: str, owner: str) -> None:
        """Cancels the pending release of a lease that its owner takes again."""
        with self._lock:
            self._unreleased = [item for item in self._unreleased if (item.name, item.owner) != (name, owner)]

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
            self._thread.start()

    def remove(self, held_lease: _HeldLease) -> None:
        """Stops renewing a lease."""
        with self._lock:
            self._held_leases.discard(held_lease)
            is_empty = not self._held_leases
        if is_empty:
            self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            with self._lock:
                now = time.monotonic()
                # drop expired ones
                self._unreleased = [item for item in self._unreleased if now < item.renewed + item.seconds]
                with suppress(CatalogError):
                    while self._unreleased:
                        self._leases.release(self._unreleased[-1].name, self._unreleased[-1].owner)
                        self._unreleased.pop()
                if not self._held_leases and not self._unreleased:
                    self._thread = None
                    return
                for seconds in {item.seconds for item in self._held_leases if item.due <= now}:
                    # All of them with the first that is due, so that there is one commit per interval.
                    self._renew([item for item in self._held_leases if item.seconds == seconds], seconds)
                retries = [now + _RETRY_SECONDS] if self._unreleased else []
                self._soonest = min((*(item.due for item in self._held_leases), *retries), default=0.0)
            self._changed.wait(max(self._soonest - time.monotonic(), 0.0))

    def _renew(self, due: Sequence[_HeldLease], seconds: float) -> None:
        now = time.monotonic()
        for one in due:
            one.tried = now
        with suppress(CatalogError):
            extended = self._leases.extend([(one.name, one.owner) for one in due], seconds)
            for one in due:
                if one.name in extended:
                    one.renewed = now
            for one in due:
                if one.name not in extended:
                    if self._leases.acquire(one.name, one.owner, one.purpose, seconds) is not None:
                        self._lose(one)
                    one.renewed = now
        for one in due:
            if time.monotonic() - one.renewed >= seconds:
                self._lose(one)

    def _lose(self, one: _HeldLease) -> None:
        if one in self._held_leases:
            self._held_leases.remove(one)
            one.lost()

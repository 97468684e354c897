"""Leases record who does what. They save work and order takeovers; safety rests on Delta's fences, not on leases."""

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

#: The longest plausible lease. An expiry farther ahead than this, or than ten times what the next owner asks for, comes from a
#: clock of the database that was ahead, and is ignored.
_FARTHEST_SECONDS = 900.0

#: Held by the daemon that decides which alerts are sent, by the process that restores a backup, and by the one that registers
#: tables in the metastore.
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
    """Returns the name of the lease whose holder makes a version of the immutable table with this name."""
    return f"version:{_digest(table)}"


def of_tasks(virtual_cluster: str) -> str:
    """Returns the name of the lease whose holder does the tasks that the consoles of a cluster's daemons are asked for."""
    return f"tasks:{virtual_cluster}"


def of_daemons(virtual_cluster: str | None = None) -> str:
    """Returns the common prefix of the names of the leases of a cluster's daemons, or of all daemons."""
    return "daemon:" if virtual_cluster is None else f"daemon:{virtual_cluster.upper()}:"


#: How the purpose of the lease of a daemon begins that cannot run jobs; the reason follows.
DISABLED = "a daemon without an engine: "


def _digest(text: str) -> str:
    """Shortens text of any length for use in a name, which has up to 200 characters."""
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
        """Takes or renews the lease for ``seconds``; returns None on success, else the lease that prevents it.

        A lease is free if it has expired, if its owner was a process on this host that no longer exists, or if it was taken
        while the clock was ahead of the present time.
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
        """Returns whether a new owner could :meth:`acquire` the lease. Commits nothing: each commit wakes all daemons."""
        with self._database.reading() as transaction:
            now = self._database.now(transaction)
            row = transaction.execute(select(leases).where(leases.c.name == name)).one_or_none()
            return row is None or not _holds(row, now, seconds)

    def extend(self, held: Sequence[tuple[str, str]], seconds: float) -> set[str]:
        """Renews leases, given by name and owner, in one transaction; returns the names of those that their owners still had."""
        extended: set[str] = set()
        with self._database.transaction() as transaction:
            expires = self._database.now(transaction) + seconds
            for some in groups(sorted(held), MAX_BOUND // 2):
                mine = tuple_(leases.c.name, leases.c.owner).in_(some)
                transaction.execute(update(leases).where(mine).values(expires=expires))
                extended |= {row.name for row in transaction.execute(select(leases.c.name).where(mine))}
        return extended

    def release(self, name: str, owner: str) -> None:
        """Releases the lease; does nothing if another owner has it by now."""
        self._database.write(_RELEASE, this=name, mine=owner)

    def held(self, prefix: str = "") -> Sequence[Lease]:
        """Returns unexpired leases whose owners are alive, as far as is known; with ``prefix``, of names that begin so."""
        with self._database.reading() as transaction:
            now = self._database.now(transaction)
            mine = leases.c.name.startswith(prefix, autoescape=True)
            rows = transaction.execute(select(leases).where(leases.c.expires > now, mine).order_by(leases.c.name))
            return [Lease(*row) for row in rows if _holds(row, now, 0.0)]

    def running_jobs(self) -> frozenset[str]:
        """Returns the ids of jobs that a process is running now."""
        return frozenset(held.name.removeprefix(_JOB) for held in self.held(_JOB))


def _holds(row: Any, now: float, seconds: float) -> bool:
    """Returns whether the owner of a lease still has it."""
    return now < row.expires <= now + max(_FARTHEST_SECONDS, 10 * seconds) and not is_gone(row.owner)


@contextmanager
def lease(
    leases_: Leases, name: str, owner: str, purpose: str, seconds: float, lost: Callable[[], object] = lambda: None
) -> Iterator[Lease | None]:
    """Holds a lease while the block runs, renewing it in the background; releases it at the end, or once the catalog takes that.

    Args:
        lost: called once, from a thread in which it must not wait, when another process holds the lease, or may hold it because
            renewing failed for ``seconds``. The block should then end; if it does not, the other process's fence decides.

    Yields:
        None if the lease is held, else the lease that prevents it; the block should then do no work.
    """
    leases_.keeper.release_no_more(name, owner)
    other = leases_.acquire(name, owner, purpose, seconds)
    if other is not None:
        yield other
        return
    now = time.monotonic()
    kept = _Kept(name, owner, purpose, seconds, lost, now, now)
    leases_.keeper.add(kept)
    try:
        yield None
    finally:
        leases_.keeper.remove(kept)
        try:
            leases_.release(name, owner)
        except CatalogError:
            leases_.keeper.release_later(kept)


#: How long after a release that failed it is tried again.
_AGAIN_SECONDS = 1.0


@dataclass(eq=False)
class _Kept:
    name: str
    owner: str
    purpose: str
    seconds: float
    lost: Callable[[], object]
    renewed: float  # both monotonic
    tried: float

    @property
    def due(self) -> float:
        """When it is to be renewed (monotonic)."""
        return self.tried + self.seconds / 3


class Keeper:
    """Renews the leases that a process holds, in one thread and with one statement, however many there are: each renewal is a
    commit, which wakes everybody who looks for changes of the catalog."""

    def __init__(self, leases_: Leases) -> None:
        self._leases = leases_
        self._kept: set[_Kept] = set()
        self._unreleased: list[_Kept] = []  # at their end the catalog could not be written
        self._lock = threading.Lock()  # held during a renewal, so that none follows a release
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None
        self._soonest = 0.0  # when the next one is due (monotonic)

    def add(self, kept: _Kept) -> None:
        """Renews a lease from now on."""
        with self._lock:
            self._kept.add(kept)
            is_next = kept.due < self._soonest
            self._start()
        if is_next:
            self._changed.set()

    def release_later(self, kept: _Kept) -> None:
        """Releases a lease as soon as the catalog can be written."""
        with self._lock:
            self._unreleased.append(kept)
            self._start()
        self._changed.set()

    def release_no_more(self, name: str, owner: str) -> None:
        """Forgets the release of a lease, which its owner is to take again."""
        with self._lock:
            self._unreleased = [one for one in self._unreleased if (one.name, one.owner) != (name, owner)]

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
            self._thread.start()

    def remove(self, kept: _Kept) -> None:
        """Stops renewing a lease."""
        with self._lock:
            self._kept.discard(kept)
            none_left = not self._kept
        if none_left:
            self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            with self._lock:
                now = time.monotonic()
                self._unreleased = [one for one in self._unreleased if now < one.renewed + one.seconds]  # others have expired
                with suppress(CatalogError):
                    while self._unreleased:
                        self._leases.release(self._unreleased[-1].name, self._unreleased[-1].owner)
                        self._unreleased.pop()
                if not self._kept and not self._unreleased:
                    self._thread = None
                    return
                for seconds in {one.seconds for one in self._kept if one.due <= now}:
                    # All with the first that is due: so there is one commit in this time.
                    self._renew([one for one in self._kept if one.seconds == seconds], seconds)
                again = [now + _AGAIN_SECONDS] if self._unreleased else []
                self._soonest = min((*(one.due for one in self._kept), *again), default=0.0)
            self._changed.wait(max(self._soonest - time.monotonic(), 0.0))

    def _renew(self, due: Sequence[_Kept], seconds: float) -> None:
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

    def _lose(self, one: _Kept) -> None:
        if one in self._kept:
            self._kept.remove(one)
            one.lost()

"""Leases record who does what. They save work and order takeovers; safety rests on Delta's fences, not on leases."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import delete, select, update

from volstream.base.lifecycle.identity import is_gone
from volstream.catalog.database import Database
from volstream.catalog.tables import leases
from volstream.errors import CatalogError

#: An expiry farther ahead than this, or than ten times what the next owner asks for, was written while the database's clock was
#: ahead: leases are shorter, and are renewed.
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


def of_creation(table: str) -> str:
    """Returns the name of the lease whose holder creates the table with this name."""
    return f"creation:{_digest(table)}"


def of_version(table: str) -> str:
    """Returns the name of the lease whose holder makes a version of the event table with this name."""
    return f"version:{_digest(table)}"


def of_tasks(virtual_cluster: str) -> str:
    """Returns the name of the lease whose holder does the tasks that the consoles of a cluster's daemons are asked for."""
    return f"tasks:{virtual_cluster}"


def of_daemons(virtual_cluster: str) -> str:
    """Returns the common prefix of the names of the leases of a cluster's daemons."""
    return f"daemon:{virtual_cluster.upper()}:"


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


class Leases:
    """Rows of ``leases``."""

    def __init__(self, database: Database) -> None:
        self._database = database

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
            holds = now < row.expires <= now + max(_FARTHEST_SECONDS, 10 * seconds)
            if row.owner != owner and holds and not is_gone(row.owner):
                return Lease(*row)
            transaction.execute(update(leases).where(leases.c.name == name).values(**values))
            return None

    def release(self, name: str, owner: str) -> None:
        """Releases the lease; does nothing if another owner has it by now."""
        self._database.write(delete(leases).where(leases.c.name == name, leases.c.owner == owner))

    def held(self) -> Sequence[Lease]:
        """Returns unexpired leases whose owners are alive, as far as can be determined."""
        with self._database.reading() as transaction:
            now = self._database.now(transaction)
            rows = transaction.execute(select(leases).where(leases.c.expires > now).order_by(leases.c.name))
            return [Lease(*row) for row in rows if not is_gone(row.owner)]

    def running_jobs(self) -> frozenset[str]:
        """Returns the ids of jobs that a process is running now."""
        return frozenset(held.name.removeprefix(_JOB) for held in self.held() if held.name.startswith(_JOB))


@contextmanager
def lease(
    leases_: Leases, name: str, owner: str, purpose: str, seconds: float, lost: Callable[[], object] = lambda: None
) -> Iterator[Lease | None]:
    """Holds a lease while the block runs, renewing it in the background; releases it at the end.

    Args:
        lost: called once, from another thread, when another process holds the lease, or may hold it because renewing failed for
            ``seconds``. The block should then end; if it does not, the other process's fence decides.

    Yields:
        None if the lease is held, else the lease that prevents it; the block should then do no work.
    """
    other = leases_.acquire(name, owner, purpose, seconds)
    if other is not None:
        yield other
        return
    done = threading.Event()

    def renew() -> None:
        renewed = time.monotonic()
        while not done.wait(seconds / 3):
            asked = time.monotonic()
            with suppress(CatalogError):
                if leases_.acquire(name, owner, purpose, seconds) is not None:
                    break
                renewed = asked
            if time.monotonic() - renewed >= seconds:
                break
        else:
            return
        lost()

    keeper = threading.Thread(target=renew, name=f"lease-{name}", daemon=True)
    keeper.start()
    try:
        yield None
    finally:
        done.set()
        keeper.join()
        with suppress(CatalogError):
            leases_.release(name, owner)

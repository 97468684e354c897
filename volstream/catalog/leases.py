"""Leases: who does a thing now. They save work and order takeovers; safety rests on Delta's fences, not on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from sqlalchemy import delete, select, update

from volstream.catalog.database import Database
from volstream.catalog.tables import leases
from volstream.errors import CatalogError
from volstream.lifecycle.identity import is_gone


@dataclass(frozen=True)
class Lease:
    """One held name. ``expires`` is epoch seconds by the database's clock."""

    name: str
    owner: str
    purpose: str
    expires: float


class Leases:
    """Rows of ``leases``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def acquire(self, name: str, owner: str, purpose: str, seconds: float) -> Lease | None:
        """Takes or renews the lease for ``seconds``; None where it is ours now, else the lease that is in the way.

        A lease is free when it has expired, or when its owner was a process of this host that is gone.
        """
        with self._database.transaction() as transaction:
            now = self._database.now(transaction)
            values = {"name": name, "owner": owner, "purpose": purpose, "expires": now + seconds}
            row = None
            while row is None:  # again where the holder gives it back between the two statements
                if self._database.add_missing(transaction, leases, ["name"], [values]):
                    return None
                row = transaction.execute(select(leases).where(leases.c.name == name).with_for_update()).one_or_none()
            if row.owner != owner and row.expires > now and not is_gone(row.owner):
                return Lease(*row)
            transaction.execute(update(leases).where(leases.c.name == name).values(**values))
            return None

    def release(self, name: str, owner: str) -> None:
        """Gives the lease back; nothing where it is another's by now."""
        with self._database.transaction() as transaction:
            transaction.execute(delete(leases).where(leases.c.name == name, leases.c.owner == owner))

    def held(self) -> Sequence[Lease]:
        """The leases that have not expired and whose owners, where that can be known, live."""
        with self._database.reading() as transaction:
            now = self._database.now(transaction)
            rows = transaction.execute(select(leases).where(leases.c.expires > now).order_by(leases.c.name))
            return [Lease(*row) for row in rows if not is_gone(row.owner)]


@contextmanager
def lease(
    leases_: Leases, name: str, owner: str, purpose: str, seconds: float, lost: Callable[[], object] = lambda: None
) -> Iterator[Lease | None]:
    """Holds a lease while the block runs, renewed in the background; given back at its end.

    Args:
        lost: called by another thread, once, when somebody else has the lease, or may have it: it could not be renewed for
            ``seconds``. The block should come to its end then; where it does not, the other's fence decides.

    Yields:
        None where it is held, else the lease that is in the way; then the block should not do its work.
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

"""Refreshes of directory tables, the keys that jobs want looked at again, and what was rejected."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import and_, delete, func, insert, select, update

from volstream.catalog.database import Database
from volstream.catalog.tables import key_checks, reconciles, refreshes, rejected, volumes
from volstream.errors import FencedError
from volstream.model.hints import Rejection
from volstream.model.objects import Volume
from volstream.model.work import Completeness, Refresh, RefreshState

#: Full listings of a volume that are kept on record.
_KEPT = 100


@dataclass(frozen=True)
class RejectedMessage:
    """A message or name that could not be used, how often, and when."""

    volume_id: str
    subject: str
    reason: str
    count: int
    first_seen: datetime
    last_seen: datetime


class Refreshes:
    """Rows of ``refreshes``, ``key_checks`` and ``rejected_messages``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def begin(self, volume: Volume, cause: str, base_version: int, base_count: int) -> int:
        """Writes the INTENT of the volume's next refresh, and returns its number n.

        Args:
            base_version: the directory table's version that the refresh was computed against.
            base_count: number of the newest refresh at that time.

        Raises:
            FencedError: another writer began or ended a refresh since then, or the volume was dropped.
        """
        with self._database.transaction() as transaction:
            count = transaction.execute(
                select(volumes.c.refresh_count).where(volumes.c.id == volume.id).with_for_update()
            ).scalar_one_or_none()
            if count is None:
                raise FencedError(f"The volume {volume.name} was dropped.")
            if int(count) != base_count:
                raise FencedError(f"Another process refreshed volume {volume.name} meanwhile.")
            number = int(count) + 1
            transaction.execute(
                insert(refreshes).values(
                    volume_id=volume.id, number=number, state=RefreshState.INTENT, cause=cause, base_version=base_version,
                    inserted=0, updated=0, deleted=0, bytes=0, started_on=datetime.now(UTC),
                )
            )  # fmt: skip
            transaction.execute(update(volumes).where(volumes.c.id == volume.id).values(refresh_count=number))
            return number

    def settle(
        self,
        volume: Volume,
        number: int,
        version: int | None,
        counts: tuple[int, ...],
        committed_on: datetime | None,
    ) -> None:
        """Closes an open refresh: committed as ``version``, or aborted where that is None.

        Args:
            counts: rows inserted, updated, deleted, and bytes of the files that are new or changed.
            committed_on: the commit's own time.
        """
        state = RefreshState.ABORTED if version is None else RefreshState.COMMITTED
        inserted, updated, deleted, size = counts
        with self._database.transaction() as transaction:
            transaction.execute(
                update(refreshes)
                .where(refreshes.c.volume_id == volume.id, refreshes.c.number == number)
                .values(
                    state=state,
                    version=version,
                    inserted=inserted,
                    updated=updated,
                    deleted=deleted,
                    bytes=size,
                    committed_on=committed_on,
                )
            )

    def open(self, volume: Volume) -> tuple[int, int] | None:
        """Number and base version of the refresh that was begun and not settled, or None."""
        query = select(refreshes.c.number, refreshes.c.base_version).where(
            refreshes.c.volume_id == volume.id, refreshes.c.state == RefreshState.INTENT
        )
        with self._database.reading() as transaction:
            row = transaction.execute(query).one_or_none()
            return None if row is None else (row.number, row.base_version)

    def committed(self, volume_id: str, *, numbers: Sequence[int] | None = None) -> Sequence[Refresh]:
        """The committed refreshes of a volume by number; all of them, or those of ``numbers``."""
        query = (
            select(refreshes)
            .where(refreshes.c.volume_id == volume_id, refreshes.c.state == RefreshState.COMMITTED)
            .order_by(refreshes.c.number)
        )
        with self._database.reading() as transaction:
            if numbers is None:
                return [_refresh(row._mapping) for row in transaction.execute(query)]
            found: list[Refresh] = []
            for start in range(0, len(numbers), 500):  # under every database's limit of bound values
                chunk = query.where(refreshes.c.number.in_(numbers[start : start + 500]))
                found += [_refresh(row._mapping) for row in transaction.execute(chunk)]
            return found

    def last(self, volume_id: str) -> Refresh | None:
        """The newest committed refresh."""
        query = (
            select(refreshes)
            .where(refreshes.c.volume_id == volume_id, refreshes.c.state == RefreshState.COMMITTED)
            .order_by(refreshes.c.number.desc())
            .limit(1)
        )
        with self._database.reading() as transaction:
            row = transaction.execute(query).one_or_none()
            return None if row is None else _refresh(row._mapping)

    def ask_check(self, volume_id: str, paths: Iterable[str]) -> datetime:
        """Asks the volume's writer to look at these keys again; idempotent. Returns what tells these asks from others."""
        now = datetime.now(UTC)
        # In one order, so that two jobs that ask for the same keys do not wait for each other.
        rows = [{"volume_id": volume_id, "path": path, "asked_on": now} for path in sorted({*paths})]
        again = update(key_checks).where(key_checks.c.volume_id == volume_id)
        with self._database.transaction() as transaction:
            for row in rows:
                if not self._database.add_missing(transaction, key_checks, ["volume_id", "path"], [row]):
                    # A writer that is looking at it now does not know of this one.
                    transaction.execute(again.where(key_checks.c.path == row["path"]).values(asked_on=now))
        return now

    def asked_checks(self, volume_id: str, limit: int) -> Mapping[str, datetime]:
        """Keys that were asked for and not yet looked at, and when."""
        query = select(key_checks.c.path, key_checks.c.asked_on).where(key_checks.c.volume_id == volume_id).limit(limit)
        with self._database.reading() as transaction:
            return {row.path: row.asked_on for row in transaction.execute(query)}

    def is_asked(self, volume_id: str, path: str) -> bool:
        """Whether a key that was asked for has not been looked at yet."""
        query = select(key_checks.c.path).where(key_checks.c.volume_id == volume_id, key_checks.c.path == path)
        with self._database.reading() as transaction:
            return transaction.execute(query).first() is not None

    def sums_after(self, volume_id: str, number: int) -> tuple[int, int, int]:
        """Rows inserted, updated and deleted by the refreshes after ``number``."""
        sums = [func.coalesce(func.sum(refreshes.c[name]), 0) for name in ("inserted", "updated", "deleted")]
        query = select(*sums).where(refreshes.c.volume_id == volume_id, refreshes.c.number > number)
        with self._database.reading() as transaction:
            inserted, updated, deleted = transaction.execute(query).one()
            return int(inserted), int(updated), int(deleted)

    def file_count(self, volume_id: str) -> int:
        """How many files the directory table shows, by what its refreshes did."""
        query = select(func.coalesce(func.sum(refreshes.c.inserted - refreshes.c.deleted), 0)).where(
            refreshes.c.volume_id == volume_id
        )
        with self._database.reading() as transaction:
            return int(transaction.execute(query).scalar_one())

    def changed_after(self, volume_id: str, version: int | None) -> tuple[int, int]:
        """Rows, and bytes of new files, that changed after a version of the directory table; None: ever."""
        changed = refreshes.c.inserted + refreshes.c.updated + refreshes.c.deleted
        query = select(func.coalesce(func.sum(changed), 0), func.coalesce(func.sum(refreshes.c.bytes), 0)).where(
            refreshes.c.volume_id == volume_id
        )
        if version is not None:
            query = query.where(refreshes.c.version > version)
        with self._database.reading() as transaction:
            rows, size = transaction.execute(query).one()
            return int(rows), int(size)

    def may_have_moved(self, volume_id: str, version: int | None) -> bool:
        """Whether files can have been moved after a version of the directory table, for some went and some came.

        True also while a refresh is open: its commit may be in the log already, and what it did is not known here.

        Args:
            version: None: ever.
        """
        mine = refreshes.c.volume_id == volume_id
        sums = [func.coalesce(func.sum(refreshes.c[name]), 0) for name in ("inserted", "deleted")]
        query = select(*sums).where(mine if version is None else and_(mine, refreshes.c.version > version))
        unsettled = select(refreshes.c.number).where(mine, refreshes.c.state == RefreshState.INTENT)
        with self._database.reading() as transaction:
            return all(transaction.execute(query).one()) or transaction.execute(unsettled).first() is not None

    def checked(self, volume_id: str, asked: Mapping[str, datetime]) -> None:
        """These keys were looked at, as they had been asked for; what was asked for again meanwhile stays."""
        mine = delete(key_checks).where(key_checks.c.volume_id == volume_id)
        with self._database.transaction() as transaction:
            for path, asked_on in asked.items():
                transaction.execute(mine.where(key_checks.c.path == path, key_checks.c.asked_on == asked_on))

    def note_reconcile(self, found: Completeness) -> None:
        """Keeps what a full listing found, and the newest hundred of them."""
        mine = reconciles.c.volume_id == found.volume_id
        old = select(reconciles.c.began_on).where(mine).order_by(reconciles.c.began_on.desc()).offset(_KEPT).limit(1)
        with self._database.transaction() as transaction:
            row = dataclasses.asdict(found)
            self._database.add_missing(transaction, reconciles, ["volume_id", "began_on"], [row])
            oldest = transaction.execute(old).scalar_one_or_none()
            if oldest is not None:
                transaction.execute(delete(reconciles).where(mine, reconciles.c.began_on <= oldest))

    def reconciles(self, volume_id: str, limit: int = 1) -> Sequence[Completeness]:
        """What the newest full listings of a volume found, the newest first."""
        query = (
            select(reconciles)
            .where(reconciles.c.volume_id == volume_id)
            .order_by(reconciles.c.began_on.desc())
            .limit(limit)
        )
        with self._database.reading() as transaction:
            return [Completeness(**row._mapping) for row in transaction.execute(query)]

    def reject(self, volume_id: str, rejections: Iterable[Rejection]) -> None:
        """Keeps what cannot be used; the same subject and reason again is counted, not repeated."""
        now = datetime.now(UTC)
        with self._database.transaction() as transaction:
            for one in rejections:
                same = (
                    (rejected.c.volume_id == volume_id)
                    & (rejected.c.subject == one.subject)
                    & (rejected.c.reason == one.reason)
                )
                again = transaction.execute(
                    update(rejected).where(same).values(count=rejected.c.count + 1, last_seen=now)
                )
                if again.rowcount == 0:
                    values = {"subject": one.subject, "reason": one.reason, "first_seen": now, "last_seen": now}
                    transaction.execute(insert(rejected).values(volume_id=volume_id, count=1, **values))

    def rejected(self, volume_id: str | None = None, limit: int = 1000) -> Sequence[RejectedMessage]:
        """The newest rejected messages, of one volume or of all."""
        query = select(rejected).order_by(rejected.c.last_seen.desc()).limit(limit)
        if volume_id is not None:
            query = query.where(rejected.c.volume_id == volume_id)
        with self._database.reading() as transaction:
            rows = [dict(row._mapping) for row in transaction.execute(query)]
        return [RejectedMessage(**{key: row[key] for key in RejectedMessage.__dataclass_fields__}) for row in rows]

    def rejected_count(self, volume_id: str) -> int:
        """How many different messages of a volume were rejected."""
        query = select(func.count()).select_from(rejected).where(rejected.c.volume_id == volume_id)
        with self._database.reading() as transaction:
            return int(transaction.execute(query).scalar_one())


def _refresh(row: Any) -> Refresh:
    return Refresh(
        **{key: row[key] for key in Refresh.__dataclass_fields__ if key != "state"}, state=RefreshState(row["state"])
    )

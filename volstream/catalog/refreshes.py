"""Refreshes of directory tables, requested checks of keys, and rejected messages."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam, case, delete, exists, func, or_, select, union_all, update

from volstream.base.definitions import SourceKind, StreamMode
from volstream.base.model.hints import Rejection, unusable
from volstream.base.model.work import Completeness, PlanState, Refresh
from volstream.catalog.database import Database
from volstream.catalog.tables import (
    digest,
    from_row,
    key_checks,
    plans,
    reconciles,
    refreshes,
    rejected,
    streams,
    volume_totals,
    volumes,
)

#: Number of full listings on record per volume.
_MAX_RECONCILES = 100

#: Number of rejected messages on record per volume, because senders may send any number.
_MAX_REJECTED = 1000


@dataclass(frozen=True)
class RejectedMessage:
    """An unusable message or name, with count and times."""

    volume_id: str
    subject: str
    reason: str
    count: int
    first_seen: datetime
    last_seen: datetime


def _start(offset: ColumnElement[int]) -> ColumnElement[int]:
    """Returns the refresh after which a stream reads changes.

    A read from the beginning uses the directory at the end of the range, unless each insertion counts.
    """
    inserts = and_(streams.c.mode == StreamMode.APPEND_ONLY, ~streams.c.initial)
    return case((inserts, func.coalesce(offset, 0)), else_=func.nullif(offset, 0))


#: The newest full listing of each volume.
_began = (
    select(reconciles.c.volume_id, func.max(reconciles.c.began_on).label("began_on")).group_by(reconciles.c.volume_id).subquery()
)
_NEWEST = select(reconciles).join(
    _began, and_(_began.c.volume_id == reconciles.c.volume_id, _began.c.began_on == reconciles.c.began_on)
)

_VOLUME: BindParameter[str] = bindparam("volume")
_LAST = select(refreshes).where(refreshes.c.volume_id == _VOLUME).order_by(refreshes.c.number.desc()).limit(1)

#: The oldest offset, and the oldest start of an open plan.
_mine = and_(streams.c.source_kind == SourceKind.VOLUME, streams.c.source_id == _VOLUME)
_NEEDED_AFTER = union_all(
    select(func.min(_start(streams.c.offset))).where(_mine),
    select(func.min(func.coalesce(_start(plans.c.from_version), plans.c.to_version)))
    .join(streams, streams.c.id == plans.c.stream_id)
    .where(_mine, plans.c.state == PlanState.OPEN),
)

_COUNT = (
    update(volumes)
    .where(volumes.c.id == bindparam("this"), volumes.c.refresh_count < bindparam("count"))
    .values(refresh_count=bindparam("count"))
)

#: The numbers of files and of distinct rejected messages, by volume.
_FILES = select(volume_totals.c.files)
_REJECTED = select(func.count().label("number")).group_by(rejected.c.volume_id)


class Refreshes:
    """Rows of ``refreshes``, ``key_checks`` and ``rejected_messages``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, refresh: Refresh) -> None:
        """Records a committed refresh. Idempotent: the caller may crash after the commit, before recording
        it."""
        with self._database.transaction() as transaction:
            row = dataclasses.asdict(refresh)
            if self._database.add_missing(transaction, refreshes, ["volume_id", "number"], [row]):
                sums = {
                    "volume_id": refresh.volume_id,
                    "files": refresh.inserted - refresh.deleted,
                    "changed": refresh.inserted + refresh.updated + refresh.deleted,
                    "bytes": refresh.bytes,
                }
                names = ("files", "changed", "bytes")
                self._database.add_up(transaction, volume_totals, ["volume_id"], [sums], sums=names)
            transaction.execute(_COUNT, {"this": refresh.volume_id, "count": refresh.number})

    def committed(self, volume_id: str, *, after: int = 0) -> Sequence[Refresh]:
        """Returns the refreshes of a volume after a given one, by number."""
        query = (
            select(refreshes).where(refreshes.c.volume_id == volume_id, refreshes.c.number > after).order_by(refreshes.c.number)
        )
        return self._database.all(query, Refresh)

    def newest(self, volume_id: str, *, before: int | None = None, limit: int) -> Sequence[Refresh]:
        """Returns a volume's newest refreshes, newest first. ``before`` limits them to lower numbers."""
        query = select(refreshes).where(refreshes.c.volume_id == volume_id).order_by(refreshes.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(refreshes.c.number < before)
        return self._database.all(query, Refresh)

    def at(self, volume_id: str, time: datetime) -> int | None:
        """Returns the newest refresh at or before a point in time, or None."""
        query = select(func.max(refreshes.c.number)).where(refreshes.c.volume_id == volume_id, refreshes.c.committed_on <= time)
        number: int | None = self._database.value(query)
        return number

    def needed_after(self, volume_id: str) -> int | None:
        """Returns the oldest refresh of a volume that a stream or one of its open plans still reads from, or
        None."""
        oldest = [row[0] for row in self._database.rows(_NEEDED_AFTER, volume=volume_id)]
        return min((int(offset) for offset in oldest if offset is not None), default=None)

    def last(self, volume_id: str) -> Refresh | None:
        """Returns the newest refresh, or None."""
        return self._database.one(_LAST, Refresh, volume=volume_id)

    def last_arrival(self, volume_id: str) -> datetime | None:
        """Returns when a file was last new or changed, or None if never or no longer in the history."""
        arrived = refreshes.c.inserted + refreshes.c.updated > 0
        query = select(refreshes.c.committed_on).where(refreshes.c.volume_id == volume_id, arrived)
        time: datetime | None = self._database.value(query.order_by(refreshes.c.number.desc()).limit(1))
        return time

    def ask_check(self, volume_id: str, paths: Iterable[str]) -> datetime:
        """Asks the volume's writer to check keys again. Returns a time that identifies the request.
        Idempotent."""
        return self._ask({(volume_id, path) for path in paths})

    def ask_checks(self, paths: Mapping[str, Set[str]]) -> Sequence[Rejection]:
        """Asks the writers of volumes, by id, to check keys again. Returns the keys that cannot become
        rows."""
        invalid = unusable({path for asked in paths.values() for path in asked})
        self._ask({(volume_id, path) for volume_id, asked in paths.items() for path in asked - invalid.keys()})
        return list(invalid.values())

    def _ask(self, keys: Set[tuple[str, str]]) -> datetime:
        now = datetime.now(UTC)
        # In a fixed order, so that two jobs that request the same keys cannot deadlock.
        rows = [
            {"volume_id": volume, "path_digest": digest(path), "path": path, "asked_on": now} for volume, path in sorted(keys)
        ]
        if rows:
            with self._database.transaction() as transaction:
                # A writer that is checking a key at this moment does not know this request.
                key = ["volume_id", "path_digest"]
                self._database.add_up(transaction, key_checks, key, rows, sums=(), latest=["asked_on"])
        return now

    def asked_volumes(self) -> Set[str]:
        """Returns the ids of volumes with pending checks."""
        requested = exists().where(key_checks.c.volume_id == volumes.c.id)
        return {row.id for row in self._database.rows(select(volumes.c.id).where(requested))}

    def asked_checks(self, volume_id: str, limit: int) -> Mapping[str, datetime]:
        """Returns requested keys that are not checked yet, with the times of the requests."""
        query = select(key_checks.c.path, key_checks.c.asked_on).where(key_checks.c.volume_id == volume_id).limit(limit)
        rows = self._database.rows(query)
        if len(rows) == limit:  # keys that cannot be checked now must not block others, or folders
            is_file = case((or_(key_checks.c.path == "", key_checks.c.path.endswith("/")), 0), else_=1)
            rows = self._database.rows(query.order_by(is_file, func.random()))
        return {row.path: row.asked_on for row in rows}

    def asked_count(self, volume_id: str) -> int:
        """Returns the number of requested keys that are not checked yet."""
        query = select(func.count()).select_from(key_checks).where(key_checks.c.volume_id == volume_id)
        return int(self._database.value(query))

    def is_asked(self, volume_id: str, path: str) -> bool:
        """True if a requested key has not been checked yet."""
        query = select(key_checks.c.path).where(key_checks.c.volume_id == volume_id, key_checks.c.path_digest == digest(path))
        return self._database.value(query) is not None

    def sums_after(self, volume_id: str, number: int) -> tuple[int, int, int]:
        """Returns the numbers of rows inserted, updated and deleted by the refreshes after ``number``."""
        sums = [func.coalesce(func.sum(refreshes.c[name]), 0) for name in ("inserted", "updated", "deleted")]
        query = select(*sums).where(refreshes.c.volume_id == volume_id, refreshes.c.number > number)
        [(inserted, updated, deleted)] = self._database.rows(query)
        return int(inserted), int(updated), int(deleted)

    def first_after(self, volume_id: str, number: int | None) -> datetime | None:
        """Returns the time of the first refresh on record after ``number`` (None: of all), or None without
        one."""
        query = select(func.min(refreshes.c.committed_on)).where(
            refreshes.c.volume_id == volume_id, refreshes.c.number > (number or 0)
        )
        time: datetime | None = self._database.value(query)
        return time

    def file_count(self, volume_id: str) -> int:
        """Returns the number of files in the directory table, computed from its refreshes."""
        found = self._database.rows_of(_FILES, volume_totals.c.volume_id, volume_id)
        return int(found[0].files) if found else 0

    def changed_after(self, volume_id: str, number: int | None) -> tuple[int, int]:
        """Returns the number of changed rows, and of bytes in new files, by refreshes after ``number`` (None:
        all-time)."""
        if number is None:
            query = select(volume_totals.c.changed, volume_totals.c.bytes).where(volume_totals.c.volume_id == volume_id)
        else:
            changed = refreshes.c.inserted + refreshes.c.updated + refreshes.c.deleted
            query = select(func.coalesce(func.sum(changed), 0), func.coalesce(func.sum(refreshes.c.bytes), 0)).where(
                refreshes.c.volume_id == volume_id, refreshes.c.number > number
            )
        rows, size = next(iter(self._database.rows(query)), (0, 0))
        return int(rows), int(size)

    def checked(self, volume_id: str, asked: Mapping[str, datetime]) -> None:
        """Records that keys were checked, as of the given requests. Keys that were requested again stay."""
        mine = delete(key_checks).where(key_checks.c.volume_id == volume_id)
        with self._database.transaction() as transaction:
            for path, asked_on in asked.items():
                transaction.execute(mine.where(key_checks.c.path_digest == digest(path), key_checks.c.asked_on == asked_on))

    def note_reconcile(self, result: Completeness) -> None:
        """Records the result of a full listing. Keeps the newest hundred."""
        mine = reconciles.c.volume_id == result.volume_id
        old = select(reconciles.c.began_on).where(mine).order_by(reconciles.c.began_on.desc()).offset(_MAX_RECONCILES).limit(1)
        with self._database.transaction() as transaction:
            row = dataclasses.asdict(result)
            self._database.add_missing(transaction, reconciles, ["volume_id", "began_on"], [row])
            oldest = transaction.execute(old).scalar_one_or_none()
            if oldest is not None:
                transaction.execute(delete(reconciles).where(mine, reconciles.c.began_on <= oldest))

    def reconciles(self, volume_id: str, limit: int = 1) -> Sequence[Completeness]:
        """Returns the results of a volume's newest full listings, newest first."""
        if limit == 1:
            rows = self._database.rows_of(_NEWEST, reconciles.c.volume_id, volume_id)
            return [from_row(Completeness, row._mapping) for row in rows]
        query = select(reconciles).where(reconciles.c.volume_id == volume_id).order_by(reconciles.c.began_on.desc()).limit(limit)
        return self._database.all(query, Completeness)

    def reject(self, volume_id: str, rejections: Iterable[Rejection]) -> None:
        """Records unusable messages, and keeps the newest. Repeats of a subject and reason only increase the
        count."""
        now, counts = datetime.now(UTC), Counter(rejections)
        rows = [
            {
                "volume_id": volume_id,
                "digest": digest(f"{message.subject}\0{message.reason}"),
                "subject": message.subject,
                "reason": message.reason,
                "count": count,
                "first_seen": now,
                "last_seen": now,
            }
            for message, count in islice(counts.items(), _MAX_REJECTED)
        ]
        if not rows:
            return
        mine = rejected.c.volume_id == volume_id
        newest = select(rejected.c.id).where(mine).order_by(rejected.c.last_seen.desc(), rejected.c.id.desc())
        with self._database.transaction() as transaction:
            key = ["volume_id", "digest"]
            self._database.add_up(transaction, rejected, key, rows, sums=["count"], latest=["last_seen"])
            # The limit is in the inner query, because PostgreSQL does not accept one in a DELETE.
            old = newest.offset(_MAX_REJECTED).limit(len(rows)).subquery()
            transaction.execute(delete(rejected).where(rejected.c.id.in_(select(old.c.id))))

    def rejected(self, volume_id: str | None = None, limit: int = 1000) -> Sequence[RejectedMessage]:
        """Returns the newest rejected messages, of one volume or of all."""
        query = select(rejected).order_by(rejected.c.last_seen.desc()).limit(limit)
        if volume_id is not None:
            query = query.where(rejected.c.volume_id == volume_id)
        return self._database.all(query, RejectedMessage)

    def rejected_count(self, volume_id: str) -> int:
        """Returns the number of distinct rejected messages of a volume."""
        found = self._database.rows_of(_REJECTED, rejected.c.volume_id, volume_id)
        return int(found[0].number) if found else 0

"""Creating, replacing, resetting and dropping streams, on a directory without files (rules R-4 to R-8, R-19, R-20)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests import objects
from tests.directories import Directory
from volstream.base.definitions import SourceKind, Stream, StreamMode, StreamSpec, Volume
from volstream.base.model.names import Name
from volstream.base.model.work import PlanKind
from volstream.changes.streams.definitions import advance_stream, create_stream, drop_stream, move_stream
from volstream.changes.streams.read import StreamReader
from volstream.errors import (
    AlreadyExistsError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
    StreamBusyError,
    StreamStaleError,
)
from volstream.tables.delta import places

S = Name.parse("s")


class Place(Directory):
    """A catalog with a volume, and the volume's directory."""

    @property
    def reader(self) -> StreamReader:
        return StreamReader(self.catalog, self.warehouse)

    @property
    def table_id(self) -> str:
        return self.snapshot().table_id

    def commit(self, times: int = 1) -> None:
        """Adds refreshes."""
        for _ in range(times):
            self.writer.open()
            self.refresh({"a": self.writer.volume.refresh_count})

    def listed(self, volume: Volume | None = None) -> None:
        """The first listing has ended."""
        self.writer.open()
        self.catalog.volumes.change(volume or self.volume, last_listing=datetime.now(UTC))

    def create(self, **options: Any) -> Stream:
        replace = {key: options.pop(key) for key in ("or_replace", "if_not_exists") if key in options}
        return create_stream(self.catalog, self.warehouse, StreamSpec(name=S, volume=self.volume.name, **options), **replace)

    def advance(self, version: int | None = None) -> Stream:
        return advance_stream(self.catalog, self.warehouse, S, version)

    def move(self, version: int | None = None, timestamp: datetime | None = None) -> Stream:
        return move_stream(self.catalog, self.warehouse, S, version, timestamp)

    def add_job(self) -> None:
        job = objects.job(self.catalog.streams.get(S), clean=True)
        with self.catalog.database.transaction() as transaction:
            self.catalog.jobs.add(transaction, job)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()


def test_a_stream_starts_at_the_newest_version(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    place.commit(3)
    made = place.create()
    assert (made.offset, made.table_id, made.initial, made.mode) == (3, place.table_id, False, StreamMode.STANDARD)
    assert place.catalog.streams.get(S) == made


def test_a_stream_created_before_the_first_listing_starts_empty(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    made = place.create(show_initial_rows=True)
    assert (made.offset, made.table_id) == (None, None)
    # Everything will come as inserts: there are no initial rows to show besides.
    assert not made.initial
    assert place.reader.pin(made) is None
    assert not place.reader.has_data(made)
    place.writer.open()
    assert place.create(or_replace=True).offset is None, "the table is made, the listing has not ended"
    assert not place.reader.has_data(made)
    place.commit()
    assert place.reader.has_data(made)
    covered = place.reader.pin(made)
    assert covered is not None
    assert (covered.from_version, covered.to_version, covered.table_id) == (None, 1, place.table_id)
    assert not covered.empty


def test_a_listing_that_finds_nothing_still_counts(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    place.listed()
    assert place.create().offset == 0


def test_a_start_version_must_be_in_the_history(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    with pytest.raises(InvalidValueError, match=r"no history yet.*volstream refresh v"):
        place.create(at_version=0)
    place.commit(3)
    assert place.create(at_version=1).offset == 1
    for version in (4, -1):
        with pytest.raises(InvalidValueError, match=f"no version {version}.*from 0 to 3"):
            place.create(at_version=version, or_replace=True)
    assert place.catalog.streams.get(S).offset == 1


def test_a_start_time_selects_the_newest_version_at_or_before_it(place: Place) -> None:
    """Rule R-4 of docs/streams.md."""
    place.commit(3)
    times = [one.committed_on for one in place.catalog.refreshes.committed(place.volume.id)]
    for version, when in enumerate(times, 1):
        assert place.create(at_timestamp=when, or_replace=True).offset == version
    assert place.create(at_timestamp=place.volume.created_on, or_replace=True).offset == 0
    with pytest.raises(InvalidValueError, match="no history before"):
        place.create(at_timestamp=place.volume.created_on - timedelta(milliseconds=1), or_replace=True)
    with pytest.raises(InvalidValueError, match="in the future"):
        place.create(at_timestamp=datetime.now(UTC) + timedelta(hours=1), or_replace=True)
    with pytest.raises(InvalidValueError, match="not both"):
        place.create(at_timestamp=times[0], at_version=1, or_replace=True)


def test_initial_rows_are_those_at_the_offset(place: Place) -> None:
    """Rule R-5 of docs/streams.md."""
    place.commit(3)
    made = place.create(show_initial_rows=True)
    place.commit()
    assert place.reader.has_data(made)
    covered = place.reader.pin(made)
    assert covered is not None
    assert (covered.initial, covered.from_version, covered.to_version, covered.empty) == (True, 3, 3, False)


def test_a_name_can_be_used_once_unless_asked_otherwise(place: Place) -> None:
    """Rule R-6 of docs/streams.md."""
    place.commit(2)
    first = place.create()
    with pytest.raises(AlreadyExistsError):
        place.create()
    with pytest.raises(InvalidValueError, match="mutually exclusive"):
        place.create(or_replace=True, if_not_exists=True)
    place.commit()
    assert place.create(if_not_exists=True) == first
    second = place.create(or_replace=True)
    assert (second.id != first.id, second.offset, second.sequence) == (True, 3, 0)
    assert place.catalog.streams.by_id(first.id) is None


def test_the_name_of_a_table_is_taken(place: Place) -> None:
    write_deltalake(f"{place.warehouse}/tables/public/s", pa.table({"n": [1]}))
    with pytest.raises(AlreadyExistsError, match="a table s"):
        place.create()


def test_a_stream_needs_a_volume(place: Place) -> None:
    with pytest.raises(NotFoundError, match="no volume nothing"):
        create_stream(place.catalog, place.warehouse, StreamSpec(name=S, volume=Name.parse("nothing")))


def test_a_stream_outlives_its_volume_but_becomes_stale(place: Place) -> None:
    """Rule R-8 of docs/streams.md."""
    place.commit(2)
    made = place.create()
    with place.catalog.database.transaction() as transaction:
        place.catalog.volumes.remove(transaction, place.volume)
    for use in (place.reader.pin, place.reader.has_data):
        with pytest.raises(StreamStaleError, match=r"s is stale: its volume v was dropped.*volstream advance-stream s"):
            use(made)
    moves: tuple[Callable[[], object], ...] = (place.advance, lambda: place.move(0))
    for move in moves:
        with pytest.raises(InvalidStateError, match="stale"):
            move()
    assert drop_stream(place.catalog, S)


def test_a_re_created_or_missing_table_makes_its_streams_stale(place: Place) -> None:
    """Rule R-23 of docs/streams.md."""
    place.commit(2)
    made = place.create()
    shutil.rmtree(place.root)
    with pytest.raises(StreamStaleError, match="its directory table no longer exists"):
        place.reader.pin(made)
    place.writer = place.new_writer()
    place.commit(5)
    with pytest.raises(StreamStaleError, match="re-created"):
        place.reader.pin(made)


def test_changes_that_are_no_longer_kept_make_a_stream_stale(place: Place) -> None:
    """Rule R-23 of docs/streams.md."""
    place.commit(2)
    made = place.create()
    place.commit(2)
    assert place.reader.pin(made) is not None
    drop_stream(place.catalog, S)
    place.kept = 1
    place.writer = place.new_writer()
    place.writer.maintain()
    assert place.reader.has_data(made)
    with pytest.raises(StreamStaleError, match="after refresh 2 are no longer kept"):
        place.reader.pin(made)


def test_unconsumed_changes_are_kept(place: Place) -> None:
    place.commit(2)
    made = place.create()
    place.commit(3)
    place.kept = 1
    place.writer = place.new_writer()
    place.writer.maintain()
    assert place.snapshot().floor == 2
    assert place.reader.pin(made) is not None


def test_a_stream_that_is_being_consumed_is_neither_reset_nor_advanced(place: Place) -> None:
    """Rule R-19 of docs/streams.md."""
    place.commit(4)
    made = place.create(at_version=1)
    place.add_job()
    job = place.catalog.jobs.list()[0]
    plan = objects.plan(job, from_version=1, to_version=3)
    place.catalog.consumptions.open((plan, [objects.batch(plan)], made))
    acts: tuple[Callable[[], object], ...] = (place.advance, lambda: place.move(0))
    for act in acts:
        with pytest.raises(StreamBusyError, match=plan.id):
            act()
    assert place.catalog.streams.get(S).offset == 1


def test_advance_discards_changes_up_to_a_version_or_all(place: Place) -> None:
    """Rule R-20 of docs/streams.md."""
    place.commit(5)
    place.create(at_version=1, show_initial_rows=True)
    assert (place.advance(3).offset, place.catalog.streams.get(S).initial) == (3, False)
    assert place.advance().offset == 5
    for version in (3, 6):
        with pytest.raises(InvalidValueError, match="at version 5 and can be advanced up to 5"):
            place.advance(version)


def test_advancing_an_empty_stream_adopts_the_table(place: Place) -> None:
    place.create()
    assert place.advance().offset is None
    place.commit(2)
    moved = place.advance()
    assert (moved.offset, moved.table_id) == (2, place.table_id)


def test_a_reset_goes_back_to_a_version_or_time(place: Place) -> None:
    place.commit(4)
    place.create(show_initial_rows=True)
    first = place.catalog.refreshes.committed(place.volume.id)[0].committed_on
    assert place.move(1).offset == 1
    assert place.move(timestamp=datetime.now(UTC)).offset == 4
    assert place.move(timestamp=first).offset == 1
    with pytest.raises(InvalidValueError):
        place.move(5)
    assert not place.catalog.streams.get(S).initial


@pytest.mark.parametrize("act", ["move", "advance"])
def test_after_a_jump_the_table_of_a_job_may_have_rows_of_new_paths(place: Place, act: str) -> None:
    place.commit(4)
    place.create(at_version=2)
    place.add_job()
    getattr(place, act)(3)
    assert not objects.file_job(place.catalog.jobs.list()[0]).clean


def test_a_stream_with_a_job_is_neither_dropped_nor_replaced(place: Place) -> None:
    place.commit(2)
    first = place.create()
    place.add_job()
    with pytest.raises(ObjectInUseError, match=r"job classify.*Drop the job first"):
        drop_stream(place.catalog, S)
    with pytest.raises(ObjectInUseError):
        place.create(or_replace=True)
    assert place.catalog.streams.get(S) == first


def test_a_stream_that_a_statement_began_to_consume_is_neither_dropped_nor_replaced(place: Place) -> None:
    place.commit(2)
    stream = place.create()
    made = replace(objects.plan(objects.job(stream)), kind=PlanKind.STATEMENT, job_id=None)
    place.catalog.consumptions.open((made, [objects.batch(made)], stream))
    for act in (lambda: drop_stream(place.catalog, S), lambda: place.create(or_replace=True)):
        with pytest.raises(StreamBusyError, match=made.id):
            act()
    assert place.catalog.streams.get(S) == stream


def test_dropping_a_missing_stream_is_an_error_unless_asked_otherwise(place: Place) -> None:
    place.commit()
    place.create()
    assert drop_stream(place.catalog, S)
    assert not drop_stream(place.catalog, S, if_exists=True)
    with pytest.raises(NotFoundError):
        drop_stream(place.catalog, S)


def test_a_table_restored_to_before_the_offset_makes_its_stream_stale(place: Place) -> None:
    location = places.table_location(place.warehouse, Name.parse("t"))
    rows = pa.table({"id": [1]})
    write_deltalake(location, rows)
    stream = objects.stream(
        name="s",
        source_kind=SourceKind.TABLE,
        source_id=str(Name.parse("t")),
        source_name=Name.parse("t"),
        offset=3,
        table_id=DeltaTable(location).metadata().id,
    )
    assert place.reader.has_data(stream), "there is something to be told"
    with pytest.raises(StreamStaleError, match="restored"):
        place.reader.pin(stream)

"""Making, replacing, moving and dropping streams, over logs written by hand (rules R-4 to R-8, R-19, R-20)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests import objects
from volstream.catalog import Catalog
from volstream.delta.log import DeltaLog
from volstream.directory import table
from volstream.errors import (
    AlreadyExistsError,
    InvalidStateError,
    InvalidValueError,
    NotFoundError,
    ObjectInUseError,
    StreamBusyError,
    StreamStaleError,
)
from volstream.model.names import Name
from volstream.model.objects import Mode, Stream, StreamSpec, Volume
from volstream.streams.definitions import advance_stream, create_stream, drop_stream, move_stream
from volstream.streams.read import StreamReader

S = Name.parse("s")


class Place:
    """A catalog with a volume, and the log of its directory table."""

    def __init__(self, folder: Path) -> None:
        self.warehouse = str(folder / "warehouse")
        self.catalog = Catalog(f"sqlite:///{folder}/catalog.db")
        self.volume = objects.volume("v")
        with self.catalog.database.transaction() as transaction:
            self.catalog.volumes.add(transaction, self.volume)

    @property
    def location(self) -> str:
        return table.location(self.warehouse, self.volume.id)

    @property
    def log(self) -> DeltaLog:
        return DeltaLog(self.location)

    @property
    def reader(self) -> StreamReader:
        return StreamReader(self.catalog, self.warehouse)

    def commit(self, times: int = 1) -> None:
        """Makes the table, or adds a version."""
        for _ in range(times):
            write_deltalake(self.location, pa.table({"relative_path": ["a"]}), mode="append")

    def listed(self, volume: Volume | None = None) -> None:
        """The first listing ended."""
        self.catalog.volumes.change(volume or self.volume, reconciled_on=datetime.now(UTC))

    def create(self, **options: Any) -> Stream:
        replace = {key: options.pop(key) for key in ("or_replace", "if_not_exists") if key in options}
        return create_stream(self.catalog, self.warehouse, StreamSpec(S, self.volume.name, **options), **replace)

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
    made.catalog.close()


def test_r4_a_stream_starts_at_the_newest_version(place: Place) -> None:
    place.commit(3)
    made = place.create()
    assert (made.offset, made.table_id, made.initial, made.mode) == (2, place.log.table_id(), False, Mode.STANDARD)
    assert place.catalog.streams.get(S) == made


def test_r4_before_the_first_listing_a_stream_starts_empty(place: Place) -> None:
    made = place.create(show_initial_rows=True)
    assert (made.offset, made.table_id) == (None, None)
    # Everything will come as inserts: there are no initial rows to show besides.
    assert not made.initial
    assert place.reader.pin(made) is None
    assert not place.reader.has_data(made)
    place.commit()
    assert place.create(or_replace=True).offset is None, "the table is made, the listing has not ended"
    assert not place.reader.has_data(made)
    place.commit()
    assert place.reader.has_data(made)
    covered = place.reader.pin(made)
    assert covered is not None
    assert (covered.from_version, covered.to_version, covered.table_id) == (None, 1, place.log.table_id())
    assert not covered.empty


def test_r4_a_listing_that_found_nothing_is_a_listing(place: Place) -> None:
    place.commit()
    place.listed()
    assert place.create().offset == 0


def test_r4_a_version_must_be_in_the_history(place: Place) -> None:
    with pytest.raises(InvalidValueError, match=r"no history yet.*volstream refresh v"):
        place.create(at_version=0)
    place.commit(3)
    assert place.create(at_version=1).offset == 1
    for version in (3, -1):
        with pytest.raises(InvalidValueError, match=f"no version {version}.*from 0 to 2"):
            place.create(at_version=version, or_replace=True)
    assert place.catalog.streams.get(S).offset == 1


def test_r4_a_time_stands_for_the_newest_version_at_or_before_it(place: Place) -> None:
    place.commit(3)
    times = [commit.timestamp for commit in place.log.commits_after(-1)]
    for version, when in enumerate(times):
        latest = max(number for number, other in enumerate(times) if other <= when)
        assert place.create(at_timestamp=when, or_replace=True).offset == latest >= version
    with pytest.raises(InvalidValueError, match="no history before"):
        place.create(at_timestamp=times[0] - timedelta(milliseconds=1), or_replace=True)
    with pytest.raises(InvalidValueError, match="in the future"):
        place.create(at_timestamp=datetime.now(UTC) + timedelta(hours=1), or_replace=True)
    with pytest.raises(InvalidValueError, match="not both"):
        place.create(at_timestamp=times[0], at_version=1, or_replace=True)


def test_r5_initial_rows_are_those_at_the_offset(place: Place) -> None:
    place.commit(3)
    made = place.create(show_initial_rows=True)
    place.commit()
    assert place.reader.has_data(made)
    covered = place.reader.pin(made)
    assert covered is not None
    assert (covered.initial, covered.from_version, covered.to_version, covered.empty) == (True, 2, 2, False)


def test_r6_a_name_is_taken_once_unless_asked_otherwise(place: Place) -> None:
    place.commit(2)
    first = place.create()
    with pytest.raises(AlreadyExistsError):
        place.create()
    with pytest.raises(InvalidValueError, match="exclude each other"):
        place.create(or_replace=True, if_not_exists=True)
    place.commit()
    assert place.create(if_not_exists=True) == first
    second = place.create(or_replace=True)
    assert (second.id != first.id, second.offset, second.sequence) == (True, 2, 0)
    assert place.catalog.streams.by_id(first.id) is None


def test_a_name_of_a_table_is_taken(place: Place) -> None:
    write_deltalake(f"{place.warehouse}/tables/public/s", pa.table({"n": [1]}))
    with pytest.raises(AlreadyExistsError, match="a table s"):
        place.create()


def test_a_stream_needs_a_volume(place: Place) -> None:
    with pytest.raises(NotFoundError, match="no volume nothing"):
        create_stream(place.catalog, place.warehouse, StreamSpec(S, Name.parse("nothing")))


def test_r8_a_stream_outlives_its_volume_stale(place: Place) -> None:
    place.commit(2)
    made = place.create()
    with place.catalog.database.transaction() as transaction:
        place.catalog.volumes.remove(transaction, place.volume)
    for use in (place.reader.pin, place.reader.has_data):
        with pytest.raises(StreamStaleError, match=r"s is stale: its volume v was dropped.*Replace it"):
            use(made)
    moves: tuple[Callable[[], object], ...] = (place.advance, lambda: place.move(0))
    for move in moves:
        with pytest.raises(InvalidStateError, match="stale"):
            move()
    assert drop_stream(place.catalog, S)


def test_r23_a_table_made_anew_or_gone_makes_its_streams_stale(place: Place) -> None:
    place.commit(2)
    made = place.create()
    shutil.rmtree(place.location)
    with pytest.raises(StreamStaleError, match="its directory table is gone"):
        place.reader.pin(made)
    place.commit(5)
    with pytest.raises(StreamStaleError, match="made anew"):
        place.reader.pin(made)


def test_r23_a_log_that_lost_the_next_version_makes_a_stream_stale(place: Place) -> None:
    place.commit(2)
    made = place.create()
    place.commit(2)
    commits = Path(place.location) / "_delta_log"
    assert place.reader.pin(made) is not None
    from deltalake import DeltaTable

    DeltaTable(place.location).create_checkpoint()
    for version in (0, 1, 2):
        (commits / f"{version:020d}.json").unlink()
    assert place.reader.has_data(made), "R-22: what is missing proves nothing where the log was cleaned"
    with pytest.raises(StreamStaleError, match="after version 1 are not kept"):
        place.reader.pin(made)


def test_r19_a_stream_that_is_being_consumed_is_neither_moved_nor_advanced(place: Place) -> None:
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


def test_r20_advance_discards_up_to_a_version_or_all(place: Place) -> None:
    place.commit(5)
    place.create(at_version=1, show_initial_rows=True)
    assert (place.advance(3).offset, place.catalog.streams.get(S).initial) == (3, False)
    assert place.advance().offset == 4
    for version in (3, 5):
        with pytest.raises(InvalidValueError, match="at version 4 and can be advanced up to 4"):
            place.advance(version)


def test_advancing_an_empty_stream_adopts_the_table(place: Place) -> None:
    place.create()
    assert place.advance().offset is None
    place.commit(2)
    moved = place.advance()
    assert (moved.offset, moved.table_id) == (1, place.log.table_id())


def test_a_reset_goes_back_to_a_version_or_time(place: Place) -> None:
    place.commit(4)
    place.create(show_initial_rows=True)
    first = place.log.commits_after(-1)[0].timestamp
    assert place.move(1).offset == 1
    assert place.move(timestamp=datetime.now(UTC)).offset == 3
    assert place.move(timestamp=first).offset in (0, 1, 2, 3)  # commits of one millisecond share their time
    with pytest.raises(InvalidValueError):
        place.move(4)
    assert not place.catalog.streams.get(S).initial


@pytest.mark.parametrize("act", ["move", "advance"])
def test_after_a_jump_the_jobs_table_may_have_rows_of_new_paths(place: Place, act: str) -> None:
    place.commit(4)
    place.create(at_version=2)
    place.add_job()
    getattr(place, act)(3)
    assert not place.catalog.jobs.list()[0].clean


def test_a_stream_with_a_job_is_neither_dropped_nor_replaced(place: Place) -> None:
    place.commit(2)
    first = place.create()
    place.add_job()
    with pytest.raises(ObjectInUseError, match=r"job classify.*Drop the job first"):
        drop_stream(place.catalog, S)
    with pytest.raises(ObjectInUseError):
        place.create(or_replace=True)
    assert place.catalog.streams.get(S) == first


def test_dropping_what_is_not_there_says_so_unless_asked_otherwise(place: Place) -> None:
    place.commit()
    place.create()
    assert drop_stream(place.catalog, S)
    assert not drop_stream(place.catalog, S, if_exists=True)
    with pytest.raises(NotFoundError):
        drop_stream(place.catalog, S)

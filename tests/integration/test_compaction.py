"""Compaction of a directory table: rows, streams and history are what they were, and few files are left."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Place
from volstream.delta import cleanup, rows
from volstream.delta.log import DeltaLog
from volstream.delta.writer import DeltaWriter
from volstream.directory import compact, table
from volstream.directory.fold import Fold
from volstream.directory.keeper import DirectoryKeeper
from volstream.errors import InvalidStateError, InvalidValueError
from volstream.model.hints import KeyHint
from volstream.story import tell

#: Everything that compaction has to keep: the rows, and by which refresh each was written.
_KEPT = "SELECT * FROM delta.`{}` ORDER BY relative_path"


@pytest.mark.timeout(240)
def test_compaction_keeps_rows_streams_and_history(place: Place) -> None:
    keeper = place.keeper()
    for name in ("kept", "later deleted", "later changed"):
        place.put(name)
    place.refresh()
    place.session.streams.create("before", "v")
    place.put("later changed", "changed")
    place.delete("later deleted")
    keeper.take(_fold(place, "later changed", "later deleted"))
    place.put("new")
    keeper.take(_fold(place, "new"))
    location = table.location(place.session.warehouse, place.volume.id)
    log = DeltaLog(location)
    held, shown, version = place.rows(_KEPT.format(location)), place.stream("before"), log.latest_version()
    assert version is not None
    assert len(log.files("relative_path")) == 3

    delta = DeltaWriter(place.gateway)
    for settings, by in ((compact._SMALL, None), (compact._SORTED, "relative_path")):
        delta.optimize(location, settings, by=by)
        assert len(log.files("relative_path")) == 1
        assert place.rows(_KEPT.format(location)) == held
        assert place.stream("before") == shown

    stream = place.session.streams.get("before")
    covered = place.session.reader.pin(stream)
    assert covered is not None
    assert not place.session.reader.only_upkeep(covered)
    place.session.streams.advance("before", to_version=version)
    covered = place.session.reader.pin(place.session.streams.get("before"))
    assert covered is not None
    assert place.session.reader.only_upkeep(covered)
    assert place.stream("before") == []

    place.put("after", "after")
    place.delete("kept")
    assert keeper.take(_fold(place, "after", "kept")).commits == 1
    assert [(row["__change_type"], row["relative_path"]) for row in place.stream("before")] == [
        ("INSERT", "after"), ("DELETE", "kept"),
    ]  # fmt: skip
    assert not keeper.tend()


@pytest.mark.long
def test_rows_read_without_spark_are_those_that_spark_reads(place: Place) -> None:
    names = [f"{number} 'quoted' \\ back" for number in range(30)]
    for name in names:
        place.put(name)
    place.refresh()
    keeper = place.keeper()
    for number, name in enumerate(names[:20]):
        if number % 2:
            place.delete(name)
        else:
            place.put(name, "changed")
    keeper.take(_fold(place, *names[:20]))
    log = DeltaLog(table.location(place.session.warehouse, place.volume.id))
    version = log.latest_version()
    assert version is not None
    by_spark = place.rows("SELECT * FROM DIRECTORY(VOLUME v) ORDER BY relative_path")
    found = rows.read(log.location, version, table.SCHEMA).sort_by("relative_path").to_pylist()
    assert [dict(sorted(row.items())) for row in found] == [dict(sorted(row.items())) for row in by_spark]
    assert len(rows.read(log.location, version - 1, table.SCHEMA)) == 30
    assert len(rows.read(log.location, version, table.SCHEMA, limit=7)) == 7
    one = rows.read(log.location, version, table.SCHEMA, f"relative_path = {rows.text(names[0])}")
    assert one["relative_path"].to_pylist() == names[:1]


def _fold(place: Place, *names: str) -> Fold:
    fold = Fold(place.volume.selection)
    fold.add([KeyHint(name) for name in names])
    return fold


@pytest.mark.timeout(240)
def test_the_log_is_kept_behind_the_oldest_offset_and_shortened_to_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PROPERTIES", {**table.PROPERTIES, "delta.checkpointInterval": "3"})
    keeper = DirectoryKeeper(
        place.volume,
        place.session.catalog,
        place.gateway,
        place.session.settings.model_copy(update={"directory_versions": 2}),
    )
    log = log_of(place)

    def add(*names: str) -> None:
        for name in names:
            place.put(name)
            keeper.take(_fold(place, name))

    def offset() -> int:
        (stream,) = place.session.streams.list()
        assert stream.offset is not None
        return stream.offset

    def kept() -> int:
        keeper.tend()
        version = cleanup.earliest(log.location)
        assert version is not None
        return version

    add("a")
    place.job("def f(file):\n    return {'n': 1}\n")
    place.run()
    (batch,) = place.session.batches.list("j")
    add("b", "c", "d", "e")
    assert kept() == 0
    assert [row["relative_path"] for row in place.session.batches.read(batch.id).toArrow().to_pylist()] == ["a"]
    place.run()
    add("f", "g", "h")
    assert 0 < kept() <= offset()
    place.run()
    first = kept()
    assert first > offset() - 4

    add("i")
    place.session.streams.create("within", "v", at_version=first)
    assert [row["relative_path"] for row in place.stream("within")][-1] == "i"
    assert [path for path, _ in place.table()] == list("abcdefgh")
    assert place.rows("SELECT count(*) AS files FROM DIRECTORY(VOLUME v)") == [{"files": 9}]
    story = [event.what for event in tell(place.session, "v", "b")]
    assert story == ["in the directory", "has result rows", "in the range of a batch", "in the store now"]
    with pytest.raises(InvalidStateError, match="history is kept from version"):
        place.session.batches.read(batch.id)
    with pytest.raises(InvalidValueError, match=f"history goes from {first} to"):
        place.session.streams.create("late", "v", at_version=first - 1)


def log_of(place: Place) -> DeltaLog:
    return DeltaLog(table.location(place.session.warehouse, place.volume.id))

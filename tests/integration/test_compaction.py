"""Compaction of a directory table: rows, streams and history are what they were, and few files are left."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Place
from volstream.delta import rows
from volstream.delta.log import DeltaLog
from volstream.delta.writer import DeltaWriter
from volstream.directory import compact, table
from volstream.directory.fold import Fold
from volstream.model.hints import KeyHint

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
    assert not keeper.compact()


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

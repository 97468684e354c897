"""Upkeep of a directory table: rows and streams are what they were, and few files and versions are left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.conftest import LONG_AGO, Place
from volstream.delta import cleanup, rows
from volstream.delta.log import DeltaLog
from volstream.delta.writer import DeltaWriter
from volstream.directory import table, upkeep
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
    for settings, by in ((upkeep._SMALL, None), (upkeep._SORTED, "relative_path")):
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
def test_the_log_and_old_files_are_kept_behind_the_oldest_offset_and_no_longer(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    often = {"delta.checkpointInterval": "3", "delta.deletedFileRetentionDuration": "interval 1 hours"}
    monkeypatch.setattr(table, "PROPERTIES", {**table.PROPERTIES, **often})
    settings = place.session.settings.model_copy(update={"directory_versions": 2})
    keeper = DirectoryKeeper(place.volume, place.session.catalog, place.gateway, settings)
    log = log_of(place)

    def put(*names: str, content: str = "x") -> None:
        for name in names:
            place.put(name, content)
            keeper.take(_fold(place, name))

    def first_kept() -> int:
        keeper.tend()
        version = cleanup.earliest(log.location)
        assert version is not None
        return version

    def change_data() -> set[Path]:
        return {*Path(log.location).glob("_change_data/*.parquet")}

    put("a")
    put("a", content="changed")
    place.job("def f(file):\n    return {'n': file.size}\n")
    place.run()
    (batch,) = place.session.batches.list("j")
    put("b", "c", "d", "e")
    assert first_kept() == 0
    assert [row["relative_path"] for row in place.session.batches.read(batch.id).toArrow().to_pylist()] == ["a"]

    place.run()
    (stream,) = place.session.streams.list()
    assert stream.offset is not None
    old = change_data()
    put("a", content="and again")
    new = change_data() - old
    put("f", "g")
    assert len(old) == len(new) == 1
    for file in old:
        os.utime(file, (LONG_AGO, LONG_AGO))
    assert 0 < first_kept() <= stream.offset
    assert change_data() == new
    assert log.commits_after(stream.offset)[-1].operation == "VACUUM END"
    place.run()
    first = first_kept()
    assert first > stream.offset
    assert place.table() == [("a", 9), *((name, 1) for name in "bcdefg")]

    put("h")
    place.session.streams.create("within", "v", at_version=first)
    assert [row["relative_path"] for row in place.stream("within")] == ["h"]
    assert place.rows("SELECT count(*) AS files FROM DIRECTORY(VOLUME v)") == [{"files": 8}]
    story = [event.what for event in tell(place.session, "v", "b")]
    assert story == ["in the directory", "has result rows", "in the range of a batch", "in the store now"]
    with pytest.raises(InvalidStateError, match="history is kept from version"):
        place.session.batches.read(batch.id)
    with pytest.raises(InvalidValueError, match=f"history goes from {first} to"):
        place.session.streams.create("late", "v", at_version=first - 1)


def log_of(place: Place) -> DeltaLog:
    return DeltaLog(table.location(place.session.warehouse, place.volume.id))

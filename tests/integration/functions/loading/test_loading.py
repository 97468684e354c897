"""Jobs that load files as rows of a table: the rows follow their files, new columns become the table's, and nothing is lost."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests import objects
from tests.integration.conftest import Place
from tests.interrupts import interrupted
from volstream import compat
from volstream.base.definitions import JobState, OnMove, TriggerKind
from volstream.base.model.work import FailureKind, FailureState
from volstream.errors import AlreadyExistsError, InvalidStateError, InvalidValueError, NotFoundError, SqlError


def load(place: Place, **options: Any) -> str:
    """Creates the job ``j`` into the table ``t``; its columns."""
    return objects.file_job(place.session.jobs.load("j", "v", "t", **options)).returns


def more(place: Place, **files: str) -> None:
    """Puts csv files and runs the job."""
    for name, content in files.items():
        place.put(f"{name}.csv", content)
    place.refresh()
    place.session.jobs.run("j", until_empty=True)


def table(place: Place, columns: str) -> list[tuple[Any, ...]]:
    """The rows of the table, in any order that does not depend on chance; some values are NULL."""
    return sorted((tuple(row.values()) for row in place.rows(f"SELECT {columns} FROM {place.at}")), key=repr)


def failures(place: Place) -> dict[str, tuple[FailureKind, FailureState]]:
    return {failure.path: (failure.kind, failure.state) for failure in place.session.jobs.failures("j")}


def test_rows_follow_their_files(place: Place) -> None:
    place.put("a.csv", "id,name\n1,x\n2,y\n")
    place.put("b.json", '[{"id":3,"name":"z"}]')
    (place.folder / "c.csv.gz").write_bytes(gzip.compress(b"id,name\n4,w\n"))
    pq.write_table(pa.table({"ID": [5], "name": ["v"]}), place.folder / "d.parquet")
    (place.folder / "_SUCCESS").write_text("")
    assert load(place) == "id BIGINT, name STRING, _rescued_data STRING"
    report = place.run()
    assert (report.progress.files, report.progress.rows, report.progress.failed) == (5, 5, 0)
    columns = "_file_path, id, name, _rescued_data"
    assert table(place, columns) == [
        ("a.csv", 1, "x", None),
        ("a.csv", 2, "y", None),
        ("b.json", 3, "z", None),
        ("c.csv.gz", 4, "w", None),
        ("d.parquet", 5, "v", None),
    ]
    place.put("a.csv", "id,name\n1,new\n")
    place.delete("b.json")
    place.delete("d.parquet")
    (place.folder / "c.csv.gz").rename(place.folder / "moved.csv.gz")
    place.refresh()
    place.run()
    assert table(place, columns) == [("a.csv", 1, "new", None), ("moved.csv.gz", 4, "w", None)]
    # Nothing has changed, so nothing is read.
    assert place.run().progress.batches == 0
    place.session.jobs.replay("j")
    assert table(place, columns) == [("a.csv", 1, "new", None), ("moved.csv.gz", 4, "w", None)]


@pytest.mark.long
def test_new_columns_are_added_with_types_for_the_values_of_all_files(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place)
    place.run()
    more(place, b="id,more\n2,5\n", c="id,More,`o d`d\n3,1.5,x\n", d="ID,empty\n4,\n")
    assert objects.file_job(place.session.jobs.get("j")).returns == (
        "id BIGINT, _rescued_data STRING, more DOUBLE, ```o_d``d` STRING"
    )
    assert table(place, "_file_path, id, more, ```o_d``d`, _rescued_data") == [
        ("a.csv", 1, None, None, None),
        ("b.csv", 2, 5.0, None, None),
        ("c.csv", 3, 1.5, "x", None),
        ("d.csv", 4, None, None, None),
    ]
    assert place.session.jobs.failures("j") == []
    # Later a value does not fit the new column.
    more(place, e="id,more\nx,y\n")
    assert (None, None, '{"id":"x","more":"y"}') in table(place, "id, more, _rescued_data")


@pytest.mark.long
def test_fields_of_structs_are_added_behind_those_of_the_table(place: Place) -> None:
    pq.write_table(pa.table({"s": [{"a": 1}], "l": [[{"x": 1}]], "m": [{"k": 1}]}), place.folder / "a.parquet")
    assert load(place) == ("s STRUCT<a: BIGINT>, l ARRAY<STRUCT<x: BIGINT>>, m STRUCT<k: BIGINT>, _rescued_data STRING")
    place.run()
    pq.write_table(pa.table({"s": [{"b": 2, "a": 2}], "l": [[{"x": 2, "Y": "y"}]]}), place.folder / "b.parquet")
    pq.write_table(pa.table({"s": [{"b": 2.5, "c": [{"d": 1}]}], "n": [{"o": 1}]}), place.folder / "c.parquet")
    place.put("d.json", '{"s": {"b": 3, "e": {"f": true}}}')
    more(place)
    assert objects.file_job(place.session.jobs.get("j")).returns == (
        "s STRUCT<a: BIGINT, b: DOUBLE, c: ARRAY<STRUCT<d: BIGINT>>, e: STRUCT<f: BOOLEAN>>, l ARRAY<STRUCT<x: BIGINT, `Y`: STRING>>, "
        "m STRUCT<k: BIGINT>, _rescued_data STRING, n STRUCT<o: BIGINT>"
    )
    assert table(place, "_file_path, to_json(s), to_json(l), m.k, n.o, _rescued_data") == [
        ("a.parquet", '{"a":1}', '[{"x":1}]', 1, None, None),
        ("b.parquet", '{"a":2,"b":2.0}', '[{"x":2,"Y":"y"}]', None, None, None),
        ("c.parquet", '{"b":2.5,"c":[{"d":1}]}', None, None, 1, None),
        ("d.json", '{"b":3.0,"e":{"f":true}}', None, None, None, None),
    ]


@pytest.mark.long
def test_a_run_says_which_columns_are_new_and_how_many_rows_have_rescued_data(place: Place) -> None:
    place.put("a.csv", "id\n1\n2\n")
    load(place)
    place.run()
    for name, content in (("b", "id,more\n2,5\n"), ("c", "id\nx\ny\n3\n")):
        place.put(f"{name}.csv", content)
    place.refresh()
    done = place.run().progress
    assert (done.new_columns, done.counted) == (["more"], {"rows with rescued data": 2})


@pytest.mark.long
def test_each_of_many_batches_may_bring_a_column(place: Place) -> None:
    place.put("0.csv", "id\n0\n")
    load(place, schema="id INT", max_files=1)
    place.run()
    more(place, **{str(number): f"id,c{number}\n{number},{number}\n" for number in range(1, 5)})
    assert table(place, "id, c1, c2, c3, c4") == [
        (number, *(number if number == other else None for other in range(1, 5))) for number in range(5)
    ]


@pytest.mark.long
@pytest.mark.parametrize(
    ("event", "function"),
    [
        ("return", "volstream.jobs.rules.columns.adopt"),
        ("call", "volstream.tables.delta.writer.DeltaWriter.add_columns"),
        ("call", "volstream.jobs.batches.attempt.BatchExecutor._commit"),
    ],
)
def test_an_interruption_while_a_column_is_added_loses_and_doubles_nothing(place: Place, event: Any, function: str) -> None:
    place.put("a.csv", "id\n1\n")
    load(place)
    place.run()
    place.put("b.csv", "id,more\n2,x\n")
    place.put("a.csv", "id\n3\n")
    place.refresh()
    with interrupted(event, function):
        place.run()
    place.run()
    assert table(place, "_file_path, id, more, _rescued_data") == [("a.csv", 3, None, None), ("b.csv", 2, "x", None)]


@pytest.mark.long
def test_new_columns_are_rescued_on_request(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place, new_columns="rescue")
    more(place, b="id,more\n2,x\n")
    assert table(place, "id, _rescued_data") == [(1, None), (2, '{"more":"x"}')]


@pytest.mark.long
def test_a_file_with_new_columns_fails_on_request_until_they_are_accepted(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place, new_columns="fail", delimiter=",")
    more(place, b="id,more\n2,x\n", c="id\n3\n")
    assert table(place, "_file_path, id") == [("a.csv", 1), ("c.csv", 3)]
    assert failures(place) == {"b.csv": (FailureKind.NEW_COLUMNS, FailureState.QUARANTINED)}
    (failure,) = place.session.jobs.failures("j")
    assert failure.message == "The file has columns that the table lacks: more STRING."
    altered = objects.file_job(place.session.jobs.alter("j", arguments={"new_columns": "add"}))
    assert altered.arguments == {"new_columns": "add", "delimiter": ",", "inferred": "id"}
    place.run()
    assert table(place, "_file_path, id, more") == [("a.csv", 1, None), ("b.csv", 2, "x"), ("c.csv", 3, None)]
    assert place.session.jobs.failures("j") == []


def test_a_malformed_file_fails_alone_and_heals_when_it_is_replaced(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place)
    place.put("b.json", '[{"id":1')
    place.put("notes.txt", "no rows")
    more(place)
    assert table(place, "_file_path, id") == [("a.csv", 1)]
    assert failures(place) == {
        "b.json": (FailureKind.MALFORMED, FailureState.QUARANTINED),
        "notes.txt": (FailureKind.MALFORMED, FailureState.QUARANTINED),
    }
    place.put("b.json", '[{"id":2}]')
    place.delete("notes.txt")
    more(place)
    assert table(place, "_file_path, id") == [("a.csv", 1), ("b.json", 2)]
    assert failures(place) == {}


@pytest.mark.long
def test_a_failed_file_keeps_its_rows(place: Place) -> None:
    place.put("a.json", '[{"id":1}]')
    load(place)
    place.run()
    place.put("a.json", '[{"id":2}')
    more(place)
    assert table(place, "_file_path, id") == [("a.json", 1)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_a_file_with_too_many_bad_rows_keeps_its_rows_until_it_or_the_limit_changes(place: Place, seed: int) -> None:
    chance = random.Random(seed)
    load(place, schema="id BIGINT", max_bad_rows="0", pause_after=0)
    present: dict[str, list[str]] = {}  # the values of each file
    loaded: dict[str, list[str]] = {}  # those of its version in the table
    failed: set[str] = set()
    limit = 0
    for _ in range(6):
        changed = set()
        for name in chance.sample("abcd", chance.randint(0, 3)):
            changed.add(name)
            if chance.random() < 0.2:
                loaded.pop(name, None)
                if present.pop(name, None):
                    place.delete(f"{name}.csv")
            else:
                present[name] = [chance.choice(["1", "2", "x", "y"]) for _ in range(chance.randint(1, 6))]
                place.put(f"{name}.csv", "".join(f"{value}\n" for value in ["id", *present[name]]))
        place.refresh()
        if chance.random() < 0.4:
            limit = chance.randint(0, 3)
            place.session.jobs.alter("j", arguments={"max_bad_rows": str(limit)})
            changed |= failed
        place.session.jobs.run("j", until_empty=True)
        for name in changed & present.keys():
            failed.discard(name)
            if sum(value in "xy" for value in present[name]) <= limit:
                loaded[name] = present[name]
            else:
                failed.add(name)
        failed &= present.keys()
        kept = [(f"{name}.csv", value) for name, values in loaded.items() for value in values]
        columns = "_file_path, coalesce(CAST(id AS STRING), get_json_object(_rescued_data, '$.id'))"
        rows = table(place, columns) if Path(place.location).exists() else []
        assert rows == sorted(kept)
        assert {*failures(place)} == {f"{name}.csv" for name in failed}


@pytest.mark.long
def test_an_empty_volume_gets_its_columns_from_its_first_files(place: Place) -> None:
    assert load(place) == "_rescued_data STRING"
    more(place, a="id,name\n1,x\n")
    assert table(place, "id, name") == [(1, "x")]


def test_without_files_and_new_columns_a_schema_is_needed(place: Place) -> None:
    with pytest.raises(InvalidValueError, match="v has no rows yet to infer columns from"):
        load(place, new_columns="rescue")
    assert load(place, new_columns="rescue", schema="id INT") == "id INT, _rescued_data STRING"


@pytest.mark.long
def test_an_existing_table_keeps_its_columns_and_types(place: Place) -> None:
    place.gateway.session().sql(f"CREATE TABLE {place.at} (Id INT, note STRING) USING DELTA").collect()
    place.gateway.session().sql(f"INSERT INTO {place.at} VALUES (0, 'mine')").collect()
    place.put("a.csv", "id,extra\n1,x\n99999999999,y\n")
    assert load(place) == "`Id` INT, note STRING, extra STRING, _rescued_data STRING"
    place.run()
    assert table(place, "Id, note, extra, _rescued_data") == [
        (0, "mine", None, None),
        (1, None, "x", None),
        (None, None, "y", '{"id":"99999999999"}'),
    ]


@pytest.mark.long
def test_codes_are_rescued_from_number_columns_that_were_found_until_someone_declares_them(place: Place) -> None:
    place.gateway.session().sql(f"CREATE TABLE {place.at} (id BIGINT) USING DELTA").collect()
    place.put("a.csv", "id,zip\n1,10115\n")
    load(place)
    more(place, b="id,zip,phone\n002,02139,49151\n", c="id,zip,phone\n3,20095,+49151\n")
    columns = "id, zip, phone, _rescued_data"
    assert table(place, columns) == [(1, 10115, None, None), (2, None, "49151", '{"zip":"02139"}'), (3, 20095, "+49151", None)]
    more(place, d="id,area\n4,30\n", e="id,area\n5,040\n")
    more(place, f="id,area\n6,030\n")
    assert table(place, "id, area")[3:] == [(4, "30"), (5, "040"), (6, "030")]
    place.session.jobs.load("j", "v", "t", or_replace=True)
    more(place, g="id,zip\n7,00501\n")
    assert [row for row in table(place, "id, zip, _rescued_data") if row[0] == 7] == [(7, None, '{"zip":"00501"}')]
    place.session.jobs.alter("j", returns="id BIGINT, zip BIGINT, phone STRING, area STRING")
    place.session.jobs.replay("j")
    assert [row[1] for row in table(place, "id, zip")][1::5] == [2139, 501]


def test_a_column_that_a_file_adds_has_a_type_that_was_found(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place)
    more(place, b="id,zip\n2,10115\n")
    more(place, c="id,zip\n3,02139\n")
    assert table(place, "id, zip, _rescued_data") == [(1, None, None), (2, 10115, None), (3, None, '{"zip":"02139"}')]


def test_another_schema_and_a_replay_put_rescued_values_into_their_column(place: Place) -> None:
    place.put("a.json", '{"id":1,"at":{"x":1.5}}\n{"id":"b"}')
    load(place, schema="id INT", new_columns="rescue")
    place.run()
    assert table(place, "id, _rescued_data") == [(1, '{"at":{"x":1.5}}'), (None, '{"id":"b"}')]
    altered = place.session.jobs.alter("j", returns="id INT, at STRUCT<x: DOUBLE>, _RESCUED_data STRING")
    assert objects.file_job(altered).returns == "id INT, at STRUCT<x: DOUBLE>, _rescued_data STRING"
    place.session.jobs.replay("j")
    assert table(place, "id, at, _rescued_data") == [(1, {"x": 1.5}, None), (None, None, '{"id":"b"}')]


@pytest.mark.long
def test_only_files_that_meet_the_condition_are_loaded_and_tell_the_columns(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    place.put("b.csv", "other\n2\n")
    assert load(place, where="relative_path LIKE 'a%'") == "id BIGINT, _rescued_data STRING"
    place.run()
    assert table(place, "_file_path, id") == [("a.csv", 1)]


@pytest.mark.long
def test_rows_may_follow_a_moved_file_without_reading_it(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place, on_move=OnMove.REKEY)
    place.run()
    (place.folder / "a.csv").rename(place.folder / "b.csv")
    more(place)
    assert table(place, "_file_path, id") == [("b.csv", 1)]


@pytest.mark.long
@pytest.mark.parametrize("isolate", [False, True])
def test_a_large_file_is_loaded_whole(place: Place, isolate: bool) -> None:
    lines = [f"{number},{'x' * 50}" for number in range(150_000)]
    place.put("a.csv", "id,text\n" + "\n".join(lines))
    load(place, isolate=isolate)
    assert place.run().progress.rows == 150_000
    assert place.rows(f"SELECT count(*) n, sum(id) s, count(DISTINCT id) d FROM {place.at}") == [
        {"n": 150_000, "s": sum(range(150_000)), "d": 150_000}
    ]


@pytest.mark.long
def test_a_statement_creates_a_job_that_loads(place: Place) -> None:
    place.put("a.csv", "1;x\n")
    place.session.sql(
        "CREATE JOB j ON VOLUME v LOAD (FORMAT = 'csv', header false, DELIMITER ';', schema 'n INT, s STRING', "
        "NEW_COLUMNS = rescue) INTO TABLE t EVERY '1h' WHERE (size > 0) PROPERTIES ('retries' = '1') COMMENT 'rows'"
    )
    job = objects.file_job(place.session.jobs.get("j"))
    assert (job.trigger.kind, job.retries, job.where, job.comment) == (TriggerKind.EVERY, 1, "size > 0", "rows")
    assert job.arguments == {"format": "csv", "header": "false", "delimiter": ";", "new_columns": "rescue"}
    place.run()
    assert table(place, "n, s, _rescued_data") == [(1, "x", None)]
    place.session.sql("CREATE OR REPLACE JOB j ON VOLUME v LOAD INTO t2")
    assert objects.file_job(place.session.jobs.get("j")).arguments == {}


@pytest.mark.parametrize(
    ("clauses", "error", "message"),
    [
        ("ON VOLUME v LOAD", SqlError, "A job that loads files needs ON VOLUME and INTO"),
        ("ON STREAM s LOAD INTO t", SqlError, "A job that loads files has no ON STREAM"),
        ("ON VOLUME v LOAD FUNCTION 'f.py:f' INTO t", SqlError, "A job that loads files has no FUNCTION"),
        ("ON VOLUME v LOAD (COLOR 'red') INTO t", InvalidValueError, "no load option 'color'"),
        ("ON VOLUME v LOAD (FORMAT 'xml') INTO t", InvalidValueError, "'xml' is not an allowed value"),
        ("ON VOLUME v LOAD (HEADER 'x') INTO t", InvalidValueError, "header: 'x' is not true or false"),
        ("ON VOLUME v LOAD INTO t PROPERTIES ('arg.a' = 'b')", InvalidValueError, "no property 'arg.KEY'"),
        ("ON VOLUME w LOAD INTO t", NotFoundError, "no volume w"),
        ("LOAD AS INSERT INTO t SELECT 1", SqlError, "A job of a statement has no LOAD"),
    ],
)
def test_statements_that_make_no_sense_are_errors(place: Place, clauses: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        place.session.sql(f"CREATE JOB j {clauses}")


@pytest.mark.long
def test_a_table_is_created_from_a_volume_at_once(place: Place) -> None:
    place.put("a.json", json.dumps({"id": 1, "tags": ["x"]}))
    rows = place.session.create_table_from_volume("loaded", "v", format="json", schema="id INT, tags ARRAY<STRING>")
    assert [row.asDict() for row in rows.select("id", "tags").collect()] == [{"id": 1, "tags": ["x"]}]
    hosted = compat.Session(place.session).create_table_from_volume("again", "v", schema="id INT")
    assert [tuple(row) for row in hosted.select("id").collect()] == [(1,)]
    job = place.session.jobs.get("load_loaded")
    assert (job.trigger.kind, job.state) == (TriggerKind.ON_CHANGE, JobState.ACTIVE)
    with pytest.raises(AlreadyExistsError):
        place.session.create_table_from_volume("loaded", "v")


def test_a_job_that_loads_has_no_function_and_checks_its_options(place: Place) -> None:
    place.put("a.csv", "id\n1\n")
    load(place)
    with pytest.raises(InvalidValueError, match="loads files, so it has no function"):
        place.session.jobs.alter("j", function="f.py:f")
    with pytest.raises(InvalidValueError, match="'xml' is not an allowed value"):
        place.session.jobs.alter("j", arguments={"format": "xml"})
    assert load(place, if_not_exists=True) == "id BIGINT, _rescued_data STRING"


def test_a_sample_that_cannot_be_read_is_told_at_once(place: Place) -> None:
    place.put("a.parquet", "x")
    with pytest.raises(InvalidValueError, match=r"none of 1 file can be read\. .* as parquet"):
        load(place)
    assert place.session.jobs.list() == []


def test_files_that_have_gone_tell_no_columns(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.put(f"{name}.csv", "id\n1\n")
    place.refresh()
    place.delete("b.csv")
    assert load(place) == "id BIGINT, _rescued_data STRING"
    place.session.jobs.drop("j")
    place.delete("a.csv")
    place.delete("c.csv")
    with pytest.raises(InvalidStateError, match=r"(?s)have changed since its last refresh: c.csv.*volstream refresh v"):
        load(place)


def nested_orc(depth: int) -> bytes:
    """An ORC file of no rows whose one column is a struct in a struct, and so on: PyArrow's reader ends its process at many."""

    def number(value: int) -> bytes:
        low, high = value & 0x7F, value >> 7
        return bytes([low | 0x80]) + number(high) if high else bytes([low])

    def field(at: int, value: int | bytes) -> bytes:
        if isinstance(value, int):
            return number(at << 3) + number(value)
        return number(at << 3 | 2) + number(len(value)) + value

    types = b"".join(field(4, field(1, 12) + field(2, number(level + 1)) + field(3, b"f")) for level in range(depth)) + field(
        4, field(1, 4)
    )
    footer = field(1, 3) + field(2, 3) + types + field(6, 1)
    script = field(1, len(footer)) + field(2, 0) + field(3, 1 << 18) + field(4, number(0) + number(12))
    script += field(5, 0) + field(6, 1) + field(8000, b"ORC")
    return b"ORC" + footer + script + bytes([len(script)])


@pytest.mark.long
def test_a_file_that_ends_its_reader_ends_nothing_else(place: Place) -> None:
    (place.folder / "a.orc").write_bytes(nested_orc(30_000))
    place.refresh()
    with pytest.raises(InvalidValueError, match=r"none of 1 file can be read\. The process that ran"):
        load(place)
    place.put("b.csv", "id\n1\n")
    place.refresh()
    assert load(place) == "id BIGINT, _rescued_data STRING"
    assert place.run().progress.rows == 1
    assert set(failures(place)) == {"a.orc"}


def test_a_column_of_another_type_is_refused_in_the_words_of_loading(place: Place) -> None:
    place.put("a.csv", "code\n10\n")
    load(place)
    place.run()
    with pytest.raises(InvalidValueError, match="Column code of table t is BIGINT, but it is declared as STRING"):
        place.session.jobs.alter("j", returns="code STRING, _rescued_data STRING")

"""Files of Spark's former calendar, against the rule of calendars: the same day, month and year is another number of days."""

from __future__ import annotations

import io
import random
from datetime import date, datetime, timedelta
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.loading import Files
from volstream.functions.rejection import FileRejectedError

SPARK_2 = {"org.apache.spark.version": "2.4.8"}
LEGACY = {"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": "", "org.apache.spark.timeZone": "UTC"}
TODAY = {"org.apache.spark.version": "4.0.0"}
EPOCH = date(1970, 1, 1)


def days(day: date) -> int:
    """The days since 1970 in the calendar that was Julian before 1582-10-15: by the formula for Julian day numbers."""
    if day >= date(1582, 10, 15):
        return (day - EPOCH).days
    shift = (14 - day.month) // 12
    year, month = day.year + 4800 - shift, day.month + 12 * shift - 3
    return day.day + (153 * month + 2) // 5 + 365 * year + year // 4 - 32083 - 2440588


def dates(seed: int) -> list[date]:
    pick = random.Random(seed)
    some = [date.fromordinal(pick.randrange(1, date(1700, 1, 1).toordinal())) for _ in range(300)]
    ends = [date(year, month, day) for year in range(1, 1601, 100) for month, day in ((1, 1), (2, 28), (3, 1), (12, 31))]
    labels = [*some, *ends, date(1582, 10, 15), date(1582, 10, 4), date(2026, 11, 30)]
    return [label for label in labels if not date(1582, 10, 5) <= label < date(1582, 10, 15)]


@pytest.mark.parametrize("metadata", [SPARK_2, LEGACY])
@pytest.mark.parametrize("seed", range(3))
def test_dates_and_times_are_the_same_days_as_their_writer_meant(files: Files, metadata: dict[str, str], seed: int) -> None:
    labels = dates(seed)
    noon = [days(label) * 86_400_000_000 + 43_200_000_000 for label in labels]
    table = pa.table(
        {
            "d": pa.array([*map(days, labels), None], pa.int32()).cast(pa.date32()),
            "t": pa.array([*noon, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "l": pa.array([*noon, None], pa.int64()).cast(pa.timestamp("us")),
        }
    ).replace_schema_metadata(metadata)
    rows = files.rows("a.parquet", table)
    assert [row["d"] for row in rows] == [*labels, None]
    meant = [datetime(label.year, label.month, label.day, 12) for label in labels]
    for name in ("t", "l"):
        assert [None if row[name] is None else row[name].replace(tzinfo=None) for row in rows] == [*meant, None]


def avro(metadata: dict[str, str], kind: Any, values: list[Any]) -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": kind}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [{"v": value} for value in values], metadata=metadata)
    return sink.getvalue()


@pytest.mark.parametrize(("metadata", "moved"), [(SPARK_2, True), (LEGACY, True), (TODAY, False), ({}, False)])
def test_an_avro_file_is_read_as_its_metadata_say(files: Files, metadata: dict[str, str], moved: bool) -> None:
    label = date(1000, 1, 1)
    written = EPOCH + timedelta(days(label))
    content = avro(metadata, {"type": "int", "logicalType": "date"}, [written])
    assert files.rows("a.avro", content) == [{"v": label if moved else written}]


@pytest.mark.parametrize("metadata", [TODAY, {}])
def test_other_parquet_files_are_as_they_are(files: Files, metadata: dict[str, str]) -> None:
    table = pa.table({"d": pa.array([date(1000, 1, 6)])}).replace_schema_metadata(metadata)
    assert files.rows("a.parquet", table) == [{"d": date(1000, 1, 6)}]


@pytest.mark.parametrize(
    ("values", "accepted"),
    [
        (pa.array([[date(1582, 10, 14)]]), False),
        (pa.array([[date(1582, 10, 15)], None]), True),
        (pa.array([{"d": date(1000, 1, 1)}]), False),
        (pa.array([{"d": None}, {"d": date(1999, 1, 1)}]), True),
        (pa.array([[("k", datetime(1500, 1, 1))]], pa.map_(pa.string(), pa.timestamp("us"))), False),
        (pa.array([[("k", datetime(1600, 1, 1))]], pa.map_(pa.string(), pa.timestamp("us"))), True),
    ],
)
def test_a_file_with_such_dates_inside_of_values_is_rejected(files: Files, values: pa.Array, accepted: bool) -> None:
    table = pa.table({"v": values}).replace_schema_metadata(SPARK_2)
    if accepted:
        assert len(files.rows("a.parquet", table)) == len(values)
        return
    with pytest.raises(FileRejectedError, match="set to CORRECTED"):
        files.rows("a.parquet", table)


@pytest.mark.parametrize(("moment", "accepted"), [(datetime(1899, 12, 31), False), (datetime(1900, 1, 1), True)])
def test_early_times_of_a_writer_in_another_zone_are_rejected(files: Files, moment: datetime, accepted: bool) -> None:
    metadata = {**LEGACY, "org.apache.spark.timeZone": "America/Los_Angeles"}
    table = pa.table({"v": pa.array([moment], pa.timestamp("us"))}).replace_schema_metadata(metadata)
    if accepted:
        [row] = files.rows("a.parquet", table)
        assert row["v"].replace(tzinfo=None) == moment
        return
    with pytest.raises(FileRejectedError, match="another zone than UTC"):
        files.rows("a.parquet", table)


@pytest.mark.parametrize("kind", ["timestamp-nanos", "local-timestamp-nanos"])
@pytest.mark.parametrize("nullable", [True, False])
def test_times_in_nanoseconds_are_times(files: Files, kind: str, nullable: bool) -> None:
    node: Any = {"type": "long", "logicalType": kind}
    content = avro({}, ["null", node] if nullable else node, [1_700_000_000_123_456_000, *([None] if nullable else [])])
    rows = files.rows("a.avro", content)
    assert rows[0]["v"].replace(tzinfo=None) == datetime(2023, 11, 14, 22, 13, 20, 123456)
    assert [row["v"] for row in rows[1:]] == [None] * nullable


@pytest.mark.parametrize(
    ("folders", "columns", "values"),
    [
        (("m=01", "m=10"), "m BIGINT, n BIGINT", [1, 10]),
        (("m=10", "m=00", "m=09"), "m BIGINT, n BIGINT", [10, 0, 9]),
        (("m=01", "m=02139"), "m STRING, n BIGINT", ["01", "02139"]),
    ],
)
def test_a_month_of_two_digits_is_a_number_whichever_came_first(
    files: Files, folders: tuple[str, ...], columns: str, values: list[Any]
) -> None:
    every = [(f"{folder}/a.csv", "n\n1\n") for folder in folders]
    assert {*files.columns(*every).split(", ")} == {*columns.split(", ")}
    assert [row["m"] for name, content in every for row in files.rows(name, content, columns)] == values


@pytest.mark.parametrize(
    ("version", "marks", "int96", "days_moved", "times_moved"),
    [
        ("2.4.8", "", True, True, True),
        ("3.0.1", "", True, False, True),
        ("3.0.1", "", False, False, False),
        ("3.1.0", "", True, False, False),
        ("4.2.0", "DateTime", True, True, False),
        ("4.2.0", "DateTime", False, True, True),
        ("4.2.0", "INT96", True, False, True),
        ("4.2.0", "INT96", False, False, False),
        ("4.2.0", "DateTime INT96", True, True, True),
    ],
)
def test_times_of_int96_have_a_mark_of_their_own(
    files: Files, version: str, marks: str, int96: bool, days_moved: bool, times_moved: bool
) -> None:
    label = date(1000, 3, 1)
    number = days(label)
    metadata = {"org.apache.spark.version": version, **{f"org.apache.spark.legacy{mark}": "" for mark in marks.split()}}
    table = pa.table(
        {
            "d": pa.array([number], pa.int32()).cast(pa.date32()),
            "t": pa.array([number * 86_400_000_000], pa.int64()).cast(pa.timestamp("us")),
        }
    ).replace_schema_metadata(metadata)
    sink = io.BytesIO()
    pq.write_table(table, sink, use_deprecated_int96_timestamps=int96)
    [row] = files.rows("a.parquet", sink.getvalue())
    written = EPOCH + timedelta(number)
    assert row["d"] == (label if days_moved else written)
    assert row["t"].date() == (label if times_moved else written)

"""Values of classes that columns do not have: what functions return, and what their annotations say."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pydantic.dataclasses
import pytest

from volstream.base.model.text import to_json
from volstream.errors import InvalidValueError
from volstream.functions.returned import rows_of
from volstream.functions.rows import ArrowRows, Bounds, NotRowsError, RowRequirements
from volstream.functions.schema import Inference, from_ddl, from_declaration, to_ddl
from volstream.functions.types import convert
from volstream.functions.types.values import as_json, plain


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    HIGH = 3


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


class Site(pydantic.BaseModel):
    url: pydantic.HttpUrl
    color: Color = Color.RED


class Page(pydantic.BaseModel):
    site: Site
    links: list[pydantic.AnyUrl] = []


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

VALUES: list[tuple[Any, str, Any]] = [
    (Color.RED, "STRING", "red"),
    (Level.HIGH, "BIGINT", 3),
    (ID, "STRING", str(ID)),
    (PurePosixPath("a/b"), "STRING", "a/b"),
    (np.int8(3), "BIGINT", 3),
    (np.float32(1.5), "DOUBLE", 1.5),
    (np.bool_(True), "BOOLEAN", True),
    (np.str_("x"), "STRING", "x"),
    (np.str_("x\0"), "STRING", "x\0"),
    (np.bytes_(b"x\0"), "BINARY", b"x\0"),
    (np.datetime64("2026-03-01"), "DATE", date(2026, 3, 1)),
    (np.datetime64("0001-01-01T01:02:03.5"), "TIMESTAMP", datetime(1, 1, 1, 1, 2, 3, 500_000, tzinfo=UTC)),
    (pd.Timestamp("2026-03-01 01:00", tz="Europe/Berlin"), "TIMESTAMP", datetime(2026, 3, 1, 0, tzinfo=UTC)),
    (pa.scalar(5), "BIGINT", 5),
    (pydantic.HttpUrl("https://a.b/c"), "STRING", "https://a.b/c"),
    (pydantic.PostgresDsn("postgres://a/b"), "STRING", "postgres://a/b"),
    ([Color.RED, Color.BLUE], "ARRAY<STRING>", ["red", "blue"]),
    (
        {"id": ID, "at": [np.datetime64("2026-03-01", "s")]},
        "STRUCT<id: STRING, at: ARRAY<TIMESTAMP>>",
        {"id": str(ID), "at": [datetime(2026, 3, 1, tzinfo=UTC)]},
    ),
    (
        Page(site=Site(url=pydantic.HttpUrl("https://a.b")), links=[pydantic.AnyUrl("x://y")]),
        "STRUCT<site: STRUCT<url: STRING, color: STRING>, links: ARRAY<STRING>>",
        {"site": {"url": "https://a.b/", "color": "red"}, "links": ["x://y"]},
    ),
]


def taken(returned: Any, columns: str | None = None) -> list[Any]:
    rows, _ = rows_of(returned, RowRequirements(None if columns is None else from_ddl(columns), Bounds()))
    return rows.to_pylist() if isinstance(rows, ArrowRows) else list(rows)


@pytest.mark.parametrize(("value", "kind", "stored"), VALUES)
def test_a_value_becomes_what_its_column_holds(value: Any, kind: str, stored: Any) -> None:
    rows = taken([{"c": value}, {"c": None}])
    found = Inference()
    found.add("a.txt", rows)
    columns = found.result().columns
    assert to_ddl(columns) == f"c {kind}"
    assert convert.array([row["c"] for row in rows], columns.field("c").type).to_pylist() == [stored, None]


@pytest.mark.parametrize("missing", [pd.NA, pd.NaT, np.datetime64("NaT"), np.datetime64("NaT", "D")])
def test_what_is_missing_is_null(missing: Any) -> None:
    assert taken({"c": missing, "l": [1, missing]}) == [{"c": None, "l": [1, None]}]


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "values", "stored"),
    [
        ("STRING", ["x", NAN], ["x", None]),
        ("BOOLEAN", [NAN, True], [None, True]),
        ("DATE", [NAN, date(2026, 3, 1)], [None, date(2026, 3, 1)]),
        ("TIMESTAMP_NTZ", [datetime(2026, 3, 1), NAN], [datetime(2026, 3, 1), None]),
    ],
)
def test_nan_is_null_in_a_column_that_is_not_of_numbers(kind: str, values: list[Any], stored: list[Any]) -> None:
    column = from_ddl(f"c {kind}").field("c").type
    assert convert.array(values, column).to_pylist() == stored
    with pytest.raises(ValueError, match="a whole number is needed; for NULL, give None"):
        convert.array([1, NAN], pa.int64())


def test_nan_in_rows_of_pandas_decides_no_type_beside_other_values() -> None:
    frame = pd.DataFrame({"t": ["x", NAN], "n": [1, NAN], "e": [NAN, NAN]})
    for first, second in ([0, 1], [1, 0]):
        found = Inference()
        for at in (first, second):
            found.add(f"{at}.txt", taken(frame.to_dict("records")[at]))
        assert to_ddl(found.result().columns) == "t STRING, n DOUBLE, e DOUBLE"


def test_keys_are_plain_too() -> None:
    assert taken({"c": {Color.RED: 1, ID: 2, 3: Color.BLUE}}) == [{"c": {"red": 1, str(ID): 2, 3: "blue"}}]
    with pytest.raises(NotRowsError, match="a timedelta, which no column holds"):
        taken({"c": {timedelta(1): 1}})
    keys = [{date(2026, 3, 1): 1, NAN: 2, (1, 2): 3, None: 4}]
    assert to_json(keys) == '[{"2026-03-01": 1, "NaN": 2, "(1, 2)": 3, "null": 4}]'
    assert as_json(keys) == '[{"2026-03-01":1,"NaN":2,"(1, 2)":3,"null":4}]'


class Square(pydantic.BaseModel):
    side: int

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> float:
        return self.side * 1.5


def test_computed_fields_are_columns() -> None:
    assert to_ddl(from_declaration(Square)) == "side BIGINT, area DOUBLE"
    assert taken(Square(side=2)) == [{"side": 2, "area": 3.0}]


class Open(pydantic.BaseModel, extra="allow"):
    a: int
    secret: str = pydantic.Field("x", exclude=True)


@pydantic.dataclasses.dataclass(config=pydantic.ConfigDict(extra="allow"))
class Excluding:
    a: int
    secret: str = pydantic.Field("x", exclude=True)


def test_extra_fields_of_models_are_columns_and_excluded_ones_are_none() -> None:
    assert taken(Open(a=1, zz=ID, m={"k": Color.RED})) == [{"a": 1, "zz": str(ID), "m": {"k": "red"}}]  # type: ignore[call-arg]
    assert taken({"c": [Open(a=1, zz="extra")]}) == [{"c": [{"a": 1, "zz": "extra"}]}]  # type: ignore[call-arg]
    assert taken(Excluding(1, "y")) == [{"a": 1}]
    assert taken(Excluding(a=1, secret="y", zz=ID)) == [{"a": 1, "zz": str(ID)}]  # type: ignore[call-arg]
    for declared in (Open, Excluding):
        assert to_ddl(from_declaration(declared)) == "a BIGINT"


@pytest.mark.parametrize(
    ("value", "instead"),
    [
        (timedelta(seconds=1), r"a timedelta, which no column holds; return seconds, value\.total_seconds\(\)"),
        (pd.Timedelta("1s"), "a Timedelta, which no column holds; return seconds"),
        (np.timedelta64(1, "s"), "a timedelta64, which no column holds; return seconds"),
        (time(1), r"return text, value\.isoformat\(\)"),
        ({2, 1}, r"return a list, sorted\(value\)"),
        (pd.Series([1]), r"return a list, value\.tolist\(\)"),
        (pydantic.SecretStr("hunter2"), r"a SecretStr.*return value\.get_secret_value\(\) if a table may have it\.$"),
        ([[1j]], "a complex, which no column holds"),
    ],
)
def test_a_value_that_would_lose_its_meaning_is_refused_with_what_to_return(value: Any, instead: str) -> None:
    with pytest.raises(NotRowsError, match=rf"The column 'c' has .*{instead}"):
        taken({"c": value})


@pytest.mark.parametrize("keys", [(Color.RED, "red"), (PurePosixPath("a"), "a")])
def test_keys_that_become_the_same_are_refused(keys: tuple[Any, Any]) -> None:
    for row in (dict.fromkeys(keys, 1), {"c": dict.fromkeys(keys, 1)}):
        with pytest.raises(NotRowsError, match="Two keys of a dict are stored as the same value"):
            taken(row)


def test_numbers_are_no_times_and_ids_no_numbers() -> None:
    with pytest.raises(ValueError, match="a datetime is needed"):
        convert.array([Decimal("1.5")], pa.timestamp("us", tz="UTC"))
    [row] = taken({"c": ID})
    with pytest.raises(pa.ArrowInvalid):
        convert.array([row["c"]], pa.int64())


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (Color, "STRING"),
        (Level, "BIGINT"),
        (uuid.UUID, "STRING"),
        (Path, "STRING"),
        (np.int64, "BIGINT"),
        (np.float32, "DOUBLE"),
        (np.datetime64, "TIMESTAMP"),
        (pd.Timestamp, "TIMESTAMP"),
        (pydantic.HttpUrl, "STRING"),
        (list[uuid.UUID], "ARRAY<STRING>"),
        (Page, "STRUCT<site: STRUCT<url: STRING, color: STRING>, links: ARRAY<STRING>>"),
    ],
)
def test_annotations_have_the_types_of_their_values(hint: Any, kind: str) -> None:
    assert to_ddl(from_declaration(dataclasses.make_dataclass("Row", [("c", hint)]))) == f"c {kind}"


T = TypeVar("T")


class Sites(pydantic.RootModel[list[Site]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    items: list[T]
    count: pydantic.PositiveInt


def test_generic_models_have_the_types_that_they_were_given() -> None:
    assert to_ddl(from_declaration(Sites)) == "root ARRAY<STRUCT<url: STRING, color: STRING>>"
    assert to_ddl(from_declaration(Box[Color])) == "items ARRAY<STRING>, count BIGINT"
    assert taken(Box[Color](items=[Color.RED], count=1)) == [{"items": ["red"], "count": 1}]
    assert taken(Sites([Site(url=pydantic.HttpUrl("https://a.b"))])) == [{"root": [{"url": "https://a.b/", "color": "red"}]}]


@pytest.mark.parametrize(
    ("hint", "reason"),
    [(timedelta, "a timedelta, which no column holds; return seconds"), (Mixed, "values have different types")],
)
def test_annotations_that_no_column_holds_are_refused(hint: Any, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        from_declaration(dataclasses.make_dataclass("Row", [("c", hint)]))


def test_dataframes_are_rows_alone_or_one_after_the_other() -> None:
    class Polars:
        """What polars has of Arrow."""

        def __init__(self, table: pa.Table) -> None:
            self._table = table

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return self._table.__arrow_c_stream__(requested_schema)

    def several() -> Iterator[Any]:
        yield pd.DataFrame({"a": [1, 2], "b": [pd.NA, "x"]})
        yield Polars(pa.table({"a": [3], "b": ["y"]}))
        yield pa.record_batch({"a": [4], "b": ["z"]})

    expected = [{"a": 1, "b": None}, {"a": 2, "b": "x"}, {"a": 3, "b": "y"}, {"a": 4, "b": "z"}]
    assert taken(several(), "a INT, b STRING") == expected
    assert taken(pd.DataFrame({"a": [1, 2], "b": [None, "x"]})) == expected[:2]
    with pytest.raises(NotRowsError, match="Arrow batches, and then a dict"):
        taken([pd.DataFrame({"a": [1]}), {"a": 2}])


@dataclass
class Sample:
    color: Color
    at: np.datetime64


def test_rows_of_classes_are_plain_too() -> None:
    assert taken(Sample(Color.BLUE, np.datetime64("2026-03-01"))) == [{"color": "blue", "at": date(2026, 3, 1)}]


#: Arrays of each type of numpy's, with values that tell it from others.
ARRAYS = [
    *(np.array([1, 2], kind) for kind in "bBhHiIlLefdg?"),
    np.array([2**63 + 5], np.uint64),
    np.array([1, 2], ">i4"),
    np.array([1.5], ">f8"),
    np.array([0.1], np.float32),
    np.array(["a", "b"]),
    np.array([b"a"]),
    *(np.array(["2026-01-01"], f"datetime64[{unit}]") for unit in ("Y", "M", "D", "h", "s", "ms", "us", "ns")),
    np.array(["2026-01-01T05", "NaT"], "datetime64[ns]"),
    np.array([1, None], object),
    np.array([ID, Color.RED], object),
    np.array([], np.float32),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}-{len(array)}")
def test_an_array_is_the_list_of_its_elements_in_any_dimensions(array: Any) -> None:
    def stored(value: Any) -> tuple[str, Any]:
        rows = taken([{"c": value}])
        found = Inference()
        found.add("a.txt", rows)
        columns = found.result().columns
        return to_ddl(columns), convert.array([row["c"] for row in rows], columns.field("c").type).to_pylist()

    elements = [*array]
    masked = np.ma.masked_array(array, [at == 0 for at in range(len(array))])
    for given, same in (
        (array, elements),
        (np.stack([array, array]), [elements, elements]),
        (array.reshape(1, -1, 1), [[[element] for element in elements]]),
        ([array], [elements]),
        (masked, [None, *elements[1:]] if elements else []),
        *((np.array(element, array.dtype), element) for element in elements),
    ):
        assert repr(stored(given)) == repr(stored(same))


def test_arrays_of_dates_and_of_vectors_fit_columns_that_are_declared() -> None:
    rows = taken({"a": np.array([[1.5, 2], [3, 4]], np.float32), "d": np.array(["2026-03-01"], "datetime64[D]")})
    vectors = from_ddl("a ARRAY<ARRAY<DOUBLE>>, d ARRAY<DATE>")
    assert convert.array([rows[0]["a"]], vectors.field("a").type).to_pylist() == [[[1.5, 2.0], [3.0, 4.0]]]
    assert convert.array([rows[0]["d"]], vectors.field("d").type).to_pylist() == [[date(2026, 3, 1)]]
    with pytest.raises(NotRowsError, match="The column 'c' has a timedelta64, which no column holds"):
        taken({"c": np.array([1], "timedelta64[s]")})


def test_what_is_masked_in_an_array_is_null() -> None:
    masked = np.ma.masked_equal(np.array([20, -9999, 21]), -9999)
    assert plain(masked) == [20, None, 21]
    assert plain(np.ma.masked) is None
    rows, _ = rows_of({"t": masked}, RowRequirements(from_ddl("t ARRAY<BIGINT>"), Bounds()))
    assert not isinstance(rows, ArrowRows), "it is plain"
    assert [dict(row) for row in rows] == [{"t": [20, None, 21]}]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"v": [1, 2]}, index=pd.to_datetime(["2026-01-01", "2026-01-02"])),
        pd.DataFrame.from_dict({"k1": {"n": 1}, "k2": {"n": 2}}, orient="index"),
        pd.DataFrame({"v": [1.0, 2.0]}).describe(),
        pd.DataFrame({"v": [1, 2]}, index=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)])),
    ],
)
def test_labels_of_an_index_without_a_name_are_not_dropped_unseen(frame: pd.DataFrame) -> None:
    with pytest.raises(NotRowsError, match=r"index has labels and no name.*reset_index\(drop=True\)"):
        taken(frame)
    assert taken(frame.reset_index(drop=True))
    assert (
        taken(frame.rename_axis("key") if frame.index.nlevels == 1 else frame.rename_axis(["key", "other"]))[0]["key"] is not None
    )


def test_positions_of_rows_are_no_column() -> None:
    frame = pd.DataFrame({"v": [3, 1, 2]})
    for some in (frame[frame.v > 1], frame.sort_values("v"), pd.concat([frame, frame]), frame.iloc[:0]):
        assert all({*row} == {"v"} for row in taken(some))


def test_a_column_of_dates_and_times_loses_no_time() -> None:
    mixed = [date(2026, 1, 1), datetime(2026, 1, 2, 17, 30), None]
    for values in (pd.Series(mixed, dtype=object), pd.Series(mixed, dtype=object).astype("category")):
        with pytest.raises(NotRowsError, match="a date is needed, without a time"):
            taken(pd.DataFrame({"at": values}), "at DATE")
    assert taken(pd.DataFrame({"at": [date(2026, 1, 1), None]}), "at DATE") == [{"at": date(2026, 1, 1)}, {"at": None}]


def test_objects_of_polars_are_taken_as_those_of_dicts() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"id": [uuid.UUID(int=5)], "n": [1]})
    assert taken(frame) == [{"id": str(uuid.UUID(int=5)), "n": 1}]


def test_numbers_longer_than_doubles_are_doubles() -> None:
    assert taken({"c": np.longdouble(1.5)}) == [{"c": 1.5}]
    with pytest.raises(NotRowsError, match="imaginary part"):
        taken({"c": np.clongdouble(1 + 2j)})


def test_a_named_index_is_a_column_whatever_its_kind() -> None:
    frame = pd.DataFrame({"v": ["p", "q"]})
    ranged = pd.DataFrame({"v": ["p", "q"]}, index=pd.RangeIndex(1, 3, name="line"))
    for named, labels in ((frame.rename_axis("line"), [0, 1]), (ranged, [1, 2]), (ranged[::-1], [2, 1])):
        assert [row["line"] for row in taken(named)] == labels
        assert [row["line"] for row in taken(named, "v STRING, line BIGINT")] == labels
    zoned = pd.DataFrame({"v": [1]}, index=pd.DatetimeIndex(["2026-03-01"], tz="Europe/Berlin", name="at"))
    assert taken(zoned)[0]["at"] == datetime(2026, 2, 28, 23, tzinfo=UTC)
    grouped = pd.DataFrame({"k": ["x", "x", "y"], "v": [1, 2, 3]}).groupby("k").agg({"k": "count"})
    several = pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([("x", "y")], names=["a", "z"]))
    for same in (grouped, several):
        with pytest.raises(NotRowsError, match=r"index has the name of a column, '[ka]'"):
            taken(same)


def test_a_column_called_like_the_levels_of_arrow_stays() -> None:
    frame = pd.DataFrame({"__index_level_0__": ["x"], "a": [1]})
    assert taken(frame) == taken(pa.table({"__index_level_0__": ["x"], "a": [1]})) == [{"__index_level_0__": "x", "a": 1}]

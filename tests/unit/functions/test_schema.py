"""Result columns: declared in three ways, stored as DDL."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict, cast

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.definitions import FileJob
from volstream.base.model.names import RESERVED_COLUMNS
from volstream.errors import InvalidValueError
from volstream.functions.file import File
from volstream.functions.returned import rows_of
from volstream.functions.rows import Bounds, RowRequirements
from volstream.functions.schema import PROVENANCE, declaration_of, from_ddl, from_declaration, of_declaration, of_job, to_ddl
from volstream.functions.signature import batch_size_of, function

SIMPLE = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", tz="UTC"),
        pa.timestamp("us"),
        pa.decimal128(38, 18),
        pa.decimal128(5, 0),
    ]
)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12)


def struct(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)
    return names.flatmap(
        lambda chosen: st.tuples(*[inner] * len(chosen)).map(
            lambda kinds: pa.struct([pa.field(*pair) for pair in zip(chosen, kinds, strict=True)])
        )
    )


TYPES = st.recursive(
    SIMPLE, lambda inner: st.one_of(inner.map(pa.list_), st.builds(pa.map_, SIMPLE, inner), struct(inner)), max_leaves=5
)
SCHEMAS = st.lists(
    st.tuples(NAMES.filter(lambda name: not name.startswith("_")), TYPES),
    min_size=1,
    max_size=5,
    unique_by=lambda field: field[0].lower(),
).map(lambda fields: pa.schema([pa.field(*field) for field in fields]))


@given(SCHEMAS)
def test_ddl_is_read_back_as_written(schema: pa.Schema) -> None:
    ddl = to_ddl(schema)
    assert from_ddl(ddl) == schema
    assert of_job(cast(FileJob, SimpleNamespace(returns=ddl))) == schema


def test_sql_keywords_can_be_column_names() -> None:
    from sqlglot.dialects.databricks import Databricks

    words = sorted({word.lower() for word in Databricks.Tokenizer.KEYWORDS if word.isidentifier()})
    assert "select" in words
    schema = pa.schema([pa.field(word, pa.int32()) for word in words])
    assert from_ddl(to_ddl(schema)) == schema


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("label STRING, score DOUBLE", {"label": pa.string(), "score": pa.float64()}),
        ("a int, b bigint, c float, d boolean", {"a": pa.int32(), "b": pa.int64(), "c": pa.float32(), "d": pa.bool_()}),
        ("a tinyint, b smallint, c binary, d date", {"a": pa.int8(), "b": pa.int16(), "c": pa.binary(), "d": pa.date32()}),
        ("t TIMESTAMP, n TIMESTAMP_NTZ", {"t": pa.timestamp("us", tz="UTC"), "n": pa.timestamp("us")}),
        ("tags ARRAY<STRING>", {"tags": pa.list_(pa.string())}),
        ("m MAP<STRING, INT>", {"m": pa.map_(pa.string(), pa.int32())}),
        ("s STRUCT<a: INT, b: STRING>", {"s": pa.struct([("a", pa.int32()), ("b", pa.string())])}),
        ("d DECIMAL(5,2), e DECIMAL", {"d": pa.decimal128(5, 2), "e": pa.decimal128(10, 0)}),
        ("`my label` VARCHAR(20)", {"my label": pa.string()}),
        ("Größe INT", {"Größe": pa.int32()}),
        ("a INT8, json INT64, c ARRAY<JSON>", {"a": pa.int8(), "json": pa.int64(), "c": pa.list_(pa.string())}),
    ],
)
def test_ddl_is_read_as_spark_spells_it(text: str, expected: dict[str, pa.DataType]) -> None:
    assert dict(zip(from_ddl(text).names, from_ddl(text).types, strict=True)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "label",
        "label STRING score",
        "(((",
        "a INT; DROP TABLE t",
        "x NONSENSE_TYPE",
        "v VARIANT",
        "v VARCHAR(``10)",
        " MAP(10), c CHAR(3, i TINYINY<STRING>>, d VARCHAR<STT",
        "\udcff INT",
    ],
)
def test_invalid_column_lists_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError):
        from_ddl(text)


@pytest.mark.parametrize("name", [*PROVENANCE.names, "_FILE_PATH", *sorted(RESERVED_COLUMNS)])
def test_names_that_volstream_adds_are_rejected(name: str) -> None:
    with pytest.raises(InvalidValueError, match="reserved for volstream or Delta"):
        from_ddl(f"`{name}` STRING")


def test_duplicate_names_are_rejected_ignoring_case() -> None:
    with pytest.raises(InvalidValueError, match="'label' is declared twice"):
        from_ddl("label STRING, label INT")
    with pytest.raises(InvalidValueError, match="'LABEL' and 'label' differ only in case"):
        from_ddl("label STRING, LABEL INT")


@dataclass
class Inner:
    a: int


@dataclass
class Row:
    label: str
    score: float | None
    tags: list[str]
    counts: dict[str, int]
    inner: Inner
    when: datetime
    day: date
    amount: Decimal
    raw: bytes
    good: bool
    size: tuple[int, int]
    many: tuple[str, ...]


ROW = pa.schema(
    [
        ("label", pa.string()),
        ("score", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("a", pa.int64())])),
        ("when", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("amount", pa.decimal128(38, 18)),
        ("raw", pa.binary()),
        ("good", pa.bool_()),
        ("size", pa.list_(pa.int64())),
        ("many", pa.list_(pa.string())),
    ]
)


def one(file: object) -> Row: ...  # type: ignore[empty-body]  # only its annotation is read
def maybe(file: object) -> Row | None: ...
def several(file: object) -> list[Row]: ...  # type: ignore[empty-body]  # as above
def lazily(file: object) -> Iterator[Row]: ...  # type: ignore[empty-body]  # as above
def any_of(file: object) -> Iterable[Row] | None: ...


class Callable_:  # noqa: N801  # a callable object
    def __call__(self, file: object) -> Row: ...  # type: ignore[empty-body]  # as above


@pytest.mark.parametrize("declaring", [one, maybe, several, lazily, any_of, Callable_])
def test_a_dataclass_as_the_return_type_declares_the_columns(declaring: type) -> None:
    assert of_declaration(declaration_of(declaring)) == ROW


def test_a_function_without_a_declaration_has_none() -> None:
    def plain(file: object): ...  # type: ignore[no-untyped-def]  # this is what is tested
    def unresolved(file: object) -> NotThere: ...  # type: ignore[name-defined]  # noqa: F821  # as above
    def basic(file: object) -> dict[str, str]: ...  # type: ignore[empty-body]  # as above

    def text(file: object): ...  # type: ignore[no-untyped-def]  # as above

    text.__annotations__["return"] = "n INT"
    assert [of_declaration(declaration_of(one)) for one in (plain, unresolved, basic, text)] == [None] * 4


def test_a_dataclass_whose_annotations_cannot_be_resolved_is_rejected() -> None:
    @dataclass
    class Odd:
        n: int

    Odd.__annotations__["n"] = "n INT"
    with pytest.raises(InvalidValueError, match="annotations of Odd"):
        from_declaration(Odd)


def test_the_first_parameter_alone_tells_whether_files_come_in_lists() -> None:
    def files(some: list[File], kind: str): ...  # type: ignore[no-untyped-def]  # their results do not matter
    def other(file: File, tags: list[str]): ...  # type: ignore[no-untyped-def]
    def bare(file, tags: list[str]): ...  # type: ignore[no-untyped-def]
    def unresolved(some: list[File], kind: str): ...  # type: ignore[no-untyped-def]

    class Called:
        def __call__(self, some: list[File]): ...  # type: ignore[no-untyped-def]

    unresolved.__annotations__ |= {"kind": "not python", "return": "n INT"}
    found = [batch_size_of(one) is not None for one in (files, other, bare, unresolved, Called, Called())]
    assert found == [True, False, False, True, True, True]


@pytest.mark.parametrize("declared", ["label STRING", pa.schema([pa.field("label", pa.string(), nullable=False)])])
def test_a_decorator_declares_nullable_columns(declared: object) -> None:
    @function(returns=declared)
    def decorated(file: object) -> Row: ...  # type: ignore[empty-body]  # as above

    assert of_declaration(declaration_of(decorated)) == pa.schema([pa.field("label", pa.string(), nullable=True)])


@dataclass
class Odd:
    value: complex


@pytest.mark.parametrize("declared", [Odd, 3, dict, pa.schema([("x", pa.duration("s"))])])
def test_types_without_an_sql_type_are_rejected(declared: object) -> None:
    with pytest.raises(InvalidValueError):
        from_declaration(declared)


class Pair(NamedTuple):
    words: int
    longest: str


class Typed(TypedDict):
    words: int
    longest: NotRequired[str | None]


class Model(pydantic.BaseModel):
    words: Annotated[int, pydantic.Field(ge=0)]
    longest: str | None = None
    kind: Literal["short", "long"] = "short"


@pytest.mark.parametrize(
    ("annotation", "ddl"),
    [
        (Pair, "words BIGINT, longest STRING"),
        (Typed, "words BIGINT, longest STRING"),
        (Model, "words BIGINT, longest STRING, kind STRING"),
        (list[Pair], "words BIGINT, longest STRING"),
        (Typed | None, "words BIGINT, longest STRING"),
        (AsyncIterator[Model], "words BIGINT, longest STRING, kind STRING"),
        (Iterator[Model | Exception], "words BIGINT, longest STRING, kind STRING"),
        (Generator[Pair, None, int], "words BIGINT, longest STRING"),
        ("list[Pair]", "words BIGINT, longest STRING"),
        (tuple[Pair, ...], "words BIGINT, longest STRING"),
    ],
)
def test_a_class_of_rows_in_the_annotation_declares_the_columns(annotation: object, ddl: str) -> None:
    def f(file: File) -> None: ...

    f.__annotations__["return"] = annotation
    found = of_declaration(declaration_of(f))
    assert found is not None
    assert to_ddl(found) == ddl


@pytest.mark.parametrize("annotation", [dict, dict[str, int], list, list[dict[str, Any]], Any, object, pa.Table, "Nobody"])
def test_an_annotation_may_leave_the_columns_open(annotation: object) -> None:
    def f(file: File) -> None: ...

    f.__annotations__["return"] = annotation
    assert of_declaration(declaration_of(f)) is None


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (int, "f is annotated `-> int`, but a function returns rows, and an int is not a row."),
        (str, "`-> str`, but a function returns rows, and a str is not a row."),
        (list[str], "`-> list[str]`, but"),
        (None, "`-> None`, but a function returns rows, and None is not a row."),
        (Pair | Model, "its rows have different columns."),
    ],
)
def test_an_annotation_that_names_no_rows_is_refused_with_what_to_write(annotation: object, said: str) -> None:
    def f(file: File) -> None: ...

    f.__annotations__["return"] = annotation
    with pytest.raises(InvalidValueError, match=re.escape(said)) as caught:
        of_declaration(declaration_of(f))
    assert "Annotate it with a dataclass" in caught.value.remedy


def test_instances_of_all_classes_of_rows_are_rows() -> None:
    @dataclass
    class Outer:
        inner: Pair
        many: list[Pair]

    expected = RowRequirements(None, Bounds())
    assert rows_of(Pair(1, "a"), expected)[0] == [{"words": 1, "longest": "a"}]
    assert rows_of([Model(words=2)], expected)[0] == [{"words": 2, "longest": None, "kind": "short"}]
    pair = {"words": 1, "longest": "a"}
    assert rows_of(Outer(Pair(1, "a"), [Pair(1, "a")]), expected)[0] == [{"inner": pair, "many": [pair]}]


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ("a BIGINT NOT NULL", "NOT NULL"),
        ("b VARCHAR(3)", "VARCHAR(3)"),
        ("s STRUCT<x: INT NOT NULL>", "NOT NULL"),
        ("a INT DEFAULT 5", "DEFAULT 5"),
    ],
)
def test_what_a_column_of_a_job_does_not_keep_is_refused_where_a_person_gives_it(given: str, lost: str) -> None:
    with pytest.raises(InvalidValueError, match=re.escape(lost)):
        from_ddl(given, given=True)
    assert from_ddl(given)
    assert from_ddl("a VARCHAR, b STRING COMMENT 'x', s STRUCT<x: INT COMMENT 'y'>", given=True)

"""Runs SQL statements: volstream's own through its objects, all others through Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volstream.api.objects.all import Objects
from volstream.api.objects.ddl import Ddl
from volstream.api.statements.registration import register_after_work
from volstream.api.statements.result import Result
from volstream.api.statements.run import SparkStatements
from volstream.errors import InvalidValueError
from volstream.functions.types.values import document_values
from volstream.home import Home
from volstream.spark.errors import as_sql_errors
from volstream.spark.frames import batches, relation
from volstream.sql import dialects, grammar
from volstream.sql.readonly import one_query
from volstream.sql.statement import SparkStatement
from volstream.sql.tokens import only

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def run_statement(objects: Objects, statement: str, *, read_only: bool = False) -> DataFrame:
    """Runs one statement; a query runs when rows of its DataFrame are requested.

    Args:
        read_only: only a query, SHOW or DESCRIBE of what the home has: no path, no other catalog.

    Raises:
        SqlError: volstream or Spark rejects it.
    """
    with as_sql_errors():
        done = _run(objects, statement, read_only=read_only)
        if isinstance(done, Result) and done.query is not None:
            done = _run(objects, done.query)
        if not isinstance(done, Result):
            return done
        text = pa.schema([(name, pa.string()) for name in done.columns])
        records = [{name: _text(row.get(name)) for name in done.columns} for row in done.rows]
        return relation(objects.home.spark, pa.Table.from_pylist(records, schema=text))


def rows(objects: Objects, statement: str) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """Runs one statement and returns its columns and its rows, which are fetched from Spark batch by batch.

    Names of columns are distinct, values as :func:`~volstream.functions.types.values.document_values` has them.

    Raises:
        SqlError: as :func:`run_statement`; also while rows are fetched.
    """
    if SparkStatement(statement).is_query:
        return objects.home.unless_yielded(lambda: _begun(objects, statement))
    return _begun(objects, statement)


def _begun(objects: Objects, statement: str) -> tuple[list[str], Iterator[Mapping[str, Any]]]:
    """Runs one statement up to its first row."""
    with as_sql_errors():
        done = _run(objects, statement)
        if isinstance(done, Result):
            return list(done.columns), iter(done.rows)
        columns, parts = _distinct(done.columns), _parts(done)
        first = list(islice(parts, 1))

    def found() -> Iterator[dict[str, Any]]:
        with as_sql_errors():
            for part in chain(first, parts):
                for row in zip(*part, strict=True):
                    yield dict(zip(columns, row, strict=True))

    return columns, found()


def _parts(frame: DataFrame) -> Iterator[list[list[Any]]]:
    """Yields the values of each column, batch by batch: times as UTC's, so that two never look the same."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import VariantType, VariantVal

    kinds = [field.dataType for field in frame.schema.fields]
    for part in batches(frame):
        columns = []
        for values, kind in zip(part.columns, kinds, strict=True):
            if "tz=" in str(values.type):
                values = values.cast(to_arrow_type(kind, timezone="UTC"))
            cells = document_values(values)
            if isinstance(kind, VariantType):
                cells = [None if cell is None else VariantVal(cell["value"], cell["metadata"]) for cell in cells]
            columns.append(cells)
        yield columns


def _distinct(names: Sequence[str]) -> list[str]:
    """Returns the names of columns; of several with one name, ``a``, the later ones are ``a_2``, ``a_3``."""
    distinct: list[str] = []
    for name in names:
        numbered = (f"{name}_{number}" for number in count(2))
        distinct.append(name if name not in distinct else next(new for new in numbered if new not in {*distinct, *names}))
    return distinct


def _run(objects: Objects, text: str, *, read_only: bool = False) -> DataFrame | Result:
    statement = SparkStatement(one_query(text) if read_only else only(text))
    dialects.check(statement.text)
    words = statement.words
    if grammar.owned(words) or _drops_function(objects.home, statement):
        done: DataFrame | Result = Ddl(objects).run(grammar.parse(statement.text))
    elif read_only:
        done = SparkStatements(objects.home).read(statement)
    else:
        done = SparkStatements(objects.home).run(statement)
    if words[:1] in (["CREATE"], ["DROP"]):
        register_after_work(objects.home)
    return done


def _drops_function(home: Home, statement: SparkStatement) -> bool:
    """Returns whether a statement drops a function of the home, rather than one of Spark's."""
    if not statement.begins("DROP", "FUNCTION"):
        return False
    try:
        name = statement.named
    except InvalidValueError:
        return False
    return home.catalog.functions.find(name) is not None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)

"""Keeping a table equal to a query: how rows of it are identified, and the statements that bring it up to date. Pure.

Which versions a query reads, and when, is ``statements.dynamic``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from volstream.sqltext import table_at, tree_of

if TYPE_CHECKING:
    from sqlglot import exp

#: Columns of a difference, beside the table's: how many rows of that content to add, or, where negative, to remove; or
#: what to do with the row.
_NET = "__net"
_DO = "__do"
_THERE = "__there"


def group_key(query: str) -> Sequence[int] | None:
    """Positions of the result's columns by which at most one row can be: those of GROUP BY; none for a total over all.

    None where nothing but its whole content identifies a row.
    """
    select = _select(query)
    if select is None or _has(select, "distinct", "laterals", "offset", "limit"):
        return None
    from sqlglot import exp

    outputs = select.expressions
    if any(one.is_star or one.find(exp.UDTF, exp.Explode) for one in outputs):
        return None
    group = select.args.get("group")
    if group is None:
        totals = all(one.find(exp.AggFunc) and not one.find(exp.Window) for one in outputs)
        return [] if outputs and totals and select.args.get("from_") else None
    if any(value for name, value in group.args.items() if name != "expressions"):
        return None  # ROLLUP, CUBE, GROUPING SETS
    found = [_position(outputs, one) for one in group.expressions]
    return None if None in found else [position for position in found if position is not None]


def is_row_by_row(query: str) -> bool:
    """Whether each row of the one relation that a query reads gives rows of the result by itself, always the same."""
    select = _select(query)
    if select is None or _has(
        select,
        "distinct",
        "laterals",
        "group",
        "having",
        "order",
        "limit",
        "offset",
        "qualify",
        "windows",
        "joins",
        "sort",
        "cluster",
        "distribute",
        "pivots",
        "sample",
    ):
        return False
    from sqlglot import exp

    source = select.args.get("from_")
    if source is None or not isinstance(source.this, exp.Table) or source.this.args.get("joins"):
        return False
    varying = (exp.Rand, exp.Randn, exp.Uuid, exp.CurrentTimestamp, exp.CurrentDate, exp.CurrentTime, exp.CurrentUser)
    within = (exp.AggFunc, exp.Window, exp.Subquery, exp.Anonymous, exp.TableSample, exp.Explode, exp.UDTF, *varying)
    return len(list(select.find_all(exp.Select))) == 1 and select.find(*within) is None


def difference_by_key(location: str, query: str, columns: Sequence[str], key: Sequence[int]) -> str:
    """SQL: rows of a query's result that a table lacks or shows otherwise, and rows that it has too much, with what to do."""
    keys = [columns[position] for position in key]
    differs = " OR ".join(f"NOT (t.{_quoted(one)} <=> s.{_quoted(one)})" for one in columns)
    shown = ", ".join(f"if(s.{_THERE}, s.{_quoted(one)}, t.{_quoted(one)}) AS {_quoted(one)}" for one in columns)
    return (
        f"SELECT {shown}, if(s.{_THERE}, 'put', 'delete') AS {_DO} "
        f"FROM (SELECT *, true AS {_THERE} FROM ({query}) AS q({_listed(columns)})) s "
        f"FULL OUTER JOIN (SELECT {_listed(columns)}, true AS {_THERE} FROM {table_at(location)}) t ON {_equal(keys)} "
        f"WHERE t.{_THERE} IS NULL OR s.{_THERE} IS NULL OR {differs}"
    )


def merge_by_key(location: str, changed: str, columns: Sequence[str], key: Sequence[int]) -> str:
    """A MERGE of what :func:`difference_by_key` found, in which a changed row stays the row that it was.

    Args:
        changed: the relation of that.
    """
    keys = [columns[position] for position in key]
    changes = ", ".join(f"t.{_quoted(one)} = s.{_quoted(one)}" for one in columns if one not in keys)
    updates = f" WHEN MATCHED THEN UPDATE SET {changes}" if changes else ""
    return (
        f"MERGE INTO {table_at(location)} t USING {changed} s ON {_equal(keys)} "
        f"WHEN MATCHED AND s.{_DO} = 'delete' THEN DELETE{updates} WHEN NOT MATCHED THEN {_insert(columns)}"
    )


def difference(location: str, query: str, columns: Sequence[str]) -> str:
    """SQL: what a table lacks of a query's result, and has too much, by content."""
    present = f"SELECT {_listed(columns)} FROM {table_at(location)}"
    return changes(query, present, columns)


def changes(added: str, removed: str, columns: Sequence[str]) -> str:
    """SQL: the contents of two queries' rows with :data:`_NET`, where that is not zero."""
    listed = _listed(columns)
    return (
        f"SELECT {listed}, sum({_NET}) AS {_NET} FROM ("
        f"SELECT {listed}, 1 AS {_NET} FROM ({added}) AS a({listed}) UNION ALL "
        f"SELECT {listed}, -1 AS {_NET} FROM ({removed}) AS r({listed})) GROUP BY {listed} HAVING sum({_NET}) <> 0"
    )


def merge_by_content(location: str, net: str, columns: Sequence[str]) -> str:
    """A MERGE that adds and removes rows by content; rows of other contents are not touched.

    Of several rows of one content, of which some go, none can be told from another: all go, and the rest comes back.

    Args:
        net: a relation as :func:`changes` makes it.
    """
    listed = _listed(columns)
    equal = _equal(columns)
    staying = (
        f"SELECT {_of('s', columns)}, count(*) + first(s.{_NET}) AS {_NET} FROM {net} s JOIN {table_at(location)} t "
        f"ON {equal} WHERE s.{_NET} < 0 GROUP BY {_of('s', columns)}"
    )
    added = f"SELECT * FROM {net} WHERE {_NET} > 0 UNION ALL SELECT * FROM ({staying}) WHERE {_NET} > 0"
    rows = (
        f"SELECT {listed}, 'insert' AS {_DO} FROM ({added}) a LATERAL VIEW explode(sequence(1, a.{_NET})) one AS one "
        f"UNION ALL SELECT {listed}, 'delete' AS {_DO} FROM {net} WHERE {_NET} < 0"
    )
    return (
        f"MERGE INTO {table_at(location)} t USING ({rows}) s ON s.{_DO} = 'delete' AND {equal} "
        f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.{_DO} = 'insert' THEN {_insert(columns)}"
    )


def _select(query: str) -> exp.Select | None:
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        parsed = tree_of(query)
    except SqlglotError:
        return None  # Spark says what is wrong with it, or understands it
    return parsed if isinstance(parsed, exp.Select) and not parsed.args.get("with_") else None


def _has(select: Any, *parts: str) -> bool:
    return any(select.args.get(part) for part in parts)


def _position(outputs: Sequence[Any], wanted: Any) -> int | None:
    """Which of the outputs an expression of GROUP BY is: by its number, its text, or the output's name."""
    from sqlglot import exp

    if isinstance(wanted, exp.Literal):
        return int(wanted.this) - 1 if wanted.is_int and 0 < int(wanted.this) <= len(outputs) else None
    text = wanted.sql(dialect="databricks").lower()
    for position, output in enumerate(outputs):
        if output.unalias().sql(dialect="databricks").lower() == text:
            return position
    if isinstance(wanted, exp.Column) and not wanted.table:
        names = [output.alias_or_name.lower() for output in outputs]
        return names.index(wanted.name.lower()) if names.count(wanted.name.lower()) == 1 else None
    return None


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _of(alias: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{alias}.{_quoted(one)}" for one in columns)


def _equal(columns: Sequence[str]) -> str:
    return " AND ".join(f"t.{_quoted(one)} <=> s.{_quoted(one)}" for one in columns) or "true"


def _insert(columns: Sequence[str]) -> str:
    return f"INSERT ({_listed(columns)}) VALUES ({_of('s', columns)})"

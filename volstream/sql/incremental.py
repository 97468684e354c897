"""Keeps a table equal to a query: identification of its rows, and the statements that update it. Pure.

The versions that a query reads, and the timing, are in ``statements.dynamic``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from volstream.sqltext import table_at, tree_of

if TYPE_CHECKING:
    from sqlglot import exp

#: Columns of a difference in addition to the table's: the number of rows with that content to add or, if negative, to remove;
#: or the action for the row.
_NET = "__net"
_DO = "__do"
_THERE = "__there"


def group_key(query: str) -> Sequence[int] | None:
    """Returns the positions of the result's columns that identify a row: those of GROUP BY; empty for a grand total.

    None if only its whole content identifies a row.
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
    """True if each row of the query's only relation yields result rows independently and deterministically."""
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
    """Returns SQL for missing, differing and superfluous rows of a table compared with a query's result, with the action."""
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
    """Returns a MERGE that applies the result of :func:`difference_by_key`, in which a changed row keeps its identity.

    Args:
        changed: the relation with that result.
    """
    keys = [columns[position] for position in key]
    changes = ", ".join(f"t.{_quoted(one)} = s.{_quoted(one)}" for one in columns if one not in keys)
    updates = f" WHEN MATCHED THEN UPDATE SET {changes}" if changes else ""
    return (
        f"MERGE INTO {table_at(location)} t USING {changed} s ON {_equal(keys)} "
        f"WHEN MATCHED AND s.{_DO} = 'delete' THEN DELETE{updates} WHEN NOT MATCHED THEN {_insert(columns)}"
    )


def difference(location: str, query: str, columns: Sequence[str]) -> str:
    """Returns SQL for a table's missing and superfluous rows compared with a query's result, by content."""
    present = f"SELECT {_listed(columns)} FROM {table_at(location)}"
    return changes(query, present, columns)


def changes(added: str, removed: str, columns: Sequence[str]) -> str:
    """Returns SQL for the contents of two queries' rows with :data:`_NET`, if that is not zero."""
    listed = _listed(columns)
    return (
        f"SELECT {listed}, sum({_NET}) AS {_NET} FROM ("
        f"SELECT {listed}, 1 AS {_NET} FROM ({added}) AS a({listed}) UNION ALL "
        f"SELECT {listed}, -1 AS {_NET} FROM ({removed}) AS r({listed})) GROUP BY {listed} HAVING sum({_NET}) <> 0"
    )


def merge_by_content(location: str, net: str, columns: Sequence[str]) -> str:
    """Returns a MERGE that adds and removes rows by content, without touching rows of other contents.

    If only some of several rows with the same content are to go, they are indistinguishable: all go, and the rest is re-added.

    Args:
        net: a relation from :func:`changes`.
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
        return None  # Spark reports what is wrong with it, or understands it
    return parsed if isinstance(parsed, exp.Select) and not parsed.args.get("with_") else None


def _has(select: Any, *parts: str) -> bool:
    return any(select.args.get(part) for part in parts)


def _position(outputs: Sequence[Any], wanted: Any) -> int | None:
    """Returns the output that a GROUP BY expression refers to: by its number, its text, or the output's name."""
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

"""Keeps a table equal to a query: identification of its rows, and the statements that update it. Pure.

``statements.dynamic`` decides which versions a query reads, and when. Only queries known to be safe are
updated from changed rows or by group; every other query is computed in full and compared by content, which is
always correct.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from volstream.sql.text import table_at, tree_of

# Expressions that are known to have one value for each row, whenever and wherever they are computed.

#: Expressions that are nested more deeply are not looked at.
_DEEPEST = 100


class StableColumns:
    """The columns of a query's only relation, and the stable expressions of them.

    Args:
        relation: its name in the query.
        also: kinds of expressions besides the usual ones.
    """

    def __init__(self, relation: str, names: Collection[str], also: Collection[type[Any]] = ()) -> None:
        self._relation = relation.lower()
        self._names = {name.lower() for name in names}
        self._stable = _stable().union(also)

    def has(self, value: Any) -> bool:
        """True for a bare column, as opposed to words that are functions without parentheses."""
        from sqlglot import exp

        return (
            type(value) is exp.Column
            and type(value.this) is exp.Identifier
            and value.name.lower() in self._names
            and value.table.lower() in ("", self._relation)
            and not value.args.get("db")
        )

    def are_stable(self, tree: Any) -> bool:
        """True if an expression is known to have one value for each row, whenever and wherever it is
        computed."""
        from sqlglot import exp

        if tree is None or self.has(tree):
            return True
        if tree.depth > _DEEPEST:
            return False
        if type(tree) is exp.Literal and _DAYS.match(tree.this):
            return False
        if isinstance(tree, exp.Func | exp.DPipe) and tree.find(exp.Column) is None:
            return False  # Spark evaluates it first, so it is a literal
        if type(tree) is exp.Cast and str(tree.to.this.value) not in _STABLE_TYPES:
            return False
        return type(tree) in self._stable and all(
            self.are_stable(child) for child in tree.iter_expressions() if not isinstance(child, exp.Identifier)
        )


#: Texts that denote another time each day when compared with a date.
_DAYS = re.compile(r"\s*(now|today|tomorrow|yesterday)", re.IGNORECASE)

#: Types to which values may be cast. Not times, which depend on the zone, or may be words like 'now'.
_STABLE_TYPES = {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "TEXT", "VARCHAR"}


@cache
def _stable() -> frozenset[type[Any]]:
    """Returns the kinds of expressions whose value depends only on their operands."""
    from sqlglot import exp

    structure = (exp.Where, exp.Alias, exp.Paren, exp.DataType, exp.DataTypeParam)
    values = (exp.Literal, exp.Boolean, exp.Null)
    logic = (exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.Like, exp.Case, exp.If, exp.Coalesce)
    comparisons = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ)
    numbers = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.Neg, exp.Abs, exp.Round, exp.Floor, exp.Ceil)
    texts = (exp.Upper, exp.Lower, exp.Trim, exp.Length, exp.Substring, exp.Concat, exp.DPipe)
    return frozenset((*structure, *values, *logic, *comparisons, *numbers, *texts, exp.Cast))


@cache
def of_texts() -> frozenset[type[Any]]:
    """Returns functions that take texts apart, and put them together."""
    from sqlglot import exp

    parts = (exp.Split, exp.RegexpSplit, exp.SplitPart, exp.Bracket, exp.SubstringIndex, exp.Left, exp.Right)
    others = (exp.RegexpExtract, exp.RegexpReplace, exp.Replace, exp.ConcatWs, exp.Nullif, exp.RawString)
    return frozenset((*parts, *others))


def cannot_fail(tree: Any, types: Mapping[str, str]) -> bool:
    """True if an expression of stable columns cannot raise an error, whatever the values are and with ANSI or
    not.

    Arithmetic may overflow or divide by zero, and a text that is compared with a number is cast to one.

    Args:
        types: of the columns, in Spark's words.
    """
    from sqlglot import exp

    kinds = {name.lower(): _kind_of_type(kind) for name, kind in types.items()}
    for node in tree.walk():
        operands: list[Any] = []
        match node:
            case exp.Cast() | exp.Add() | exp.Sub() | exp.Mul() | exp.Div() | exp.Mod() | exp.Abs() | exp.Round():
                return False
            case exp.Floor() | exp.Ceil():
                return False
            case exp.Neg() if not isinstance(node.this, exp.Literal):
                return False
            case exp.In():
                operands = [node.this, *node.expressions]
            case exp.Between():
                operands = [node.this, node.args["low"], node.args["high"]]
            case exp.Case() | exp.If() | exp.Coalesce():
                operands = _results(node)
            case exp.Is() | exp.And() | exp.Or() | exp.DPipe():
                continue
            case exp.Binary():
                operands = [node.this, node.expression]
        if operands and not _agree([_kind(operand, kinds) for operand in operands]):
            return False
    return True


def _kind_of_type(name: str) -> str:
    if name in ("tinyint", "smallint", "int", "bigint", "float", "double") or name.startswith("decimal"):
        return "number"
    return "text" if name == "string" or name.startswith(("char", "varchar")) else name


def _results(node: Any) -> list[Any]:
    """Returns the results among which a CASE, an IF or a COALESCE chooses."""
    from sqlglot import exp

    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    branches = node.args["ifs"] if isinstance(node, exp.Case) else [node]
    otherwise = node.args.get("default" if isinstance(node, exp.Case) else "false")
    return [*(branch.args["true"] for branch in branches), *([] if otherwise is None else [otherwise])]


def _kind(value: Any, kinds: Mapping[str, str]) -> str | None:
    """Returns an operand's kind of type, ``a text`` or ``a number`` for a literal, or None if unknown."""
    from sqlglot import exp

    match value:
        case exp.Paren() | exp.Neg():
            return _kind(value.this, kinds)
        case exp.Column():
            return kinds.get(value.name.lower())
        case exp.Literal():
            return "a text" if value.is_string else "a number"
        case exp.Boolean():
            return "boolean"
        case exp.Null():
            return "null"
        case exp.Length():
            return "number"
        case exp.Upper() | exp.Lower() | exp.Trim() | exp.Substring() | exp.Concat() | exp.DPipe():
            return "text"
        case exp.Case() | exp.If() | exp.Coalesce():
            found = [_kind(result, kinds) for result in _results(value)]
            return next((kind for kind in found if kind not in ("null", "a text", "a number")), found[0])
        case exp.Condition():
            return "boolean"
    return None


def _agree(kinds: Sequence[str | None]) -> bool:
    """True if comparing operands of such kinds casts no value of a row. Spark casts literals before it reads
    a row."""
    computed = {kind for kind in kinds if kind not in ("null", "a text", "a number")}
    return None not in computed and len(computed) <= 1 and not (computed == {"text"} and "a number" in kinds)


#: Columns of a difference besides the values, which are named by position because a result may have any
#: names: the number of rows with this content to add or, if negative, to remove; or the action for the row.
_NET = "net"
_DO = "act"
_THERE = "present"


def relation(query: str) -> str | None:
    """Returns the only relation of a query that may be updated from changed rows or by group; None for any
    other query."""
    select = _select(query, "expressions", "from_", "where", "group")
    return None if select is None else str(select.args["from_"].this.name)


def group_key(query: str, columns: Collection[str]) -> Sequence[int] | None:
    """Returns the positions of the result's columns that identify a row: the GROUP BY columns; empty for a
    grand total.

    None if only its whole content identifies a row: for every query except a plain ``GROUP BY`` of columns of
    one relation with aggregates of its columns.

    Args:
        columns: the columns of the query's only relation, if it has one.
    """
    select = _select(query, "expressions", "from_", "where", "group")
    if select is None:
        return None
    own = StableColumns(_name_in(select), columns)
    group = select.args.get("group")
    wanted = group.expressions if group is not None else []
    if group is not None and any(value for name, value in group.args.items() if name != "expressions"):
        return None  # ROLLUP, CUBE, GROUPING SETS
    if not all(map(own.has, wanted)) or not own.are_stable(select.args.get("where")):
        return None
    names = {column.name.lower() for column in wanted}
    shown: dict[str, int] = {}
    for position, output in enumerate(select.expressions):
        value = output.unalias()
        if own.has(value) and value.name.lower() in names:
            shown.setdefault(value.name.lower(), position)
        elif not (
            type(value) in (exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg)
            and not value.expressions
            and (own.has(value.this) or (type(value) is exp.Count and type(value.this) in (exp.Star, exp.Literal)))
        ):
            return None
    return list(shown.values()) if len(shown) == len(names) else None


def is_row_by_row(query: str, columns: Mapping[str, str]) -> bool:
    """Returns whether each row of the query's only relation yields at most one result row, by expressions
    that never vary.

    Args:
        columns: the SQL types of the relation's columns.
    """
    select = _select(query, "expressions", "from_", "where")
    if select is None:
        return False
    own = StableColumns(_name_in(select), columns)
    plain = StableColumns(_name_in(select), [name for name, kind in columns.items() if not _ZONED.search(kind)])
    return plain.are_stable(select.args.get("where")) and all(
        (type(expression) is exp.Star and not any(expression.args.values()))
        or own.has(expression.unalias())
        or plain.are_stable(expression)
        for expression in select.expressions
    )


def ordered(query: str, outputs: Sequence[str], columns: Sequence[str]) -> str:
    """Returns SQL for a query's result with the columns of a table, named by their positions in the table.

    Args:
        outputs: names of the result's columns, including all of ``columns``.
    """
    positions = {name.lower(): position for position, name in enumerate(outputs)}
    shown = ", ".join(f"q{positions[name.lower()]} AS {_at(at)}" for at, name in enumerate(columns))
    return f"SELECT {shown} FROM ({query}\n) AS q({', '.join(f'q{at}' for at in range(len(outputs)))})"


def difference_by_key(location: str, query: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """Returns SQL for a table's missing, differing and superfluous rows compared with a query's result, with
    their actions.

    Args:
        query: a result of :func:`ordered`.
        key: names of the columns that identify a row.
    """
    values = _positions(columns)
    differs = " OR ".join(f"NOT (t.{value} <=> s.{value})" for value in values)
    shown = ", ".join(f"if(s.{_THERE}, s.{value}, t.{value}) AS {value}" for value in values)
    equal = " AND ".join(f"t.{value} <=> s.{value}" for value, name in zip(values, columns, strict=True) if name in key)
    return (
        f"SELECT {shown}, if(s.{_THERE}, 'put', 'delete') AS {_DO} "
        f"FROM (SELECT *, true AS {_THERE} FROM ({query})) s "
        f"FULL OUTER JOIN (SELECT *, true AS {_THERE} FROM ({_present(location, columns)})) t ON {equal or 'true'} "
        f"WHERE t.{_THERE} IS NULL OR s.{_THERE} IS NULL OR {differs}"
    )


def merge_by_key(location: str, changed: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """Returns a MERGE that applies the result of :func:`difference_by_key`; changed rows keep their identity.

    Args:
        changed: relation with that result.
    """
    named = list(zip(columns, _positions(columns), strict=True))
    changes = ", ".join(f"t.{_quoted(name)} = s.{value}" for name, value in named if name not in key)
    updates = f" WHEN MATCHED THEN UPDATE SET {changes}" if changes else ""
    equal = " AND ".join(f"t.{_quoted(name)} <=> s.{value}" for name, value in named if name in key)
    return (
        f"MERGE INTO {table_at(location)} t USING {changed} s ON {equal or 'true'} "
        f"WHEN MATCHED AND s.{_DO} = 'delete' THEN DELETE{updates} WHEN NOT MATCHED THEN {_insert(columns)}"
    )


def difference(location: str, query: str, columns: Sequence[str]) -> str:
    """Returns SQL for a table's missing and superfluous rows compared with a query's result, by content.

    Args:
        query: a result of :func:`ordered`.
    """
    return changes(query, _present(location, columns), columns)


def changes(added: str, removed: str, columns: Sequence[str]) -> str:
    """Returns SQL for the row contents of two queries with :data:`_NET`, where it is not zero.

    Args:
        added, removed: results of :func:`ordered`.
    """
    listed = ", ".join(_positions(columns))
    return (
        f"SELECT {listed}, sum({_NET}) AS {_NET} FROM ("
        f"SELECT {listed}, 1 AS {_NET} FROM ({added}) UNION ALL SELECT {listed}, -1 AS {_NET} FROM ({removed})) "
        f"GROUP BY {listed} HAVING sum({_NET}) <> 0"
    )


def merge_by_content(location: str, net: str, columns: Sequence[str]) -> str:
    """Returns a MERGE that adds and removes rows by content, without touching rows of other content.

    Rows with the same content are indistinguishable: to remove some of them, it removes all and re-adds the
    rest.

    Args:
        net: relation from :func:`changes`.
    """
    values = _positions(columns)
    listed, of_net = ", ".join(values), ", ".join(f"s.{value}" for value in values)
    equal = " AND ".join(f"t.{_quoted(name)} <=> s.{value}" for name, value in zip(columns, values, strict=True))
    staying = (
        f"SELECT {of_net}, count(*) + first(s.{_NET}) AS {_NET} FROM {net} s JOIN {table_at(location)} t "
        f"ON {equal} WHERE s.{_NET} < 0 GROUP BY {of_net}"
    )
    added = f"SELECT * FROM {net} WHERE {_NET} > 0 UNION ALL SELECT * FROM ({staying}) WHERE {_NET} > 0"
    rows = (
        f"SELECT {listed}, 'insert' AS {_DO} FROM ({added}) a LATERAL VIEW explode(sequence(1, a.{_NET})) copies AS copy "
        f"UNION ALL SELECT {listed}, 'delete' AS {_DO} FROM {net} WHERE {_NET} < 0"
    )
    return (
        f"MERGE INTO {table_at(location)} t USING ({rows}) s ON s.{_DO} = 'delete' AND {equal} "
        f"WHEN MATCHED THEN DELETE WHEN NOT MATCHED AND s.{_DO} = 'insert' THEN {_insert(columns)}"
    )


def _select(query: str, *parts: str) -> exp.Select | None:
    """Returns the tree of a query of one named relation with only these parts, else None."""
    try:
        parsed = tree_of(query)
    except SqlglotError:
        return None  # Spark reports the error, or understands it
    if type(parsed) is not exp.Select or any(value for name, value in parsed.args.items() if name not in parts):
        return None
    source = parsed.args.get("from_")
    relation = None if source is None else source.this
    if type(relation) is not exp.Table or not isinstance(relation.this, exp.Identifier):
        return None
    if any(value for name, value in relation.args.items() if name not in ("this", "alias")):
        return None  # samples, versions, joins, LATERAL VIEW, PIVOT
    alias = relation.args.get("alias")
    return None if alias is not None and alias.args.get("columns") else parsed


#: Column types from which an expression may give another value in another time zone.
_ZONED = re.compile(r"\b(timestamp|variant)\b")


def _name_in(select: exp.Select) -> str:
    """Returns the name of a query's only relation, in the query."""
    return str(select.args["from_"].this.alias_or_name)


def _positions(columns: Sequence[str]) -> Sequence[str]:
    return [_at(at) for at in range(len(columns))]


def _at(position: int) -> str:
    return f"c{position}"


def _present(location: str, columns: Sequence[str]) -> str:
    shown = ", ".join(f"{_quoted(name)} AS {_at(at)}" for at, name in enumerate(columns))
    return f"SELECT {shown} FROM {table_at(location)}"


def _quoted(column: str) -> str:
    return "`" + column.replace("`", "``") + "`"


def _insert(columns: Sequence[str]) -> str:
    values = ", ".join(f"s.{position}" for position in _positions(columns))
    return f"INSERT ({', '.join(map(_quoted, columns))}) VALUES ({values})"

"""Expressions that are known to have one value for each row, whenever and wherever they are computed."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any

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
        """True if an expression is known to have one value for each row, whenever and wherever it is computed."""
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
    """True if an expression of stable columns cannot raise an error, whatever the values are and with ANSI or not.

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
    """True if comparing operands of such kinds casts no value of a row. Spark casts literals before it reads a row."""
    computed = {kind for kind in kinds if kind not in ("null", "a text", "a number")}
    return None not in computed and len(computed) <= 1 and not (computed == {"text"} and "a number" in kinds)

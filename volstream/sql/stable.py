"""Which expressions have one value for each row, whenever and wherever they are computed: those that are known to be so."""

from __future__ import annotations

import re
from collections.abc import Collection
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

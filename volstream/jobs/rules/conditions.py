"""SQL about files: the condition that selects a job's files, and the sets that they form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volstream.base.definitions import FileOrder, OnMove
from volstream.base.definitions.job import LOADER, FileJob, FileJobSpec
from volstream.base.model.paths import expression
from volstream.changes.directory.table import COLUMNS
from volstream.errors import InvalidValueError, SqlError
from volstream.functions.schema import reason_of
from volstream.jobs.plans.sets import SHORTHANDS
from volstream.sql.text import MAX_NAMED, literal, one_of, tree_of


def check_sets(spec: FileJobSpec | FileJob) -> None:
    """Raises InvalidValueError if a job's options of sets are invalid, or contradict others."""
    if spec.group_by is None:
        for name in ("group_complete", "group_quiet"):
            if getattr(spec, name) is not None:
                raise InvalidValueError(f"{name} is about sets of files.", "Give group_by as well.")
        return
    if spec.function == LOADER:
        raise InvalidValueError("A job that loads files takes each file for itself.", "Leave out group_by.")
    if spec.on_move is OnMove.REKEY:
        raise InvalidValueError("on_move=rekey cannot be combined with group_by.", "Leave out one of them.")
    if spec.order is FileOrder.NEWEST:
        raise InvalidValueError("order=newest cannot be combined with group_by.", "Leave out one of them.")
    if spec.group_by not in SHORTHANDS:
        _check_key(spec.group_by)
    if spec.group_complete is not None:
        _check_complete(spec.group_complete)


#: Functions whose value changes from call to call.
_VARYING = frozenset(
    [
        "now",
        "current_timestamp",
        "current_date",
        "current_datetime",
        "localtimestamp",
        "unix_timestamp",
        "rand",
        "randn",
        "random",
        "uuid",
    ]
)


#: Spark's aggregate functions that the parser does not recognize.
_AGGREGATES = frozenset(["every", "some", "bool_and"])


def check_expectations(conditions: Sequence[str], columns: Sequence[str]) -> None:
    """Raises InvalidValueError unless each is a condition on a result's columns, or on ``rows``, the file's
    number of rows."""
    known = [name.lower() for name in columns]
    for text in conditions:
        parsed = _parsed("expectation", text, "An expectation is about the rows of one file.")
        names = {column.name.lower() for column in _columns(parsed)}
        if "rows" in names and "rows" not in known:
            if len(names) > 1:
                raise InvalidValueError(
                    f"The expectation {text!r} is about single rows and about their number.", "Write two expectations."
                )
            continue
        unknown = sorted(names - {*known})
        if unknown:
            raise InvalidValueError(
                f"The expectation {text!r} names a column {unknown[0]!r}.", f"A row has: {', '.join(columns)}."
            )
        if any(map(_is_aggregate, parsed.walk())):
            raise InvalidValueError(
                f"The expectation {text!r} has an aggregate function.",
                "An expectation is checked row by row; `rows` is the number of a file's rows.",
            )


def names_in(text: str) -> set[str]:
    """Returns the columns that an expression names, in lower case."""
    return {column.name.lower() for column in _columns(tree_of(f"SELECT 1 WHERE ({text})"))}


def check_where(text: str) -> None:
    """Raises InvalidValueError unless ``text`` is a condition on a file's columns."""
    _check_columns("condition", text, "A condition is about one file's columns only.")


def of_files(where: str | None, paths: Sequence[str]) -> str | None:
    """Returns the condition on the directory's columns for files that meet ``where`` and are among ``paths``,
    or None for all files.

    Raises:
        InvalidValueError: ``where`` is not a valid condition, or there are too many paths.
    """
    if len(paths) > MAX_NAMED:
        raise InvalidValueError(f"{len(paths)} paths are too many.", f"Give up to {MAX_NAMED}, or a condition.")
    if where is not None:
        check_where(where)
    named = one_of("relative_path", paths) if paths else None
    return " AND ".join(f"({condition})" for condition in (where, named) if condition) or None


def matching(glob: str, *, of_paths: bool = False) -> str:
    """Returns the condition that a glob matches a path.

    A glob without ``/`` matches the last part, unless ``of_paths``.
    """
    whole = glob if of_paths or "/" in glob else f"**/{glob}"
    return f"relative_path RLIKE {literal(f'^{expression(whole)}$')}"


def _check_key(text: str) -> None:
    """Raises InvalidValueError unless ``text`` is an expression of ``relative_path`` whose value never
    varies."""
    parsed = _check_columns("key", text, "A key is an expression of relative_path.")
    names = {column.name.lower() for column in _columns(parsed)}
    if names != {"relative_path"}:
        raise InvalidValueError(
            f"The key {text!r} does not depend on relative_path alone.",
            "A file could change its set unnoticed; give, for example, \"split(relative_path, '/')[0]\".",
        )
    from volstream.sql.incremental import StableColumns, of_texts  # late: imports sqlglot

    if not StableColumns("", ["relative_path"], of_texts()).are_stable(parsed):
        raise InvalidValueError(
            f"The key {text!r} may not be deterministic.",
            "Use folder, stem, or functions such as split, regexp_extract, regexp_replace, substring, lower.",
        )


def _check_complete(text: str) -> None:
    """Raises InvalidValueError unless ``text`` is a condition on all files of a set."""
    from sqlglot import expressions as exp

    parsed = _check_columns("condition", text, "A condition is about the files of one set.")
    if not any(map(_is_aggregate, parsed.walk())) or not all(map(_is_aggregated, _columns(parsed))):
        raise InvalidValueError(
            f"The condition {text!r} must be on all files of a set: use aggregate functions.",
            "For example: count(*) >= 2, or bool_or(relative_path LIKE '%.json').",
        )
    functions = {call.name if isinstance(call, exp.Anonymous) else call.sql_name() for call in parsed.find_all(exp.Func)}
    if parsed.find(exp.Window) or {name.lower() for name in functions} & _VARYING:
        raise InvalidValueError(
            f"The condition {text!r} may become true while no file of the set changes, but it is checked only when one does.",
            "To wait until the files stop changing, use group_quiet.",
        )


def _is_aggregate(node: Any) -> bool:
    from sqlglot import expressions as exp

    return isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.lower() in _AGGREGATES)


def _is_aggregated(column: Any) -> bool:
    """Returns whether a column is in an aggregate function, or in its FILTER."""
    from sqlglot import expressions as exp

    node = column.parent
    while node is not None and not _is_aggregate(node) and not isinstance(node, exp.Filter):
        node = node.parent
    return node is not None


def _check_columns(what: str, text: str, rule: str) -> Any:
    """Returns the tree of an expression. Raises InvalidValueError unless it is one expression of a file's
    columns."""
    parsed = _parsed(what, text, rule)
    unknown = sorted({column.name for column in _columns(parsed) if column.name.lower() not in COLUMNS})
    if unknown:
        raise InvalidValueError(f"The {what} names a column {unknown[0]!r}.", f"A file has: {', '.join(COLUMNS)}.")
    return parsed


def _parsed(what: str, text: str, rule: str) -> Any:
    """Returns the tree of an expression. Raises InvalidValueError unless it is one expression."""
    from sqlglot import expressions as exp
    from sqlglot.errors import SqlglotError

    from volstream.sql.statement import check_calls

    try:
        # In parentheses, as in a plan, so that nothing can follow the text.
        tree_of(f"SELECT 1 WHERE {text}")  # a parenthesis must not close the plan's
        parsed = tree_of(f"SELECT 1 WHERE ({text})")
    except SqlglotError as error:
        raise InvalidValueError(f"The {what} {text!r} cannot be read: {reason_of(error)}.") from None
    if len(list(parsed.find_all(exp.Query))) > 1:
        raise InvalidValueError(f"The {what} {text!r} has a query.", rule)
    try:
        check_calls(text)
    except SqlError as error:
        raise InvalidValueError(f"The {what} {text!r} cannot be used: {error.message}", error.remedy) from None
    return parsed.args["where"].this


def _columns(tree: Any) -> list[Any]:
    from sqlglot import expressions as exp

    return list(tree.find_all(exp.Column))

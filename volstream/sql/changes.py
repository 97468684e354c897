"""Versions and times that a statement asks of a relation: ``CHANGES FROM VERSION 3``, ``VERSION AS OF 3``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.text import like
from volstream.errors import SqlError
from volstream.sql.tokens import Token

if TYPE_CHECKING:
    from volstream.sql.scanning import Reference
    from volstream.sql.statement import SparkStatement


@dataclass(frozen=True)
class Bound:
    """First or last version of a range of changes, or the text of a time; ``excluded``: 1 or -1 if the range begins after it or
    ends before it, else 0."""

    at: int | str
    excluded: int


@dataclass(frozen=True)
class ChangesClause:
    """``CHANGES FROM VERSION first [TO VERSION last] [WITH (...)]`` after a relation, or with ``TIMESTAMP 'time'``; ends before
    ``end``."""

    first: Bound
    last: Bound | None
    options: Mapping[str, str]
    end: int


def changes_of(statement: SparkStatement, reference: Reference) -> ChangesClause | None:
    """Returns the changes that a statement requests of a relation; None if it requests none. Raises SqlError."""
    tokens = statement.tokens_after(reference.end)
    clause = clause_in(tokens)
    if clause is None and [token.word for token in tokens[:2]] == ["CHANGES", "FROM"]:
        raise SqlError("CHANGES FROM must be followed by VERSION and a number, or by TIMESTAMP and a time in quotes.")
    return clause


def travel_of(statement: SparkStatement, reference: Reference) -> tuple[int | str, int] | None:
    """Returns the version, or the text of the time, in ``VERSION AS OF 3`` after a relation, and its end; None if it has none.

    Raises:
        SqlError: it is an expression.
    """
    tokens = statement.tokens_after(reference.end)
    words = [token.word for token in tokens]
    skipped = 1 if words[:1] == ["FOR"] else 0
    kind = words[skipped : skipped + 1]
    if kind not in (["VERSION"], ["TIMESTAMP"]) or words[skipped + 1 : skipped + 3] != ["AS", "OF"]:
        return None
    at = tokens[skipped + 3 : skipped + 4]
    if kind == ["VERSION"] and at and at[0].text.isdecimal() and len(at[0].text) <= _MAX_DIGITS:
        return int(at[0].text), at[0].end + 1
    if kind == ["TIMESTAMP"] and at and at[0].token_type is TokenType.STRING:
        return at[0].text, at[0].end + 1
    raise SqlError("For a directory, give the number of a version, or a time in quotes.")


@dataclass(frozen=True)
class TimeClause:
    """``TIMESTAMP AS OF 'time'`` after a relation: ``statement[start:end]``; ``time`` is SQL."""

    time: str
    start: int
    end: int


def time_of(statement: SparkStatement, reference: Reference) -> TimeClause | None:
    """Returns the time at which a statement reads a relation, or None if it gives no literal. Raises SqlError."""
    tokens = statement.tokens_after(reference.end)
    words = [token.word for token in tokens]
    at = 1 if words[:1] == ["FOR"] else 0
    if words[at : at + 1] not in (["TIMESTAMP"], ["SYSTEM_TIME"]) or words[at + 1 : at + 3] != ["AS", "OF"]:
        return None
    first = last = at + 3
    last += words[first : first + 1] in [[kind] for kind in _LITERALS]
    is_literal = last < len(tokens) and tokens[last].token_type is TokenType.STRING
    after = words[last + 1 : last + 2]  # a name or a keyword, or what ends a relation, but no operator
    if not is_literal or not (after in ([], [""], [")"], [","]) or after[0].replace("_", "A").replace(" ", "").isalnum()):
        return None
    begin, end = tokens[0].start, tokens[last].end + 1
    return TimeClause(statement.text[tokens[first].start : end], begin, end)


def clause_in(tokens: list[Token]) -> ChangesClause | None:
    """Returns the clause that tokens begin with; None: it is none, or has expressions as bounds. Raises SqlError."""
    words = [token.word for token in tokens]
    if words[:2] != ["CHANGES", "FROM"] or words[2:3] not in (["VERSION"], ["TIMESTAMP"]):
        return None
    bound = _bound(tokens, 2, excluded=1)
    if bound is None:
        return None
    first, at = bound
    last: Bound | None = None
    if words[at : at + 1] == ["TO"] and words[at + 1 : at + 2] in (["VERSION"], ["TIMESTAMP"]):
        bound = _bound(tokens, at + 1, excluded=-1)
        if bound is None:
            return None
        last, at = bound
    options: Mapping[str, str] = {}
    if words[at : at + 2] == ["WITH", "("]:
        if ")" not in words[at:]:
            raise SqlError("The parenthesis after WITH is not closed.")
        close = words.index(")", at)
        options = _change_options([token.text for token in tokens[at + 2 : close]])
        at = close + 1
    return ChangesClause(first, last, options, tokens[at - 1].end + 1)


#: Options of changes, by name in lower case.
_CHANGE_OPTIONS = {name.lower(): name for name in ("deduplicationMode", "computeUpdates", "identity")}


def _change_options(words: Sequence[str]) -> Mapping[str, str]:
    """Returns the options in ``name = value, ...``, by name in lower case. Raises SqlError."""
    options: dict[str, str] = {}
    for at in range(0, len(words), 4):
        if len(words) < at + 3 or words[at + 1] != "=" or words[at + 3 : at + 4] not in ([], [","]):
            raise SqlError("WITH must be followed by options: (deduplicationMode = 'netChanges', computeUpdates = 'true').")
        name, value = words[at], words[at + 2]
        if name.lower() not in _CHANGE_OPTIONS:
            near = like(name, _CHANGE_OPTIONS.values())
            raise SqlError(f"Changes have no option {name}.", near or f"Give {', '.join(_CHANGE_OPTIONS.values())}.")
        if name.lower() == "computeupdates" and value.lower() not in ("true", "false"):
            raise SqlError(f"computeUpdates cannot be {value!r}.", "Write 'true' or 'false'.")
        options[name.lower()] = value
    return options


#: Types that a literal may begin with.
_LITERALS = ("TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "DATE")

#: Maximum digits of a version; no table has that many versions.
_MAX_DIGITS = 18


def _bound(tokens: Sequence[Token], at: int, *, excluded: int) -> tuple[Bound, int] | None:
    """Returns the version or time after the word at a position, adjusted by ``excluded`` if exclusive, and the next position;
    None: it is an expression. Raises SqlError."""
    if [token.word for token in tokens[at : at + 2]] in [["TIMESTAMP", kind] for kind in _LITERALS]:
        at += 1  # a typed literal, as bound parameters are written
    words = [token.word for token in tokens[at : at + 3]]
    value: int | str
    if words[:1] == ["VERSION"]:
        if len(words) < 2 or not words[1].isdecimal() or len(words[1]) > _MAX_DIGITS:
            raise SqlError("VERSION must be followed by a number.")
        value = int(words[1])
    elif len(words) < 2 or tokens[at + 1].token_type is not TokenType.STRING:
        return None
    else:
        value = tokens[at + 1].text
    after = words[2:3]
    if after == ["EXCLUSIVE"]:
        return Bound(value, excluded), at + 3
    return Bound(value, 0), at + (3 if after == ["INCLUSIVE"] else 2)

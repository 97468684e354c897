"""The names in a statement, found by tokens, so that strings and comments are ignored. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from volstream.errors import InvalidValueError, SqlError
from volstream.model.names import Name


@dataclass(frozen=True)
class Reference:
    """A possible name of a relation or function, and its position: ``text[start:end]``.

    Attributes:
        directory: it is ``DIRECTORY(VOLUME name)``.
        takes_alias: an alias may follow, but does not.
        qualified: the schema is given.
    """

    name: Name
    start: int
    end: int
    directory: bool = False
    takes_alias: bool = False
    qualified: bool = False


#: Words that may precede the name of a relation.
_BEFORE_RELATION = {
    "FROM",
    "JOIN",
    "INTO",
    "OVERWRITE",
    "TABLE",
    "UPDATE",
    "USING",
    "EXISTS",
    "DESCRIBE",
    "DESC",
    "HISTORY",
    "DETAIL",
    "EXTENDED",
    "FORMATTED",
    "OPTIMIZE",
    "VACUUM",
    "TBLPROPERTIES",
    "PARTITIONS",
}

#: Words before a name after which an alias may follow.
_BEFORE_ALIAS = {"FROM", "JOIN", "USING"}

#: Words that begin clauses. In the first of these, names of relations may follow a comma.
_CLAUSES = {
    "FROM",
    "SELECT",
    "WHERE",
    "GROUP",
    "ORDER",
    "HAVING",
    "ON",
    "SET",
    "VALUES",
    "WHEN",
    "WINDOW",
    "LATERAL",
    "LIMIT",
}

#: Words before a name after which a parenthesis contains columns.
_BEFORE_COLUMNS = {"INTO", "OVERWRITE", "TABLE", "EXISTS"}

#: Words before a name after which a parenthesis contains columns or parameters, so it is not a call.
_BEFORE_LISTS = _BEFORE_COLUMNS | {"AS", "FUNCTION", "RECURSIVE", "VIEW", "WITH"}

#: Words that may stand between DESCRIBE and a name.
_DESCRIBED = {"HISTORY", "DETAIL", "EXTENDED", "FORMATTED"}

#: Statements that write; they consume the streams in them.
_WRITING = ("INSERT", "MERGE", "UPDATE", "DELETE", "CREATE", "REPLACE", "TRUNCATE")


def split(script: str) -> Sequence[str]:
    """Splits a script into statements at semicolons outside of strings and comments. Raises SqlError."""
    statements: list[str] = []
    start = 0
    for token in tokenize(script):
        if token.token_type is TokenType.SEMICOLON:
            statements.append(script[start : token.start])
            start = token.end + 1
    statements.append(script[start:])
    return [statement.strip() for statement in statements if any(True for _ in tokenize(statement))]


def references(statement: str) -> Sequence[Reference]:
    """Returns possible names of relations and each ``DIRECTORY(VOLUME v)``, in order, without common table expressions.

    Raises:
        SqlError: the statement cannot be split into tokens.
    """
    tokens = tokenize(statement)
    expressions = _common_expressions(tokens)
    found: list[Reference] = []
    clauses = [""]  # the current clause of each open parenthesis, and of the statement
    position = 0
    while position < len(tokens):
        word = tokens[position].text.upper()
        directory = _directory(statement, tokens, position)
        if directory is not None:
            reference, position = directory
            found.append(replace(reference, takes_alias=not _is_alias(tokens, position)))
            continue
        before = tokens[position - 1].text.upper() if position else ""
        if before in ("DESCRIBE", "DESC") and word in _DESCRIBED and position + 1 < len(tokens):
            position += 1
            continue
        listed = before == "," and clauses[-1] == "FROM"
        if (before in _BEFORE_RELATION or listed) and word != "(" and _is_name(tokens[position]):
            named, after = _name(statement, tokens, position)
            known = named is not None and tokens[after - 1] is tokens[position] and named.name.name in expressions
            if named is not None and not known:
                alias = (before in _BEFORE_ALIAS or listed) and not _is_alias(tokens, after)
                found.append(replace(named, takes_alias=alias))
            position = after
            continue
        if word == "(":
            clauses.append("")
        elif word == ")" and len(clauses) > 1:
            clauses.pop()
        elif word in _CLAUSES:
            clauses[-1] = word
        position += 1
    return found


def calls(statement: str) -> Sequence[Reference]:
    """Returns possible names of called functions, in order. Raises SqlError."""
    tokens = tokenize(statement)
    found: list[Reference] = []
    position = 0
    while position < len(tokens):
        before = tokens[position - 1].text.upper() if position else ""
        if not _is_name(tokens[position]) or before == "." or before in _BEFORE_LISTS:
            position += 1
            continue
        first, last = tokens[position], tokens[position]
        position += 1
        while position + 1 < len(tokens) and tokens[position].text == "." and _is_name(tokens[position + 1]):
            last = tokens[position + 1]
            position += 2
        if position < len(tokens) and tokens[position].token_type is TokenType.L_PAREN:
            with suppress(InvalidValueError):
                name = Name.parse(statement[first.start : last.end + 1])
                found.append(Reference(name, first.start, last.end + 1, qualified=last is not first))
    return found


@dataclass(frozen=True)
class ChangesClause:
    """``CHANGES FROM VERSION first [TO VERSION last] [WITH (...)]`` after a relation, up to ``text[:end]``."""

    first: int
    last: int | None
    options: Mapping[str, str]
    end: int


def changes_of(statement: str, reference: Reference) -> ChangesClause | None:
    """Returns the changes by version that a statement requests of a relation; None if it requests none, or by time."""
    tokens = [token for token in tokenize(statement) if token.start >= reference.end]
    words = [token.text.upper() for token in tokens]
    if words[:3] != ["CHANGES", "FROM", "VERSION"]:
        return None
    first, at = _bound(words, 3, excluded=1)
    last = None
    if words[at : at + 2] == ["TO", "VERSION"]:
        last, at = _bound(words, at + 2, excluded=-1)
    options: dict[str, str] = {}
    if words[at : at + 2] == ["WITH", "("]:
        if ")" not in words[at:]:
            raise SqlError("The parenthesis after WITH is not closed.")
        close = words.index(")", at)
        inside = [token.text for token in tokens[at + 2 : close] if token.text not in ("=", ",")]
        options = dict(zip([name.lower() for name in inside[::2]], inside[1::2], strict=False))
        at = close + 1
    return ChangesClause(first, last, options, tokens[at - 1].end + 1)


#: Maximum digits of a version; no table has as many versions.
_MAX_DIGITS = 18


def _bound(words: Sequence[str], at: int, *, excluded: int) -> tuple[int, int]:
    """Returns the version at a position, shifted by ``excluded`` if it is exclusive, and the next position. Raises SqlError."""
    if at >= len(words) or not words[at].isdecimal() or len(words[at]) > _MAX_DIGITS:
        raise SqlError("VERSION must be followed by a number.")
    version, after = int(words[at]), words[at + 1 : at + 2]
    if after == ["EXCLUSIVE"]:
        return version + excluded, at + 2
    return version, at + (2 if after == ["INCLUSIVE"] else 1)


def target(statement: str) -> Reference | None:
    """Returns the table that a DML statement writes; None if it is not DML, or names no table. Raises SqlError."""
    tokens = tokenize(statement)
    depth = 0
    for position, token in enumerate(tokens):
        word = token.text.upper()
        depth += (word == "(") - (word == ")")
        if depth == 0 and word in ("INSERT", "MERGE", "UPDATE", "DELETE"):
            after = position + 1
            while after < len(tokens) and tokens[after].text.upper() in ("INTO", "OVERWRITE", "TABLE", "FROM"):
                after += 1
            if after < len(tokens) and _is_name(tokens[after]):
                return _name(statement, tokens, after, columns=True)[0]
            return None
    return None


def reference_at(statement: str, tokens: Sequence[Token], position: int) -> Reference | None:
    """Returns the table name that begins at a token, with its position; None if it is not one of ours."""
    return _name(statement, list(tokens), position, columns=True)[0]


def alias_after(statement: str, end: int) -> str | None:
    """Returns the alias of the relation that ends at a position, or None."""
    after = [token for token in tokenize(statement) if token.start >= end]
    if after and after[0].text.upper() == "AS":
        after = after[1:]
    return after[0].text if after and _is_alias(after, 0) else None


def words(statement: str) -> list[str]:
    """Returns all words of a statement in upper case."""
    return [token.text.upper() for token in tokenize(statement)]


def last(statement: str) -> str:
    """Returns the name at a statement's end, verbatim. Raises SqlError if there is none."""
    tokens = tokenize(statement)
    position = len(tokens) - 1
    while position >= 2 and tokens[position - 1].token_type is TokenType.DOT:
        position -= 2
    if position < 0:
        raise SqlError("The statement is empty.")
    return statement[tokens[position].start : tokens[-1].end + 1]


def writes(statement: str) -> bool:
    """True if a statement changes data."""
    written = words(statement)
    if written[:1] in (["WITH"], ["FROM"]):
        return any(word in ("INSERT", "MERGE") for word in written)
    return bool(written) and written[0] in _WRITING


@dataclass(frozen=True)
class Token:
    """A token of a statement: ``statement[start : end + 1]``; ``text`` is without quotes."""

    text: str
    token_type: TokenType
    start: int
    end: int


#: Tokens after which sqlglot takes the rest as one text.
_COMMAND = (TokenType.COMMAND, TokenType.SHOW, TokenType.EXECUTE, TokenType.FETCH, TokenType.RENAME)


def tokenize(text: str) -> list[Token]:
    """Returns the tokens of a statement, without its comments. Raises SqlError."""
    found = [Token(one.text, one.token_type, one.start, one.end) for one in _scan(text)]
    if found and found[0].token_type in _COMMAND and len(found) == 2 and found[1].token_type is TokenType.STRING:
        at = found[0].end + 1
        rest = _scan(text[at:])
        found[1:] = [Token(one.text, one.token_type, one.start + at, one.end + at) for one in rest]
    return found


#: Spark takes the next line as part of a comment that ends like this, and sqlglot does not.
_CONTINUED = re.compile(r"--[^\r\n]*\\\r?\n")


def _scan(text: str) -> list[Any]:
    from sqlglot.dialects import Databricks

    try:
        tokens = list(Databricks().tokenize(text))
    except TokenError as error:
        raise SqlError(f"The statement cannot be parsed: {error}.") from None
    if _CONTINUED.search(text):
        ends = [0, *(one.end + 1 for one in tokens)]
        starts = [*(one.start for one in tokens), len(text)]
        if any(_CONTINUED.search(text, end, start) for end, start in zip(ends, starts, strict=True)):
            raise SqlError(
                "A comment ends with a backslash, which continues it in the next line.", "Remove the backslash."
            )
    return tokens


def _is_name(token: Token) -> bool:
    return token.token_type is not TokenType.STRING and (
        token.token_type is TokenType.IDENTIFIER or token.text.replace("_", "a").isalnum()
    )


def _is_alias(tokens: list[Token], position: int) -> bool:
    kinds = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.ALIAS)
    return position < len(tokens) and tokens[position].token_type in kinds


def _common_expressions(tokens: list[Token]) -> set[str]:
    """Returns the names that ``WITH name AS (`` or ``, name AS (`` gives to queries."""
    found: set[str] = set()
    for position, token in enumerate(tokens[:-2]):
        begins = position > 0 and tokens[position - 1].text.upper() in ("WITH", ",", "RECURSIVE")
        if begins and tokens[position + 1].text.upper() == "AS" and tokens[position + 2].text == "(":
            found.add(token.text.lower())
    return found


def _name(statement: str, tokens: list[Token], position: int, *, columns: bool = False) -> tuple[Reference | None, int]:
    """Returns the name that begins at a token, or None if it is not one of ours, and the position after it.

    Args:
        columns: a parenthesis after it contains columns; else it may be a function call.
    """
    first, last = tokens[position], tokens[position]
    position += 1
    while (
        position + 1 < len(tokens)
        and tokens[position].token_type is TokenType.DOT
        and _is_name(tokens[position + 1])
        and tokens[position].start == last.end + 1
    ):
        last = tokens[position + 1]
        position += 2
    before = tokens[tokens.index(first) - 1].text.upper()
    called = position < len(tokens) and tokens[position].token_type is TokenType.L_PAREN
    if called and not columns and before not in _BEFORE_COLUMNS:
        return None, position  # a function
    try:
        name = Name.parse(statement[first.start : last.end + 1])
    except InvalidValueError:
        return None, position
    return Reference(name, first.start, last.end + 1), position


def _directory(statement: str, tokens: list[Token], position: int) -> tuple[Reference, int] | None:
    words = [token.text.upper() for token in tokens[position : position + 3]]
    if words != ["DIRECTORY", "(", "VOLUME"] or position + 3 >= len(tokens):
        return None
    reference, after = _name(statement, tokens, position + 3)
    if reference is None or after >= len(tokens) or tokens[after].token_type is not TokenType.R_PAREN:
        raise SqlError("DIRECTORY(VOLUME must be followed by the name of a volume and a closing parenthesis.")
    return Reference(reference.name, tokens[position].start, tokens[after].end + 1, directory=True), after + 1

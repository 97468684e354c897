"""Tokens of SQL text, and the statements of a script. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import TokenType

from volstream.errors import SqlError

#: A replacement of ``statement[start:end]``.
Edit: TypeAlias = tuple[int, int, str]


@dataclass(frozen=True)
class Token:
    """A token of a statement: ``statement[start : end + 1]``; ``text`` is without quotes."""

    text: str
    token_type: TokenType
    start: int
    end: int

    @property
    def word(self) -> str:
        """The keyword or sign that it may be, in upper case; empty: it is a text, or a name in quotes."""
        return "" if self.token_type in _QUOTED else self.text.upper()


_QUOTED = {TokenType.IDENTIFIER, *(kind for kind in TokenType if f"_{kind.name}".endswith("_STRING"))}

#: Tokens after which sqlglot takes the rest as one text.
_COMMAND = (TokenType.COMMAND, TokenType.SHOW, TokenType.EXECUTE, TokenType.FETCH, TokenType.RENAME)


def tokenize(text: str) -> list[Token]:
    """Returns the tokens of a statement, without its comments. Raises SqlError."""
    tokens = [Token(token.text, token.token_type, token.start, token.end) for token in _scan(text)]
    if tokens and tokens[0].token_type in _COMMAND and len(tokens) == 2 and tokens[1].token_type is TokenType.STRING:
        at = tokens[0].end + 1
        arguments = _scan(text[at:])
        tokens[1:] = [Token(token.text, token.token_type, token.start + at, token.end + at) for token in arguments]
    return tokens


#: Spark takes the next line as part of a comment that ends like this, and sqlglot does not.
_CONTINUED = re.compile(r"--[^\r\n]*\\\r?\n")


def _scan(text: str) -> list[Any]:
    from sqlglot.dialects import Databricks

    try:
        tokens = list(Databricks().tokenize(text))
    except TokenError as error:
        raise SqlError(f"The statement cannot be parsed: {error}.") from None
    if _CONTINUED.search(text):
        ends = [0, *(token.end + 1 for token in tokens)]
        starts = [*(token.start for token in tokens), len(text)]
        if any(_CONTINUED.search(text, end, start) for end, start in zip(ends, starts, strict=True)):
            raise SqlError("A comment ends with a backslash, which continues it on the next line.", "Remove the backslash.")
    return tokens


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


def only(text: str) -> str:
    """Returns the only statement of a text, without a semicolon. Raises SqlError if there are none or
    several."""
    statements = split(text)
    if len(statements) != 1:
        what = f"These are {len(statements)} statements" if statements else "The statement is empty"
        raise SqlError(f"{what}.", "Run one at a time.")
    return statements[0]

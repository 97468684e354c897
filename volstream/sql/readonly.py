"""Distinguishes queries from statements that change something, by their words. Pure.

A query's plan (``volstream.spark.plans``) decides what it may read; the checks here come first and explain more.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from sqlglot.tokenizer_core import TokenType

from volstream.errors import SqlError
from volstream.sql import foreign
from volstream.sql.names import Token, split, tokenize, volume_calls, words

#: First words of statements that only read.
_READING = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "("}

#: Words that make a statement write, unless quoted or names of functions.
_WRITING = {
    "INSERT",
    "MERGE",
    "UPDATE",
    "DELETE",
    "CREATE",
    "DROP",
    "ALTER",
    "TRUNCATE",
    "OVERWRITE",
    "REPLACE",
    "REFRESH",
    "CALL",
    "EXECUTE",
}

#: First words of statements that describe objects, without a plan.
_SHOWING = {"SHOW", "DESCRIBE", "DESC"}

#: First words of queries that DESCRIBE accepts.
_QUERYING = {"SELECT", "WITH", "FROM", "VALUES", "MAP", "REDUCE", "("}

#: Spark's functions that call any Java method, which the home's engine lacks; and IDENTIFIER, which calls a function or reads a
#: relation whose name is computed.
_HIDING = {"REFLECT", "TRY_REFLECT", "JAVA_METHOD", "IDENTIFIER"}


def one_query(text: str) -> str:
    """Returns the only statement of ``text`` if it only reads.

    An unquoted column with the name of a writing word is refused: the check errs on the safe side.

    Raises:
        SqlError: the text has no statement or several, or it may write.
    """
    statements = split(text)
    if len(statements) != 1:
        raise SqlError("Write one query." if not statements else "Only one query at a time can be run here.")
    (statement,) = statements
    tokens = tokenize(statement)
    upper = [token.text.upper() for token in tokens]
    if upper[0] not in _READING:
        raise SqlError(
            f"{upper[0]} is not a query.", "Here only SELECT, SHOW and DESCRIBE run; use volstream sql for the others."
        )
    check_calls(statement)
    foreign.check(statement)
    if not has_plan(statement):
        if _describes_query(upper) or any(_may_be_path(statement, token, upper[0]) for token in tokens):
            raise SqlError("Only objects of this home can be described here.", "For files, use volstream sql.")
        return statement
    for position, token in enumerate(tokens):
        plain = statement[token.start : token.end + 1].upper() == upper[position]
        before, after = upper[position - 1 : position], upper[position + 1 : position + 2]
        if plain and upper[position] in _WRITING and before != ["."] and after != ["("]:
            raise SqlError(
                f"A query cannot contain the word {upper[position]}.",
                f"If it is a name, write it in backticks: `{token.text}`.",
            )
    return statement


def _describes_query(upper: Sequence[str]) -> bool:
    """True if a statement describes a query's columns: to find them, Spark opens the files that the query names."""
    if upper[0] == "SHOW":
        return False
    return (upper[1:2] == ["QUERY"] and len(upper) > 2) or not _QUERYING.isdisjoint(upper[1:2])


def _may_be_path(statement: str, token: Token, word: str) -> bool:
    if token.token_type is TokenType.IDENTIFIER:
        return "/" in token.text or not token.text.strip(".")  # including a parent folder
    # Texts have several kinds of token: plain, raw, hexadecimal.
    return word != "SHOW" and not {"'", '"'}.isdisjoint(statement[token.start : token.end + 1])


def has_plan(statement: str) -> bool:
    """True if a statement that only reads is a query, rather than SHOW or DESCRIBE."""
    return words(statement)[0] not in _SHOWING


def check_calls(text: str) -> None:
    """Raises SqlError if a query or condition calls a function that can call arbitrary code, or that reads files."""
    tokens = tokenize(text)
    for token, after in itertools.pairwise(tokens):
        if token.text.upper() in _HIDING and after.token_type is TokenType.L_PAREN:
            raise SqlError(f"The function {token.text} is not allowed here.")
    for call in volume_calls(text):
        raise SqlError(f"The function {call.function} is not allowed here.")

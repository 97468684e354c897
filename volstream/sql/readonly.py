"""Tells statements that only read, by their first word, and the functions that conditions may not call. Pure.

What a statement may read is up to the engine's guard (``volstream.spark.frames``); the checks here come first and explain more.
"""

from __future__ import annotations

import itertools

from sqlglot.tokenizer_core import TokenType

from volstream.errors import SqlError
from volstream.sql.statement import SparkStatement
from volstream.sql.tokens import only

#: First words of statements that only read.
_READING = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "("}

#: Spark's functions that call any Java method, which the home's engine lacks; and IDENTIFIER, which calls a function or reads a
#: relation whose name is computed.
_HIDING = {"REFLECT", "TRY_REFLECT", "JAVA_METHOD", "IDENTIFIER"}


def one_query(text: str) -> str:
    """Returns the only statement of ``text`` if it begins as one that only reads.

    Raises:
        SqlError: the text has no statement or several, or one that writes or reads files.
    """
    statement = only(text)
    word = SparkStatement(statement).words[0]
    if word not in _READING:
        raise SqlError(f"{word} is not a query.", "Here only SELECT, SHOW and DESCRIBE run; use volstream sql for the others.")
    check_calls(statement)
    return statement


def check_calls(text: str) -> None:
    """Raises SqlError if a query or condition calls a function that can call arbitrary code, or that reads files."""
    statement = SparkStatement(text)
    for token, after in itertools.pairwise(statement.tokens):
        if token.word in _HIDING and after.token_type is TokenType.L_PAREN:
            raise SqlError(f"The function {token.text} is not allowed here.")
    for call in statement.volume_calls:
        raise SqlError(f"The function {call.function} is not allowed here.")
    for reference in statement.references:
        if reference.files is not None:
            raise SqlError(
                f"Files of the volume {reference.name} cannot be read here.", "Use volstream sql, or load them into a table."
            )

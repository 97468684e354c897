"""Tells queries from statements that change something. Pure."""

from __future__ import annotations

from volstream.errors import SqlError
from volstream.sql.names import split, tokenize

#: Words with which a statement that only reads begins.
_READING = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "("}

#: Words that, outside of quotes and names of functions, make a statement write.
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

#: Spark's functions that call any Java method.
_CALLING_JAVA = {"REFLECT", "TRY_REFLECT", "JAVA_METHOD"}


def one_query(text: str) -> str:
    """Returns the one statement of ``text`` if it only reads.

    A column that has the name of a writing word is refused unless it is quoted: the check errs on the safe side.

    Raises:
        SqlError: there is none, there are several, or it may write.
    """
    statements = split(text)
    if len(statements) != 1:
        raise SqlError("Write one query." if not statements else "Only one query at a time can be run here.")
    (statement,) = statements
    tokens = tokenize(statement)
    words = [token.text.upper() for token in tokens]
    if words[0] not in _READING:
        raise SqlError(
            f"{words[0]} is not a query.", "Here only SELECT, SHOW and DESCRIBE run; use volstream sql for the others."
        )
    if words[0] in ("SHOW", "DESCRIBE", "DESC"):
        return statement
    for position, token in enumerate(tokens):
        plain = statement[token.start : token.end + 1].upper() == words[position]
        before, after = words[position - 1 : position], words[position + 1 : position + 2]
        if plain and words[position] in _WRITING and before != ["."] and after != ["("]:
            raise SqlError(
                f"A query cannot have the word {words[position]}.",
                f"If it is a name, write it in backticks: `{token.text}`.",
            )
        if words[position] in _CALLING_JAVA and after == ["("]:
            raise SqlError(f"The function {token.text} is not allowed here.", "Use volstream sql.")
    return statement

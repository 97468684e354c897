"""The names in a statement, by tokens: what is inside a string or comment is none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from volstream.errors import InvalidValueError, SqlError
from volstream.model.names import Name


@dataclass(frozen=True)
class Reference:
    """A possible name of a relation, and where it stands: ``text[start:end]``.

    Attributes:
        directory: it is ``DIRECTORY(VOLUME name)``.
        takes_alias: an alias may follow, and none does.
    """

    name: Name
    start: int
    end: int
    directory: bool = False
    takes_alias: bool = False


#: After these a relation's name may stand.
_BEFORE_RELATION = {"FROM", "JOIN", "INTO", "TABLE", "UPDATE", "USING", "EXISTS", "DESCRIBE", "DESC", ","}

#: After these an alias may follow the name.
_BEFORE_ALIAS = {"FROM", "JOIN", "USING", ","}

#: After these a parenthesis behind the name holds columns.
_BEFORE_COLUMNS = {"INTO", "TABLE", "EXISTS"}

#: Statements that write; a stream in one of them would be consumed.
_WRITING = ("INSERT", "MERGE", "UPDATE", "DELETE", "CREATE", "REPLACE", "TRUNCATE")


def split(script: str) -> Sequence[str]:
    """The statements of a script, between semicolons that are no part of a string or comment. Raises SqlError."""
    statements: list[str] = []
    start = 0
    for token in _tokens(script):
        if token.token_type is TokenType.SEMICOLON:
            statements.append(script[start : token.start])
            start = token.end + 1
    statements.append(script[start:])
    return [statement.strip() for statement in statements if any(True for _ in _tokens(statement))]


def references(statement: str) -> Sequence[Reference]:
    """Names that may be relations, and each ``DIRECTORY(VOLUME v)``, in order. Raises SqlError."""
    tokens = _tokens(statement)
    found: list[Reference] = []
    position = 0
    while position < len(tokens):
        directory = _directory(statement, tokens, position)
        if directory is not None:
            reference, position = directory
            found.append(reference)
            continue
        before = tokens[position - 1].text.upper() if position else ""
        if before in _BEFORE_RELATION and _is_name(tokens[position]):
            named, position = _name(statement, tokens, position)
            if named is not None:
                alias = before in _BEFORE_ALIAS and not _is_alias(tokens, position)
                found.append(replace(named, takes_alias=alias))
            continue
        position += 1
    return found


def words(statement: str) -> list[str]:
    """The words of a statement in upper case, up to its end."""
    return [token.text.upper() for token in _tokens(statement)]


def last(statement: str) -> str:
    """The name at a statement's end, as it was written; raises SqlError where none is there."""
    tokens = _tokens(statement)
    position = len(tokens) - 1
    while position >= 2 and tokens[position - 1].token_type is TokenType.DOT:
        position -= 2
    if position < 0:
        raise SqlError("The statement is empty.")
    return statement[tokens[position].start : tokens[-1].end + 1]


def writes(statement: str) -> bool:
    """Whether a statement changes data."""
    written = words(statement)
    if written[:1] == ["WITH"]:
        return any(word in ("INSERT", "MERGE") for word in written)
    return bool(written) and written[0] in _WRITING


def _tokens(text: str) -> list[Token]:
    from sqlglot.dialects import Databricks

    try:
        return list(Databricks().tokenize(text))
    except TokenError as error:
        raise SqlError(f"The statement cannot be read: {error}.") from None


def _is_name(token: Token) -> bool:
    return token.token_type is not TokenType.STRING and (
        token.token_type is TokenType.IDENTIFIER or token.text.replace("_", "a").isalnum()
    )


def _is_alias(tokens: list[Token], position: int) -> bool:
    kinds = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.ALIAS)
    return position < len(tokens) and tokens[position].token_type in kinds


def _name(statement: str, tokens: list[Token], position: int) -> tuple[Reference | None, int]:
    """The name that begins at a token, or None where it is none of ours, and the position after it."""
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
    if called and before not in _BEFORE_COLUMNS:
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
        raise SqlError("After DIRECTORY(VOLUME the name of a volume and a closing parenthesis belong.")
    return Reference(reference.name, tokens[position].start, tokens[after].end + 1, directory=True), after + 1

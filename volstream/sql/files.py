"""``VOLUME v USING csv OPTIONS (delimiter ';') FILES ('a.csv')``: files of a volume as rows, in a statement. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot.tokenizer_core import TokenType

from volstream.errors import SqlError
from volstream.sql.tokens import Token

_EXAMPLE = "Write for example: FROM VOLUME v USING csv OPTIONS (delimiter ';') FILES ('a.csv', 'b.csv')."


@dataclass(frozen=True)
class FilesClause:
    """What follows the name of the volume, from ``start`` in the statement.

    Attributes:
        format: None: of each file by its name.
        options: by their names in lower case, as text.
        files: their paths, or globs; None: all.
    """

    start: int
    format: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[str] | None = None


def clause_at(tokens: list[Token], position: int) -> tuple[FilesClause, int] | None:
    """Returns the clause that begins at a token, and the position after it; None if there is none. Raises SqlError."""
    words = [token.word for token in tokens]
    start, format_, options, files = tokens[position - 1].end + 1, None, None, None
    begin = position
    while position < len(tokens):
        match words[position]:
            case "USING" if format_ is None and words[position + 1 : position + 2] not in ([], ["("]):
                format_ = tokens[position + 1].text
                position += 2
            case "OPTIONS" if options is None and words[position + 1 : position + 2] == ["("]:
                options, position = _options(tokens, position + 2)
            case "FILES" if files is None and words[position + 1 : position + 2] == ["("]:
                files, position = _texts(tokens, position + 2)
            case _:
                break
    if position == begin:
        return None
    return FilesClause(start, format_, options or {}, files), position


def _options(tokens: list[Token], position: int) -> tuple[Mapping[str, str], int]:
    options: dict[str, str] = {}
    while position + 2 < len(tokens):
        key, value = tokens[position].text.lower(), position + 1 + (tokens[position + 1].word == "=")
        if value + 1 >= len(tokens) or tokens[value].word in (",", ")"):
            break
        options[key] = tokens[value].text
        position = value + 2
        if tokens[value + 1].word == ")":
            return options, position
        if tokens[value + 1].word != ",":
            break
    raise SqlError("OPTIONS has pairs of a name and a value.", _EXAMPLE)


def _texts(tokens: list[Token], position: int) -> tuple[Sequence[str], int]:
    texts: list[str] = []
    while position + 1 < len(tokens) and tokens[position].token_type is TokenType.STRING:
        texts.append(tokens[position].text)
        position += 2
        if tokens[position - 1].word == ")":
            return texts, position
        if tokens[position - 1].word != ",":
            break
    raise SqlError("FILES has the paths of files, in quotes.", _EXAMPLE)

"""What a statement names: relations, versions, files; found in its tokens, also where sqlglot cannot parse
it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import Name
from volstream.base.model.text import like
from volstream.errors import InvalidValueError, SqlError
from volstream.sql.tokens import Token

# ``VOLUME v USING csv OPTIONS (delimiter ';') FILES ('a.csv')``: files of a volume as rows, in a statement.
# Pure.

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
    """Returns the clause that begins at a token, and the position after it; None if there is none. Raises
    SqlError."""
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


# Versions and times that a statement asks of a relation: ``CHANGES FROM VERSION 3``, ``VERSION AS OF 3``.
# Pure.


@dataclass(frozen=True)
class Bound:
    """First or last version of a range of changes, or the text of a time; ``excluded``: 1 or -1 if the range
    begins after it or ends before it, else 0."""

    at: int | str
    excluded: int


@dataclass(frozen=True)
class ChangesClause:
    """``CHANGES FROM VERSION first [TO VERSION last] [WITH (...)]`` after a relation, or with ``TIMESTAMP
    'time'``; ends before ``end``."""

    first: Bound
    last: Bound | None
    options: Mapping[str, str]
    end: int


def changes_of(tokens: list[Token]) -> ChangesClause | None:
    """Returns the changes that the tokens after a relation request of it; None if they request none. Raises
    SqlError."""
    clause = clause_in(tokens)
    if clause is None and [token.word for token in tokens[:2]] == ["CHANGES", "FROM"]:
        raise SqlError("CHANGES FROM must be followed by VERSION and a number, or by TIMESTAMP and a time in quotes.")
    return clause


def travel_of(tokens: list[Token]) -> tuple[int | str, int] | None:
    """Returns the version, or the text of the time, in ``VERSION AS OF 3`` after a relation, and its end;
    None if it has none.

    Raises:
        SqlError: it is an expression.
    """
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


def time_of(text: str, tokens: list[Token]) -> TimeClause | None:
    """Returns the time at which a statement reads a relation, or None if it gives no literal. Raises
    SqlError.

    Args:
        text: the statement.
        tokens: those after the relation.
    """
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
    return TimeClause(text[tokens[first].start : end], begin, end)


def clause_in(tokens: list[Token]) -> ChangesClause | None:
    """Returns the clause that tokens begin with; None: it is none, or has expressions as bounds. Raises
    SqlError."""
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
    """Returns the version or time after the word at a position, adjusted by ``excluded`` if exclusive, and
    the next position; None: it is an expression. Raises SqlError."""
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


# Names in a statement as its tokens show them, also where sqlglot cannot parse it.


@dataclass(frozen=True)
class Reference:
    """A possible name of a relation or function, and its position: ``text[start:end]``.

    Attributes:
        directory: the reference is ``DIRECTORY(VOLUME name)``, or of the files of a volume.
        files: what follows ``VOLUME name`` where files are read as rows.
        takes_alias: an alias may follow, but none does.
        qualified: the schema is given.
    """

    name: Name
    start: int
    end: int
    directory: bool = False
    takes_alias: bool = False
    qualified: bool = False
    files: FilesClause | None = None


#: Spark's name for the catalog of the home's tables, which may stand before a schema; and the parts of a name
#: with it.
SESSION_CATALOG, _IN_CATALOG = "spark_catalog", 3

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
    "CLONE",
    "RESTORE",
    "VIEW",
}


#: Words before a name after which an alias may follow.
_BEFORE_ALIAS = {"FROM", "JOIN", "USING"}


#: Words that begin clauses; only FROM lists relations. GROUP BY and the like are one token.
_CLAUSES = {
    "FROM",
    "SELECT",
    "WHERE",
    "HAVING",
    "QUALIFY",
    "ON",
    "SET",
    "VALUES",
    "WHEN",
    "WINDOW",
    "LATERAL",
    "LIMIT",
    "GROUP BY",
    "ORDER BY",
    "SORT BY",
    "CLUSTER BY",
    "DISTRIBUTE BY",
    "PARTITION BY",
}


#: Words before a parenthesis in which FROM begins a clause, rather than an argument as in ``trim(a FROM b)``.
_BEFORE_QUERY = {"EXISTS", "IN", "ANY", "ALL", "SOME", "AS", "FROM", "JOIN", "LATERAL", "USING", "OVER", "FILTER"}


#: Words before a name after which a parenthesis contains columns.
_BEFORE_COLUMNS = {"INTO", "OVERWRITE", "TABLE", "EXISTS", "TBLPROPERTIES"}


#: Words before a name after which a parenthesis contains columns or parameters: the name is not a call.
BEFORE_LISTS = _BEFORE_COLUMNS | {"AS", "FUNCTION", "RECURSIVE", "VIEW", "WITH"}


#: What statements about other things than relations name first.
_OTHERS = {"SCHEMA", "DATABASE", "NAMESPACE", "FUNCTION"}


#: Words that may stand between DESCRIBE and a name.
_DESCRIBED = {"HISTORY", "DETAIL", "EXTENDED", "FORMATTED"}


def index_after(tokens: list[Token], end: int) -> int:
    return next((at for at, token in enumerate(tokens) if token.start >= end), len(tokens))


def by_tokens(statement: str, tokens: list[Token]) -> Sequence[Reference]:
    expressions = _common_expressions(tokens)
    mentions: list[Reference] = []
    clauses = [""]  # the current clause of each open parenthesis, and of the statement
    from_ = True  # the last FROM began a clause
    words = [token.word for token in tokens[:3]]
    of_columns = words == ["SHOW", "COLUMNS", "IN"]
    creates, describes = words[:1] in (["CREATE"], ["REPLACE"]), words[:1] in (["DESCRIBE"], ["DESC"])
    names_other = words[2:] and words[1] in _OTHERS and (describes or words[0] in ("CREATE", "DROP", "ALTER"))
    if names_other or words == ["SHOW", "TABLE", "EXTENDED"]:
        return []
    before_relation = _BEFORE_RELATION - {"USING"} if creates else _BEFORE_RELATION  # there it is a format
    before_relation = before_relation if describes else before_relation - _DESCRIBED
    if (named := _columns_in_schema(statement, tokens)) is not None:
        return [named]
    position = 0
    while position < len(tokens):
        word = tokens[position].word
        directory = directory_at(statement, tokens, position)
        if directory is not None:
            reference, position = directory
            mentions.append(replace(reference, takes_alias=alias_may_follow(tokens, position)))
            continue
        before = tokens[position - 1].word if position else ""
        if describes and before in ("DESCRIBE", "DESC", "TABLE") and word in _DESCRIBED and position + 1 < len(tokens):
            position += 1
            continue
        listed = before == "," and clauses[-1] == "FROM"
        begins = (before in before_relation and (before != "FROM" or from_)) or (before == "IN" and position == 3 and of_columns)
        begins |= creates and before == "LIKE" and clauses == [""]
        if (begins or listed) and word != "(" and is_name(tokens[position]) and not _is_keyword(tokens, position):
            named, after = name_at(statement, tokens, position)
            is_expression = named is not None and tokens[after - 1] is tokens[position] and named.name.name in expressions
            if named is not None and not is_expression:
                alias = (before in _BEFORE_ALIAS or listed) and alias_may_follow(tokens, after)
                mentions.append(replace(named, takes_alias=alias))
            position = after
            continue
        if word == "(":
            called = position > 0 and is_name(tokens[position - 1]) and before not in _BEFORE_QUERY
            clauses.append(_ARGUMENTS if called and clauses[-1] != "FROM" else "")
        elif word == ")" and len(clauses) > 1:
            clauses.pop()
        elif word == "FROM":
            from_ = clauses[-1] != _ARGUMENTS and before not in ("DISTINCT", "CHANGES")
            clauses[-1] = word if from_ else clauses[-1]
        elif word in _CLAUSES:
            clauses[-1] = word
        position += 1
    return mentions


def _is_keyword(tokens: list[Token], position: int) -> bool:
    """Returns whether a token in place of a relation's name is ``TABLE`` before the name, or begins ``IF
    [NOT] EXISTS``."""
    words = [token.word for token in tokens[position : position + 3]]
    before_name = words[:1] == ["TABLE"] and len(words) > 1 and is_name(tokens[position + 1])
    return before_name or words[:2] == ["IF", "EXISTS"] or words == ["IF", "NOT", "EXISTS"]


def _columns_in_schema(statement: str, tokens: list[Token]) -> Reference | None:
    """Returns the table of ``SHOW COLUMNS IN table IN schema``; None for other statements."""
    words = [token.word for token in tokens]
    if words[:2] != ["SHOW", "COLUMNS"] or len(tokens) != 6 or not {words[2], words[4]} <= {"IN", "FROM"}:
        return None
    table, schema = (name_at(statement, tokens, position)[0] for position in (3, 5))
    if table is None or schema is None:
        return None
    return replace(table, name=Name(schema.name.name, table.name.name), qualified=True)


def is_name(token: Token) -> bool:
    return token.token_type is TokenType.IDENTIFIER or token.word.replace("_", "A").isalnum()


def is_alias(tokens: Sequence[Token], position: int) -> bool:
    kinds = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.ALIAS)
    return position < len(tokens) and tokens[position].token_type in kinds


def alias_may_follow(tokens: list[Token], position: int) -> bool:
    """True if an alias may be inserted. A sample's alias would follow its clause."""
    return not is_alias(tokens, position) and [token.word for token in tokens[position:][:1]] != ["TABLESAMPLE"]


def _common_expressions(tokens: list[Token]) -> set[str]:
    """Returns the names that ``WITH name [(columns)] [AS] (`` or the same after a comma give to queries."""
    names: set[str] = set()
    words = [token.word for token in tokens]
    for position, token in enumerate(tokens[:-2]):
        if not position or words[position - 1] not in ("WITH", ",", "RECURSIVE"):
            continue
        at = position + 1
        if words[at] == "(" and words[at + 1] not in _QUERIES:
            at = next((end + 1 for end in range(at, len(words)) if words[end] == ")"), len(words))
        at += 4 if words[at : at + 3] == ["MAX", "RECURSION", "LEVEL"] else 0
        at += words[at : at + 1] == ["AS"]
        if words[at : at + 1] == ["("] and (words[at - 1] == "AS" or words[at + 1 : at + 2] in [[word] for word in _QUERIES]):
            names.add(token.text.lower())
    return names


#: What a query begins with.
_QUERIES = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")


def name_at(statement: str, tokens: list[Token], position: int, *, columns: bool = False) -> tuple[Reference | None, int]:
    """Returns the name that begins at a token, or None for a call or an invalid name, and the position after
    it.

    Args:
        columns: a following parenthesis contains columns; else it may be a call.
    """
    before, parts = tokens[position - 1].word, parts_at(tokens, position)
    position += 2 * len(parts) - 1
    called = position < len(tokens) and tokens[position].token_type is TokenType.L_PAREN
    if called and not columns and before not in _BEFORE_COLUMNS:
        return None, position  # a function
    try:
        name = name_of(statement, parts)
    except InvalidValueError:
        return None, position
    return Reference(name, parts[0].start, parts[-1].end + 1, qualified=len(parts) > 1), position


def parts_at(tokens: Sequence[Token], position: int) -> Sequence[Token]:
    """Returns the parts of the name that begins at a token."""
    parts = [tokens[position]]
    while position + 2 < len(tokens) and tokens[position + 1].token_type is TokenType.DOT and is_name(tokens[position + 2]):
        position += 2
        parts.append(tokens[position])
    return parts


def name_of(statement: str, parts: Sequence[Token]) -> Name:
    """Returns the name with these parts, which may begin with Spark's catalog. Raises InvalidValueError."""
    if len(parts) == _IN_CATALOG and parts[0].text.lower() == SESSION_CATALOG:
        parts = parts[1:]
    return Name.parse(".".join(statement[part.start : part.end + 1] for part in parts))


def directory_at(statement: str, tokens: list[Token], position: int) -> tuple[Reference, int] | None:
    words = [token.word for token in tokens[position : position + 3]]
    if words[:1] == ["VOLUME"] and position and tokens[position - 1].word in ("FROM", "JOIN", ","):
        return _files_at(statement, tokens, position)
    if words != ["DIRECTORY", "(", "VOLUME"] or position + 3 >= len(tokens):
        return None
    reference, after = name_at(statement, tokens, position + 3)
    if reference is None or after >= len(tokens) or tokens[after].token_type is not TokenType.R_PAREN:
        raise SqlError("DIRECTORY(VOLUME must be followed by the name of a volume and a closing parenthesis.")
    start, end = tokens[position].start, tokens[after].end + 1
    return replace(reference, start=start, end=end, directory=True), after + 1


def _files_at(statement: str, tokens: list[Token], position: int) -> tuple[Reference, int] | None:
    if position + 2 >= len(tokens) or not is_name(tokens[position + 1]):
        return None
    reference, after = name_at(statement, tokens, position + 1)
    found = None if reference is None else clause_at(tokens, after)
    if reference is None or found is None:
        return None
    clause, after = found
    start, end = tokens[position].start, tokens[after - 1].end + 1
    return replace(reference, start=start, end=end, directory=True, files=clause), after


#: Instead of a clause: a function's arguments, which FROM may separate.
_ARGUMENTS = "()"

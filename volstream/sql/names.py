"""The names in a statement: from its syntax tree or, where sqlglot cannot parse it, from its tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.errors import InvalidValueError, SqlError
from volstream.sql.changes import clause_in
from volstream.sql.scanning import (
    BEFORE_LISTS,
    SESSION_CATALOG,
    Reference,
    alias_may_follow,
    by_tokens,
    directory_at,
    index_after,
    is_name,
    name_at,
    name_of,
    parts_at,
)
from volstream.sql.text import tree_of
from volstream.sql.tokens import Token, tokenize, words_of

#: Statements that write, and so consume the streams that they read.
_WRITING = ("INSERT", "MERGE", "UPDATE", "DELETE", "CREATE", "REPLACE", "TRUNCATE")


def references(statement: str) -> Sequence[Reference]:
    """Returns possible names of relations, each ``DIRECTORY(VOLUME v)`` and ``VOLUME v USING csv``, in order, excluding common
    table expressions.

    Raises:
        SqlError: the statement cannot be split into tokens.
    """
    return _references(statement)


@lru_cache(maxsize=64)  # several steps ask for a statement's tokens on its way to Spark
def _references(statement: str) -> Sequence[Reference]:
    tokens = tokenize(statement)
    mentions = _parsed(statement, tokens)
    return tuple(by_tokens(statement, tokens) if mentions is None else mentions)


def _parsed(statement: str, tokens: list[Token]) -> Sequence[Reference] | None:
    """Returns the references in a query or DML from its tree; None for other statements, or if sqlglot cannot parse it."""
    directories, text = _extensions(statement, tokens)
    tree = _tree(text)
    if tree is None or any(
        identifier.name.upper() == "TABLE" and not identifier.quoted for identifier in tree.find_all(exp.Identifier)
    ):
        return None  # sqlglot does not parse TABLE t as a query: it takes the word for a name
    mentions = []
    for table in tree.find_all(exp.Table):
        parts = [part for part in table.parts if isinstance(part, exp.Identifier)]
        if len(parts) != len(table.parts) or table.find_ancestor(exp.Hint):
            continue  # a function, or an alias in a hint
        if any("start" not in part.meta for part in parts):
            return None
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        directory = directories.get(start)
        if directory is None and len(parts) == 1 and _is_common_expression(table):
            continue
        alias = not table.alias and _may_have_alias(table) and alias_may_follow(tokens, index_after(tokens, end))
        if directory is not None:
            mentions.append(replace(directory, takes_alias=alias))
            continue
        if len(parts) == 3 and parts[0].name.lower() == SESSION_CATALOG:
            parts = parts[1:]
        with suppress(InvalidValueError):
            name = Name.parse(".".join(statement[part.meta["start"] : part.meta["end"] + 1] for part in parts))
            mentions.append(Reference(name, start, end, takes_alias=alias, qualified=len(parts) > 1))
    return sorted(mentions, key=lambda reference: reference.start)


@lru_cache(maxsize=64)
def _tree(text: str) -> exp.Expr | None:
    """Returns the tree of a query or DML; None for other statements, or if sqlglot cannot parse it."""
    try:
        tree = tree_of(text)
    except SqlglotError:
        return None
    kinds = (exp.Query, exp.Insert, exp.MultitableInserts, exp.Merge, exp.Update, exp.Delete)
    if isinstance(tree, exp.Create):
        return tree if isinstance(tree.expression, exp.Query) else None
    return tree if isinstance(tree, kinds) else None


def must_exist(statement: str) -> bool:
    """True if all relations that a statement names must exist: a query or DML, but nothing that creates."""
    return not isinstance(_tree(statement) or exp.Create(), exp.Create)


def is_query(statement: str) -> bool:
    """True if a statement is certainly a query, which only reads, whatever words its columns and texts contain."""
    return isinstance(_tree(statement), exp.Query)


def _extensions(statement: str, tokens: list[Token]) -> tuple[dict[int, Reference], str]:
    """Returns each ``DIRECTORY(VOLUME v)`` and ``VOLUME v USING csv`` by its position, and a statement of the same length that
    sqlglot can parse: with a name in place of each of these, and without ``CHANGES FROM``."""
    directories: dict[int, Reference] = {}
    text = statement
    for position in range(len(tokens)):
        directory = directory_at(statement, tokens, position)
        if directory is not None:
            reference = directory[0]
            directories[reference.start] = reference
            text = f"{text[: reference.start]}`{'_' * (reference.end - reference.start - 2)}`{text[reference.end :]}"
    for position, token in enumerate(tokens):
        if [following.word for following in tokens[position : position + 2]] == ["CHANGES", "FROM"]:
            clause = clause_in(tokens[position:])
            if clause is not None:
                text = text[: token.start] + " " * (clause.end - token.start) + text[clause.end :]
    return directories, text


def _is_common_expression(table: exp.Table) -> bool:
    """True if an unqualified name refers to a common table expression that is visible at its place."""
    target = table.parent
    while isinstance(target, exp.Schema):
        target = target.parent
    written = target.this if isinstance(target, exp.DML) else None
    if isinstance(written, exp.Expression) and written.find(exp.Table) is table:  # for DELETE t, it is True
        return False  # a written table is never a common table expression
    name = table.name.lower()
    node: exp.Expr = table
    inside: exp.Expr | None = None  # the common table expression that contains the reference
    while node.parent is not None:
        inside = node if isinstance(node, exp.CTE) else inside
        node = node.parent
        with_ = node.args.get("with_")
        if with_ is None:
            continue
        visible = list(with_.expressions)
        if inside in visible:  # earlier ones, and itself if it is recursive
            visible = visible[: visible.index(inside) + bool(with_.args.get("recursive"))]
        if any(expression.alias.lower() == name for expression in visible):
            return True
    return False


def _may_have_alias(table: exp.Table) -> bool:
    """True where a relation is read; a written one already has its alias, if any."""
    if isinstance(table.parent, exp.Merge | exp.MultitableInserts):
        return table.arg_key in ("using", "source")
    return isinstance(table.parent, exp.From | exp.Join | exp.Lateral | exp.Subquery | exp.Paren)


def calls(statement: str) -> Sequence[Reference]:
    """Returns possible names of called functions, in order. Raises SqlError."""
    tokens = tokenize(statement)
    mentions: list[Reference] = []
    position = 0
    while position < len(tokens):
        before = tokens[position - 1].word if position else ""
        if not is_name(tokens[position]) or before == "." or before in BEFORE_LISTS:
            position += 1
            continue
        parts = parts_at(tokens, position)
        first, last = parts[0], parts[-1]
        position += 2 * len(parts) - 1
        if position < len(tokens) and tokens[position].token_type is TokenType.L_PAREN:
            with suppress(InvalidValueError):
                name = Name.parse(statement[first.start : last.end + 1])
                mentions.append(Reference(name, first.start, last.end + 1, qualified=last is not first))
    return mentions


#: Functions of the files of a volume, which Spark's registry has by other names: see :func:`volume_calls`.
VOLUME_FUNCTIONS = ("file_content", "get_presigned_url")


@dataclass(frozen=True)
class VolumeCall:
    """The beginning of a call such as ``file_content(VOLUME v, path)``: ``statement[start:end]`` ends with the comma.

    Attributes:
        function: one of :data:`VOLUME_FUNCTIONS`.
        qualified: the volume is named with its schema.
    """

    function: str
    volume: Name
    start: int
    end: int
    qualified: bool = True


def volume_calls(statement: str) -> Sequence[VolumeCall]:
    """Returns the calls of functions of files, in order.

    Raises:
        SqlError: a volume has no valid name, or no path follows.
    """
    tokens = tokenize(statement)
    words = [token.text.lower() for token in tokens]
    calls = []
    for position, word in enumerate(words):
        if word not in VOLUME_FUNCTIONS or words[position + 1 : position + 3] != ["(", "volume"]:
            continue
        reference, after = name_at(statement, tokens, position + 3) if position + 3 < len(tokens) else (None, 0)
        if reference is None or words[after : after + 1] != [","]:
            raise SqlError(
                f"{word}(VOLUME must be followed by the name of a volume, a comma and a path.",
                f"Write for example {word}(VOLUME photos, relative_path).",
            )
        span = tokens[position].start, tokens[after].end + 1
        calls.append(VolumeCall(word, reference.name, *span, reference.qualified))
    return calls


def targets(statement: str) -> Sequence[Reference]:
    """Returns the tables that DML writes: several only for ``FROM q INSERT INTO a ... INSERT INTO b ...``. Raises SqlError."""
    tokens = tokenize(statement)
    found = (name_at(statement, tokens, position, columns=True)[0] for position in _targets(statement, tokens))
    return [reference for reference in found if reference is not None]


def _targets(statement: str, tokens: Sequence[Token]) -> Sequence[int]:
    """Returns where the names of the tables begin that DML writes."""
    if is_query(statement):
        return ()
    words = [token.word for token in tokens]
    found: list[int] = []
    depth = 0
    for position, word in enumerate(words):
        depth += (word == "(") - (word == ")")
        if depth or word not in ("INSERT", "MERGE", "UPDATE", "DELETE"):
            continue
        if position and words[position - 1] in ("WITH", ",", "RECURSIVE", "."):
            continue  # a name
        if found and not (word == "INSERT" and words[position + 1 : position + 2] in (["INTO"], ["OVERWRITE"])):
            continue  # a clause of MERGE, or a column
        after = position + 1
        after += 3 if words[after : after + 3] == ["WITH", "SCHEMA", "EVOLUTION"] else 0
        after += words[after : after + 1] in (["INTO"], ["OVERWRITE"], ["FROM"])
        after += words[after : after + 1] == ["TABLE"] and after + 1 < len(tokens) and is_name(tokens[after + 1])
        if after < len(tokens) and is_name(tokens[after]):
            found.append(after)
    return found


def by_names(statement: str, named_by: Callable[[str], Name | None]) -> str:
    """Returns a statement with names in place of paths such as ``delta.`/path```, where there is one. Raises SqlError."""
    tokens = tokenize(statement)
    for at in reversed(range(len(tokens) - 2)):
        form, dot, path = tokens[at : at + 3]
        if (form.text.lower(), dot.text) == ("delta", ".") and path.token_type is TokenType.IDENTIFIER:
            name = named_by(re.sub(r"^file:(//localhost|//)?(?=/)", "", path.text, flags=re.IGNORECASE))
            statement = statement if name is None else statement[: form.start] + name.qualified + statement[path.end + 1 :]
    return statement


def is_temporary(words: list[str]) -> bool:
    """True if a statement creates a temporary view or function."""
    kind = next((at for at, word in enumerate(words) if word in ("TABLE", "VIEW", "FUNCTION")), 0)
    return words[:1] == ["CREATE"] and not {"TEMPORARY", "TEMP"}.isdisjoint(words[1:kind])


def temporary_view(statement: str) -> Name | None:
    """Returns the temporary view that a statement creates; None for other statements. Raises SqlError."""
    tokens = tokenize(statement)
    words = [token.word for token in tokens[:8]]
    if "VIEW" not in words or not is_temporary(words):
        return None
    at = words.index("VIEW") + 1
    at += 3 if words[at : at + 3] == ["IF", "NOT", "EXISTS"] else 0
    named = name_at(statement, tokens, at, columns=True)[0] if at < len(tokens) else None
    return None if named is None else named.name


def check_no_identifier(statement: str) -> None:
    """Raises SqlError if a statement that is no query names something by ``IDENTIFIER(...)``, which only Spark evaluates."""
    evaluated = any(before.word == "IDENTIFIER" and after.word == "(" for before, after in pairwise(tokenize(statement)))
    if evaluated and not is_query(statement):
        raise SqlError("IDENTIFIER(...) is possible only in queries.", "Write the name itself.")


def cloned(statement: str) -> Reference | None:
    """Returns the table that a ``SHALLOW CLONE`` copies; None for other statements. Raises SqlError."""
    tokens = tokenize(statement)
    if not tokens or tokens[0].word not in ("CREATE", "REPLACE"):
        return None
    for position in range(2, len(tokens)):
        if [token.word for token in tokens[position - 2 : position]] == ["SHALLOW", "CLONE"]:
            return name_at(statement, tokens, position)[0]
    return None


def reference_at(statement: str, tokens: Sequence[Token], position: int) -> Reference | None:
    """Returns the table name that begins at a token, with its position; None if the name is invalid."""
    return name_at(statement, list(tokens), position, columns=True)[0]


def listed_schema(statement: str) -> str | None:
    """Returns the schema whose tables a ``SHOW TABLES`` lists; None for other statements. Raises SqlError."""
    tokens = tokenize(statement)
    listing = [token.word for token in tokens[:3]]
    if listing[:2] != ["SHOW", "TABLES"]:
        return None
    if listing[2:] not in (["IN"], ["FROM"]) or len(tokens) < 4:
        return DEFAULT_SCHEMA
    named = reference_at(statement, tokens, 3)
    if named is None:
        raise SqlError(f"{tokens[3].text} is not a schema.")
    return named.name.name


@dataclass(frozen=True, slots=True)
class Property:
    """One of a table's, and where it is in the statement; ``value`` is None in that of UNSET."""

    name: str
    value: str | None
    start: int
    end: int


def properties(statement: str) -> Sequence[Property]:
    """Returns the lists after TBLPROPERTIES and OPTIONS, whose names may be texts or words with dots, and signs may be missing.
    Raises SqlError."""
    tokens = tokenize(statement)
    words = [token.word for token in tokens]
    found, depth = list[Property](), 0
    for at, word in enumerate(words):
        if depth == 0 and word == "AS":
            break  # a query follows
        begin = at + (3 if words[at + 1 : at + 3] == ["IF", "EXISTS"] else 1)
        begins = word in ("TBLPROPERTIES", "OPTIONS") and words[at - 1] not in ("TABLE", "EXISTS", ".")
        if depth == 0 and begins and words[begin : begin + 1] == ["("]:
            found += _listed(tokens, words, begin + 1)
        depth += (word == "(") - (word == ")")
    return found


def _listed(tokens: Sequence[Token], words: Sequence[str], start: int) -> Iterator[Property]:
    """Yields the properties of a list from a token on."""
    begin, key, parts = start, "", list[Token]()
    for at, word in enumerate([*words[start:], ")"], start):  # one that is not closed is a list, too
        text = "".join(part.text for part in parts)
        if word in (",", ")"):
            if parts or key:
                name, value = (key, text) if key else (text, None)
                yield Property(name, value, tokens[begin].start, tokens[at - 1].end + 1)
            key, parts, begin = "", [], at + 1
        elif word in ("=", "=="):
            key, parts = text, []
        else:
            if parts and not key and word != "." and not parts[-1].text.endswith("."):  # without a sign
                key, parts = text, []
            parts.append(tokens[at])
        if word == ")":
            break


def named(statement: str) -> Name:
    """Returns the name of the object that a CREATE or DROP names. Raises SqlError if there is none; InvalidValueError."""
    tokens = tokenize(statement)
    words = [token.word for token in tokens]
    at = next((at + 1 for at, word in enumerate(words) if word in _NAMED), len(tokens))
    at += 3 * (words[at : at + 3] == ["IF", "NOT", "EXISTS"]) or 2 * (words[at : at + 2] == ["IF", "EXISTS"])
    if at >= len(tokens):
        raise SqlError("The statement names nothing.")
    parts = parts_at(tokens, at)
    if words[at + 2 * len(parts) - 1 :][:1] == ["."]:
        raise SqlError("A name ends in a dot.")
    return name_of(statement, parts)


#: What precedes the name of an object.
_NAMED = ("TABLE", "VIEW", "FUNCTION", "SCHEMA", "DATABASE", "NAMESPACE")


def writes(statement: str) -> bool:
    """True if a statement changes data. Raises SqlError."""
    if is_query(statement):
        return False
    written = words_of(statement)
    if written[:1] in (["WITH"], ["FROM"]):
        return bool(_targets(statement, tokenize(statement)))
    return bool(written) and written[0] in _WRITING

"""A statement for Spark: its tokens, its tree, and what it names, reads and writes. Pure.

Names come from the syntax tree or, where sqlglot cannot parse the statement, from its tokens. The tree is
only looked at. What is executed consists of slices of the user's text and of words of ours.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.errors import InvalidValueError, SqlError
from volstream.sql.names import (
    BEFORE_LISTS,
    SESSION_CATALOG,
    Reference,
    alias_may_follow,
    by_tokens,
    clause_in,
    directory_at,
    index_after,
    is_name,
    name_at,
    name_of,
    parts_at,
)
from volstream.sql.text import tree_of
from volstream.sql.tokens import Edit, Token, only, tokenize

#: Statements that write, and so consume the streams that they read.
_WRITING = ("INSERT", "MERGE", "UPDATE", "DELETE", "CREATE", "REPLACE", "TRUNCATE")

#: Functions of the files of a volume, which Spark's registry has by other names: see
#: :attr:`SparkStatement.volume_calls`.
VOLUME_FUNCTIONS = ("file_content", "get_presigned_url")


@dataclass(frozen=True)
class VolumeCall:
    """The beginning of a call such as ``file_content(VOLUME v, path)``: ``statement[start:end]`` ends with
    the comma.

    Attributes:
        function: one of :data:`VOLUME_FUNCTIONS`.
        qualified: the volume is named with its schema.
    """

    function: str
    volume: Name
    start: int
    end: int
    qualified: bool = True


@dataclass(frozen=True, slots=True)
class Property:
    """A property of a table, and where it is in the statement; ``value`` is None in UNSET."""

    name: str
    value: str | None
    start: int
    end: int


class SparkStatement:
    """A statement. Immutable; everything is found once. Any attribute raises SqlError if the text cannot be
    split into tokens.

    Attributes:
        text: as written.
    """

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def tokens(self) -> list[Token]:
        """The tokens, without comments."""
        return tokenize(self.text)

    @cached_property
    def words(self) -> list[str]:
        """All words and signs in upper case; what is in quotes is in single ones, and so equals no
        keyword."""
        return [token.word or f"'{token.text.upper()}'" for token in self.tokens]

    def begins(self, *words: str) -> bool:
        """True if these are the first words."""
        return self.words[: len(words)] == [*words]

    def replaced(self, edits: Iterable[Edit]) -> SparkStatement:
        """Returns the statement with other text at some places, which do not overlap."""
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
        return self if text == self.text else SparkStatement(text)

    def tokens_after(self, end: int) -> list[Token]:
        """Returns the tokens that begin at a position or after it."""
        return self.tokens[index_after(self.tokens, end) :]

    def reference_at(self, position: int) -> Reference | None:
        """Returns the table name that begins at a token, or None if the token is missing or the name
        invalid."""
        return name_at(self.text, self.tokens, position, columns=True)[0] if position < len(self.tokens) else None

    @cached_property
    def tree(self) -> exp.Expr | None:
        """The tree of a query or DML. None for other statements, or if sqlglot cannot parse it."""
        return _tree(self.text)

    @property
    def is_query(self) -> bool:
        """True for what is certainly a query, which only reads, whatever words its columns and texts
        contain."""
        return isinstance(self.tree, exp.Query)

    @property
    def must_exist(self) -> bool:
        """True if all relations that the statement names must exist: a query or DML, but nothing that
        creates."""
        return not isinstance(self.tree or exp.Create(), exp.Create)

    @cached_property
    def writes(self) -> bool:
        """True if the statement changes data."""
        if self.is_query:
            return False
        if self.words[:1] in (["WITH"], ["FROM"]):
            return bool(self._targets)
        return bool(self.words) and self.words[0] in _WRITING

    @property
    def merges(self) -> bool:
        """True for MERGE, also after common table expressions."""
        before = self.words[: self._targets[0]] if self._targets else []
        while before[-1:] and before[-1] in ("INTO", "WITH", "SCHEMA", "EVOLUTION"):
            before.pop()
        return before[-1:] == ["MERGE"]

    @property
    def creates_table(self) -> bool:
        """True for CREATE TABLE and CREATE OR REPLACE TABLE."""
        return self.begins("CREATE", "TABLE") or self.begins("CREATE", "OR", "REPLACE", "TABLE")

    @property
    def is_temporary(self) -> bool:
        """True if the statement creates a temporary view or function."""
        return self.begins("CREATE") and not {"TEMPORARY", "TEMP"}.isdisjoint(self.words[1 : self._kind])

    @property
    def _kind(self) -> int:
        """The position of the word for what the statement creates, or 0."""
        return next((at for at, word in enumerate(self.words) if word in ("TABLE", "VIEW", "FUNCTION")), 0)

    @cached_property
    def references(self) -> Sequence[Reference]:
        """Possible names of relations, each ``DIRECTORY(VOLUME v)`` and ``VOLUME v USING csv``, in order,
        without common table expressions.
        """
        mentions = self._parsed()
        return tuple(by_tokens(self.text, self.tokens) if mentions is None else mentions)

    def _parsed(self) -> Sequence[Reference] | None:
        """Returns the references in a query or DML from its tree, or None if it has no tree."""
        directories, text = self._extensions()
        tree = self.tree if text == self.text else _tree(text)
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
            alias = not table.alias and _may_have_alias(table) and alias_may_follow(self.tokens, index_after(self.tokens, end))
            if directory is not None:
                mentions.append(replace(directory, takes_alias=alias))
                continue
            if len(parts) == 3 and parts[0].name.lower() == SESSION_CATALOG:
                parts = parts[1:]
            with suppress(InvalidValueError):
                name = Name.parse(".".join(self.text[part.meta["start"] : part.meta["end"] + 1] for part in parts))
                mentions.append(Reference(name, start, end, takes_alias=alias, qualified=len(parts) > 1))
        return sorted(mentions, key=lambda reference: reference.start)

    def _extensions(self) -> tuple[dict[int, Reference], str]:
        """Returns each ``DIRECTORY(VOLUME v)`` and ``VOLUME v USING csv`` by its position, and a text of the
        same length that sqlglot can parse: with a name in place of each of these, and without ``CHANGES
        FROM``.
        """
        directories: dict[int, Reference] = {}
        text = self.text
        for position, token in enumerate(self.tokens):
            directory = directory_at(self.text, self.tokens, position)
            if directory is not None:
                reference = directory[0]
                directories[reference.start] = reference
                text = f"{text[: reference.start]}`{'_' * (reference.end - reference.start - 2)}`{text[reference.end :]}"
            if self.words[position : position + 2] == ["CHANGES", "FROM"]:
                clause = clause_in(self.tokens[position:])
                if clause is not None:
                    text = text[: token.start] + " " * (clause.end - token.start) + text[clause.end :]
        return directories, text

    @cached_property
    def calls(self) -> Sequence[Reference]:
        """Possible names of called functions, in order."""
        tokens, mentions, position = self.tokens, list[Reference](), 0
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
                    name = Name.parse(self.text[first.start : last.end + 1])
                    mentions.append(Reference(name, first.start, last.end + 1, qualified=last is not first))
        return mentions

    @cached_property
    def volume_calls(self) -> Sequence[VolumeCall]:
        """The calls of functions of files, in order. Raises SqlError if a volume has no valid name, or no
        path follows."""
        tokens, words, calls = self.tokens, [token.text.lower() for token in self.tokens], []
        for position, word in enumerate(words):
            if word not in VOLUME_FUNCTIONS or words[position + 1 : position + 3] != ["(", "volume"]:
                continue
            reference, after = name_at(self.text, tokens, position + 3) if position + 3 < len(tokens) else (None, 0)
            if reference is None or words[after : after + 1] != [","]:
                raise SqlError(
                    f"{word}(VOLUME must be followed by the name of a volume, a comma and a path.",
                    f"Write for example {word}(VOLUME photos, relative_path).",
                )
            span = tokens[position].start, tokens[after].end + 1
            calls.append(VolumeCall(word, reference.name, *span, reference.qualified))
        return calls

    @cached_property
    def targets(self) -> Sequence[Reference]:
        """The tables that DML writes: several only for ``FROM q INSERT INTO a ... INSERT INTO b ...``."""
        return [found for found in map(self.reference_at, self._targets) if found is not None]

    @property
    def _targets(self) -> Sequence[int]:
        """Where the names of the tables begin that DML writes."""
        if self.is_query:
            return ()
        words, found, depth = self.words, list[int](), 0
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
            after += words[after : after + 1] == ["TABLE"] and after + 1 < len(words) and is_name(self.tokens[after + 1])
            if after < len(words) and is_name(self.tokens[after]):
                found.append(after)
        return found

    def by_names(self, named_by: Callable[[str], Name | None]) -> SparkStatement:
        """Returns the statement with names in place of paths such as ``delta.`/path```, where there is
        one."""
        edits = list[Edit]()
        for at in range(len(self.tokens) - 2):
            form, dot, path = self.tokens[at : at + 3]
            if (form.text.lower(), dot.text) == ("delta", ".") and path.token_type is TokenType.IDENTIFIER:
                name = named_by(re.sub(r"^file:(//localhost|//)?(?=/)", "", path.text, flags=re.IGNORECASE))
                edits += [] if name is None else [(form.start, path.end + 1, name.qualified)]
        return self.replaced(edits)

    @cached_property
    def temporary_view(self) -> Name | None:
        """The temporary view that the statement creates. None for other statements."""
        words, at = self.words, self._kind + 1
        if words[at - 1 : at] != ["VIEW"] or not self.is_temporary:
            return None
        at += 3 if words[at : at + 3] == ["IF", "NOT", "EXISTS"] else 0
        named = self.reference_at(at)
        return None if named is None else named.name

    def check_no_identifier(self) -> None:
        """Raises SqlError if a statement that is no query names something by ``IDENTIFIER(...)``, which only
        Spark evaluates."""
        if ("IDENTIFIER", "(") in pairwise(self.words) and not self.is_query:
            raise SqlError("IDENTIFIER(...) is possible only in queries.", "Write the name itself.")

    @property
    def cloned(self) -> Reference | None:
        """The table that a ``SHALLOW CLONE`` copies. None for other statements."""
        if self.words[:1] not in (["CREATE"], ["REPLACE"]):
            return None
        at = next((at for at in range(2, len(self.words)) if self.words[at - 2 : at] == ["SHALLOW", "CLONE"]), None)
        return None if at is None else name_at(self.text, self.tokens, at)[0]

    @property
    def listed_schema(self) -> str | None:
        """The schema whose tables a ``SHOW TABLES`` lists. None for other statements."""
        if not self.begins("SHOW", "TABLES"):
            return None
        if self.words[2:3] not in (["IN"], ["FROM"]) or len(self.tokens) < 4:
            return DEFAULT_SCHEMA
        named = self.reference_at(3)
        if named is None:
            raise SqlError(f"{self.tokens[3].text} is not a schema.")
        return named.name.name

    @cached_property
    def properties(self) -> Sequence[Property]:
        """The lists after TBLPROPERTIES and OPTIONS, whose names may be texts or words with dots, and signs
        may be missing."""
        words, found, depth = self.words, list[Property](), 0
        for at, word in enumerate(words):
            if depth == 0 and word == "AS":
                break  # a query follows
            begin = at + (3 if words[at + 1 : at + 3] == ["IF", "EXISTS"] else 1)
            begins = word in ("TBLPROPERTIES", "OPTIONS") and words[at - 1] not in ("TABLE", "EXISTS", ".")
            if depth == 0 and begins and words[begin : begin + 1] == ["("]:
                found += _listed(self.tokens, words, begin + 1)
            depth += (word == "(") - (word == ")")
        return found

    @property
    def named(self) -> Name:
        """The name of the object that a CREATE or DROP names. Raises SqlError if it is missing;
        InvalidValueError."""
        words = self.words
        at = next((at + 1 for at, word in enumerate(words) if word in _NAMED), len(words))
        at += 3 * (words[at : at + 3] == ["IF", "NOT", "EXISTS"]) or 2 * (words[at : at + 2] == ["IF", "EXISTS"])
        if at >= len(words):
            raise SqlError("The statement names nothing.")
        parts = parts_at(self.tokens, at)
        if words[at + 2 * len(parts) - 1 :][:1] == ["."]:
            raise SqlError("A name ends in a dot.")
        return name_of(self.text, parts)


#: What precedes the name of an object.
_NAMED = ("TABLE", "VIEW", "FUNCTION", "SCHEMA", "DATABASE", "NAMESPACE")


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


# Tells statements that only read, by their first word, and the functions that conditions may not call. Pure.
#
# What a statement may read is up to the engine's guard (``volstream.spark.frames``); the checks here come
# first and explain more.

#: First words of statements that only read.
_READING = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "("}

#: Spark's functions that call any Java method, which the home's engine lacks; and IDENTIFIER, which calls a
#: function or reads a relation whose name is computed.
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
    """Raises SqlError if a query or condition calls a function that can call arbitrary code, or that reads
    files."""
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

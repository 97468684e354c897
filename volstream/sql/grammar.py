"""Parses volstream's own statements: text in, value out. Pure; a statement's first words identify it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import Name, quote
from volstream.errors import SqlError
from volstream.sql.tokens import tokenize

if TYPE_CHECKING:
    from lark import Lark, Tree

# Constructs of other platforms' SQL, and volstream's equivalents. Pure.


class ForeignConstruct(NamedTuple):
    """A construct of other platforms. Texts contain ``{word}`` for what the user wrote.

    Attributes:
        pattern: matches a statement with one space between tokens and with empty texts, in any case; exactly
            one of its named groups matches: the word to show.
        remedy: what to write instead.
        words: how messages name it.
    """

    pattern: str
    remedy: str
    words: str = "{word}"


@dataclass(frozen=True)
class ForeignMatch:
    """A construct of another platform in a statement: how to name it, and what to write instead."""

    words: str
    remedy: str


#: A name, with its schema.
_NAME = r"\S+(?: \. \S+)*"

FOREIGN: Sequence[ForeignConstruct] = (
    ForeignConstruct(
        r"^(?P<word>COPY INTO)\b",
        "Load a volume's files as they come: CREATE JOB j ON VOLUME v LOAD (FORMAT 'csv') INTO TABLE t; once: INSERT INTO t "
        "SELECT * FROM VOLUME v USING csv.",
    ),
    ForeignConstruct(
        r"(\b(FROM|JOIN)|,) (?P<word>VOLUME) \S++(?: \. \S++)*+(?! (USING|FILES|OPTIONS)\b)",
        "Add USING or FILES: FROM VOLUME v USING csv, or FILES ('a.csv'). The list of its files is DIRECTORY(VOLUME v).",
        "FROM VOLUME without USING or FILES",
    ),
    ForeignConstruct(
        r"(?<!\. )\b(?P<word>READ_FILES|CLOUD_?FILES) \(|(\b(FROM|JOIN)|,) (?P<other>CLOUDFILES) \. /"
        r"|(\b(FROM|JOIN)|,) (?P<reader>READ_(CSV|JSON|NDJSON|PARQUET)(_AUTO)?) \(",
        "Read files of a volume: FROM VOLUME v USING csv FILES ('a.csv'). Load them: CREATE JOB j ON VOLUME v LOAD INTO TABLE t.",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(TEMPORARY )?(?P<word>FILE FORMAT)\b|\b(?P<other>FILE_FORMAT) =",
        "The options of files are those of a load: LOAD (FORMAT 'csv', DELIMITER ';').",
    ),
    ForeignConstruct(
        r"^(CREATE|ALTER|DROP|DESC|DESCRIBE) (OR REPLACE )?(?P<word>PIPE)\b|^SHOW (?P<other>PIPES)\b",
        "A job loads files as they arrive: CREATE JOB j ON VOLUME v LOAD INTO TABLE t ON CHANGE.",
    ),
    ForeignConstruct(r"^(?P<word>EXECUTE (TASK|JOB|PIPELINE))\b", "Write RUN JOB j."),
    ForeignConstruct(
        r"^SELECT [^()]* FROM (?P<word>'')",
        "Read files of a volume: SELECT * FROM VOLUME v USING csv FILES ('a.csv'). Make it: CREATE VOLUME v LOCATION '/folder'.",
        "FROM 'file'",
    ),
    ForeignConstruct(
        r"\b(FROM|JOIN) (?P<word>@)",
        "Read rows of a volume's files: FROM VOLUME v USING csv. The list of its files is DIRECTORY(VOLUME v).",
        "FROM @stage",
    ),
    ForeignConstruct(
        r"^(CREATE|ALTER|DROP|DESC|DESCRIBE) (OR REPLACE )?(?P<word>TASK)\b|^SHOW (?P<other>TASKS)\b",
        "A job runs a statement when its stream has data: CREATE JOB j EVERY '5m' AS INSERT INTO t SELECT * FROM s.",
    ),
    ForeignConstruct(
        r"\b(?P<word>(TASK|COPY|LOAD|PIPE_USAGE)_HISTORY) \(",
        "The batches of jobs: SELECT * FROM volstream.batches, or volstream describe job j.",
    ),
    ForeignConstruct(
        r"\b(?P<word>(APPLY CHANGES|AUTO CDC) INTO)\b|^CREATE (?P<other>FLOW)\b",
        "A job merges a stream as it changes: CREATE JOB j ON CHANGE AS MERGE INTO t USING s ON t.id = s.id ...",
    ),
    ForeignConstruct(
        r"^CREATE (OR (REFRESH|REPLACE) )?(TEMPORARY )?(?P<word>(STREAMING )?LIVE (TABLE|VIEW)|STREAMING TABLE)\b",
        "A dynamic table follows its query: CREATE DYNAMIC TABLE d REFRESH ON CHANGE AS SELECT * FROM t.",
    ),
    ForeignConstruct(
        r"^CREATE (?P<word>OR REFRESH)\b",
        "Write CREATE OR REPLACE; a dynamic table follows its query: CREATE OR REPLACE DYNAMIC TABLE d REFRESH ON CHANGE AS ...",
        "CREATE {word}",
    ),
    ForeignConstruct(
        r"\b(FROM|JOIN) (?P<word>STREAM) (\(|(?!(AS|WHERE|ON|JOIN|GROUP|ORDER|LIMIT)\b)\w)",
        "Create a stream, and read it by its name: CREATE STREAM s ON TABLE t; SELECT * FROM s.",
        "{word}(...)",
    ),
    ForeignConstruct(
        r"^SHOW CREATE (?P<word>(STORAGE )?CONNECTION|(EXTERNAL )?VOLUME|(TABLE )?STREAM|JOB|FUNCTION)\b",
        "Run volstream export, which writes objects as a pipeline's file; SHOW CREATE TABLE t shows a table.",
        "SHOW CREATE {word}",
    ),
    ForeignConstruct(
        r"^(CREATE|ALTER|DROP|DESC|DESCRIBE) (OR REPLACE )?(TEMPORARY )?(?P<word>STAGE)\b|^SHOW (?P<other>STAGES)\b",
        "A volume is a location of files: CREATE VOLUME v LOCATION 's3://bucket/prefix'.",
    ),
    ForeignConstruct(
        r"\b(?P<word>SYSTEM ?\$ ?STREAM_HAS_DATA)\b",
        "Jobs run only if their stream has data. To look: SHOW STREAMS, column has_data, or session.streams.has_data('s').",
    ),
    ForeignConstruct(
        r"\b(?P<word>METADATA ?\$ ?(ACTION|ISUPDATE|ROW_ID))\b",
        "A stream has __change_type (INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE), __commit_version and __commit_timestamp.",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\b(?P<word>APPEND_ONLY|INSERT_ONLY) =",
        "Write WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY').",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\b(?P<word>SHOW_INITIAL_ROWS) =",
        "Write WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE').",
    ),
    ForeignConstruct(
        r"\b(?P<word>AT|BEFORE) \( (TIMESTAMP|OFFSET|STATEMENT|STREAM|VERSION) = ?>",
        "Write TIMESTAMP AS OF '2026-01-01 12:00:00' after the name of the table, or VERSION AS OF 3 in a query.",
        "{word}(...)",
    ),
    ForeignConstruct(
        r"(?<!\. )\b(?P<word>TABLE_CHANGES) \(",
        "Write SELECT * FROM t CHANGES FROM VERSION 1 TO VERSION 2; a stream has the net changes since it was consumed.",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(TABLE|SCHEMA|DATABASE) (IF NOT EXISTS )?\S+( \. \S+)* (DEEP )?(?P<word>CLONE) ",
        "Copy the rows: CREATE TABLE a AS SELECT * FROM b.",
    ),
    ForeignConstruct(r"^(?P<word>UNDROP)\b", "Dropped objects are not kept; restore them from a backup: volstream restore."),
    ForeignConstruct(
        r"^USE (?P<word>WAREHOUSE|ROLE|SECONDARY ROLES)\b", "Leave it out: a home has one engine and one user.", "USE {word}"
    ),
    ForeignConstruct(
        r"^(?P<word>PUT)\b",
        "Copy files to the volume's location by any means; volstream finds them, at once with: ALTER VOLUME v REFRESH.",
    ),
    ForeignConstruct(
        r"^(?P<word>GET) @", "Read files at the volume's location; SELECT url FROM DIRECTORY(VOLUME v) has the address of each."
    ),
    ForeignConstruct(
        r"^(?P<word>REMOVE|RM) @",
        "Delete files at the volume's location by any means; volstream finds out, at once with: ALTER VOLUME v REFRESH.",
    ),
    ForeignConstruct(r"^(?P<word>LIST|LS) @", "Write SHOW VOLUME DIRECTORY v, or SELECT * FROM DIRECTORY(VOLUME v).", "{word} @"),
    ForeignConstruct(
        r"\b(FROM|JOIN|,) DIRECTORY \( @? ?(?P<word>(?!VOLUME )\w+( \. \w+)*) \)",
        "Write DIRECTORY(VOLUME {word}).",
        "DIRECTORY({word})",
    ),
    ForeignConstruct(
        r"(?<!\. )\b(?P<word>GET_PRESIGNED_URL|BUILD_STAGE_FILE_URL|BUILD_SCOPED_FILE_URL) \( (?!VOLUME )",
        "Write get_presigned_url(VOLUME v, path, seconds). DIRECTORY(VOLUME v) has the column url.",
        "{word}(@stage)",
    ),
    ForeignConstruct(
        r"^CREATE .*\b(?P<word>AUTO_REFRESH) =",
        "Leave it out: the daemon keeps directory tables up to date, by NOTIFICATION = (QUEUE_TYPE = ..., QUEUE_NAME = ...).",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\b(?P<word>ON (STAGE|DIRECTORY|EVENT TABLE))\b",
        "A stream is on files or on a table: ON VOLUME v, or ON TABLE t.",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\b(?P<word>ON VIEW)\b",
        "Create a dynamic table with the view's query, and the stream on it: ON DYNAMIC TABLE d.",
    ),
    ForeignConstruct(
        rf"^(ALTER TABLE {_NAME} SET|CREATE (OR REPLACE )?TABLE .*\)) (?P<word>DATA_RETENTION_\w+|CHANGE_TRACKING)\b",
        "They are properties: SET PROPERTIES ('data_retention_days' = '3', 'change_tracking' = 'true'), or TBLPROPERTIES.",
        "clause {word}",
    ),
    ForeignConstruct(r"^CREATE .*\b(?P<word>TARGET_LAG) =", "Write REFRESH EVERY '1m', or REFRESH ON CHANGE."),
    ForeignConstruct(
        rf"\b(FROM|JOIN|,) {_NAME} (?P<word>SAMPLE) \( \d", "Write TABLESAMPLE (10 PERCENT), or TABLESAMPLE (100 ROWS)."
    ),
    ForeignConstruct(
        r"\b(LATERAL|TABLE \() (?P<word>FLATTEN) \(",
        "Write SELECT t.*, x.col FROM t, LATERAL explode(t.items) x; for a VARIANT: variant_explode.",
    ),
    ForeignConstruct(
        rf"^ALTER (EXTERNAL )?VOLUME {_NAME} (?P<word>SET|UNSET|RENAME)\b",
        "Run volstream alter-volume, or session.volumes.alter: all options but the location can be changed.",
        "ALTER VOLUME ... {word}",
    ),
    ForeignConstruct(
        r"^CREATE (OR REPLACE )?(EXTERNAL )?VOLUME .*\b(?P<word>TBLPROPERTIES) \(",
        "Write clauses, and PROPERTIES ('ignores' = '*.tmp') for what has none: CREATE VOLUME v LOCATION '/data' CHECK = FALSE.",
        "{word} of volumes",
    ),
    ForeignConstruct(
        r"\. (?P<word>(hdfs|viewfs|abfss?|wasbs?|adl|gs|dbfs)://)",
        "Files are in folders, /path, or in object stores, s3://bucket/prefix.",
    ),
    ForeignConstruct(
        r"^SHOW \w+( \w+)? (IN|FROM) (?P<word>SCHEMA|DATABASE|ACCOUNT)\b(?! LIKE\b|$)",
        "Write the name alone, SHOW STREAMS IN public; all are shown without IN.",
        "SHOW ... IN {word}",
    ),
    ForeignConstruct(
        r"^SHOW (?!COLUMNS|PARTITIONS|FUNCTIONS|CREATE|DYNAMIC TABLE REFRESH|MATERIALIZED VIEW REFRESH).*\b(?P<word>WHERE)\b",
        "SHOW takes IN public and LIKE 'a%'; for conditions: session.sql('SHOW STREAMS').where(\"has_data = 'true'\").",
        "SHOW ... {word}",
    ),
    ForeignConstruct(
        r"^(?P<word>(BEGIN|START) (TRANSACTION|WORK)|COMMIT|ROLLBACK|SAVEPOINT)\b|^(?P<other>BEGIN)$",
        "Leave it out: each statement commits on its own. For several changes to a table in one commit, write MERGE INTO.",
        "transactions ({word})",
    ),
    ForeignConstruct(
        r"^UPDATE [^()]* SET [^()]*? (?<!DISTINCT )(?P<word>FROM)\b",
        "Write MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.a = s.a.",
        "UPDATE ... {word}",
    ),
    ForeignConstruct(
        rf"^DELETE FROM {_NAME} ((AS )?(?!WHERE )\w+ )?(?P<word>USING)\b",
        "Write MERGE INTO t USING s ON t.id = s.id WHEN MATCHED THEN DELETE.",
        "DELETE ... {word}",
    ),
    ForeignConstruct(r"\bSELECT (DISTINCT )?(?P<word>TOP) \d", "Write LIMIT 10 at the end of the query.", "SELECT {word}"),
    ForeignConstruct(r"(SELECT|,|\.) \* (?P<word>EXCLUDE)\b", "Write SELECT * EXCEPT (a, b).", "* {word}"),
)


def found_in(statement: str) -> ForeignMatch | None:
    """Finds another platform's construct in a statement, or None. Raises SqlError if it cannot be split into
    tokens."""
    text = " ".join("''" if token.token_type is TokenType.STRING else token.text for token in tokenize(statement))
    for construct in FOREIGN:
        if (match := re.search(construct.pattern, text, re.IGNORECASE)) is not None:
            typed = next(filter(None, match.groupdict().values()))
            word = re.sub(r" ?([$.]) ?", r"\1", typed)
            return ForeignMatch(construct.words.format(word=word), construct.remedy.replace("{word}", word))
    return None


def check(statement: str) -> None:
    """Raises SqlError, with what to write instead, if a statement uses a construct of another platform."""
    construct = found_in(statement)
    if construct is not None:
        raise SqlError(f"volstream has no {construct.words}.", construct.remedy)


_OWNED = re.compile(
    r"CREATE (OR REPLACE )?((STORAGE )?CONNECTION|(EXTERNAL )?VOLUME|(TABLE )?STREAM|JOB|DYNAMIC TABLE|MATERIALIZED VIEW) [^(]"
    r"|CREATE EXTERNAL TABLE .* USING KAFKA\b"
    r"|ALTER (VOLUME|STREAM|JOB|DYNAMIC TABLE|MATERIALIZED VIEW)\b"
    r"|REFRESH (VOLUME|DYNAMIC TABLE|MATERIALIZED VIEW) \S"
    r"|(RUN|PAUSE|SUSPEND|RESUME) JOB \S"
    r"|ALTER TABLE .* (SET PROPERTIES|ADD (CONSTRAINT \S+ )?PRIMARY KEY)\b"
    r"|SHOW ((STORAGE )?CONNECTIONS|(EXTERNAL )?VOLUMES|(TABLE )?STREAMS|JOBS|DYNAMIC TABLES|MATERIALIZED VIEWS)\b"
    r"|SHOW (VOLUME DIRECTORY|CREATE (TABLE|DYNAMIC TABLE|MATERIALIZED VIEW)|(DYNAMIC TABLE|MATERIALIZED VIEW) REFRESH HISTORY)\b"
    r"|(DESC|DESCRIBE|DROP) ((STORAGE )?CONNECTION|(EXTERNAL )?VOLUME|(TABLE )?STREAM|JOB|DYNAMIC TABLE|MATERIALIZED VIEW) \S"
)

#: ``CREATE FUNCTION f AS 'file.py:func'``. Spark's own statement names a Java class, without a colon.
_PYTHON_FUNCTION = re.compile(r"CREATE (OR REPLACE )?FUNCTION .*? AS (\S*|.*\.PY):\w+")


_TRUE, _FALSE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}


@dataclass(frozen=True)
class Statement:
    """One of volstream's own statements.

    Attributes:
        action: ``create``, ``alter``, ``show``, ``describe``, ``drop``, ``refresh``, ``run``.
        kind: ``connection``, ``volume``, ``stream``, ``job``, ``function``, ``dynamic``, ``external``,
            ``table``, ``directory``; after SHOW also ``create`` and ``history``.
        name: name of the object; None for SHOW of several.
        options: the statement's clauses, by lower-case name.
    """

    action: str
    kind: str
    name: Name | None = None
    or_replace: bool = False
    if_not_exists: bool = False
    if_exists: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def target(self) -> Name:
        """The name of the one object that it is about."""
        assert self.name is not None, "the grammar requires a name"
        return self.name


@dataclass(frozen=True)
class Text:
    """Part of a statement, verbatim, for Spark."""

    text: str


def owned(words: Sequence[str]) -> bool:
    """True if a statement with these words (in upper case) is volstream's."""
    text = " ".join(words)
    return bool(_OWNED.match(text) or _PYTHON_FUNCTION.match(text))


def parse(text: str) -> Statement:
    """Parses one of volstream's own statements.

    Raises:
        SqlError: invalid statement; shows line, column and caret.
    """
    return _Reader(text).statement(_parsed(text).children[0])


def _parsed(text: str) -> Tree[Any]:
    from lark.exceptions import UnexpectedInput

    try:
        return _parser().parse(text)
    except UnexpectedInput as error:
        raise _refused(text, error) from None


def in_schema(text: str, schema: str, queried: Callable[[str], str]) -> str:
    """Returns one of volstream's own statements with a schema added to unqualified names, except those of
    connections.

    Args:
        queried: does likewise for the statement or query at the end of another one.

    Raises:
        SqlError: invalid statement.
    """
    [tree] = _parsed(text).children
    kind = str(tree.data).partition("_")[2]
    objects = [str(node) for node in tree.children if getattr(node, "type", "") == "OBJECT"]
    named = tree.data not in ("show", "show_history") and "connection" not in (kind, *map(_kind, objects))
    edits: list[tuple[int, int, str]] = []
    for child in tree.iter_subtrees():
        if child.data != "name" or len(child.children) > 1:
            continue
        of_connection = any(child is part for used in tree.find_data("using_connection") for part in used.children)
        if named and not of_connection:
            edits.append((child.meta.start_pos, child.meta.start_pos, f"{quote(schema)}."))
    for query in tree.find_data("as_statement"):
        start = query.meta.start_pos + len("AS")
        edits.append((start, query.meta.end_pos, f" {queried(text[start : query.meta.end_pos]).strip()}"))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


@functools.cache
def _parser() -> Lark:
    from lark import Lark

    grammar = Path(__file__).with_name("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar, parser="lalr", propagate_positions=True, maybe_placeholders=False)


def keywords() -> Set[str]:
    """Returns the words of volstream's own statements."""
    from lark.lexer import PatternStr

    patterns = [terminal.pattern for terminal in _parser().terminals]
    return {pattern.value.upper() for pattern in patterns if isinstance(pattern, PatternStr) and pattern.value.isidentifier()}


def _refused(text: str, error: Any) -> SqlError:
    unexpected = str(getattr(error, "token", "") or getattr(error, "char", ""))
    line, column = (error.line, error.column) if unexpected else _end(text)
    lines = text.splitlines() or [""]
    said = f"unexpected {unexpected!r}" if unexpected else "the statement is incomplete"
    wanted = sorted({_wanted(name) for name in getattr(error, "accepts", None) or error.__dict__.get("allowed") or ()})
    expected = f"; expected {', '.join(wanted)}" if 0 < len(wanted) <= 8 else ""
    caret = " " * (column - 1) + "^"
    return SqlError(f"Line {line}, column {column}: {said}{expected}.\n  {lines[line - 1]}\n  {caret}")


def _end(text: str) -> tuple[int, int]:
    lines = text.rstrip().splitlines() or [""]
    return len(lines), len(lines[-1]) + 1


def _wanted(terminal: str) -> str:
    names = {
        "WORD": "a name",
        "BACKQUOTED": "a name",
        "STRING": "a quoted string",
        "NUMBER": "a number",
        "LPAR": "(",
        "RPAR": ")",
        "EQUAL": "=",
        "COMMA": ",",
        "DOT": ".",
        "$END": "the end",
        "SOURCE_KIND": "VOLUME or TABLE",
        "CONNECTION_OPTION": "REGION, ROLE_ARN, ENDPOINT, CREDENTIALS or COMMENT",
        "LOAD_OPTION": "an option such as FORMAT",
        "OPERATOR": "an expression",
    }
    return names.get(terminal, terminal)


class _Reader:
    """Walks a parse tree; the methods have the names of the grammar's rules that they convert."""

    def __init__(self, text: str) -> None:
        self._text = text

    def statement(self, tree: Any) -> Statement:
        """Converts the grammar's rule ``tree`` to a statement."""
        action, _, kind = str(tree.data).partition("_")
        children: list[Any] = list(tree.children)
        flags = {str(child.data): True for child in children if _is(child, "or_replace", "if_not_exists", "if_exists")}
        names = [self._name(child) for child in children if _is(child, "name")]
        name = names[0] if names else None
        options: dict[str, Any] = {}
        for child in children:
            if _is(child, "name", *flags):
                continue
            if hasattr(child, "data"):
                for clause, value in self._clause(child).items():  # there may be several properties
                    options[clause] = options[clause] | value if clause == "properties" and clause in options else value
            elif child.type in ("SOURCE_KIND", "OBJECT", "OBJECTS", "NUMBER", "PAUSE", "RESUME"):
                options[child.type.lower()] = str(child)
        if len(names) > 1:
            options["source"] = names[1]
        if "object" in options or "objects" in options:
            kind = _kind(options.pop("object", None) or options.pop("objects"))
        return Statement(action, kind, name, options=options, **flags)

    def _clause(self, tree: Tree[Any]) -> dict[str, Any]:
        rule, children = str(tree.data), tree.children
        match rule:
            case "location" | "comment" | "function" | "schedule" | "every" | "max_removals":
                return {rule: self._string(children[0])}
            case "string" | "word":
                return {rule: self._string(tree)}
            case "using_connection" | "on_stream" | "on_volume" | "into":
                return {rule: self._name(children[0])}
            case "connection_option":
                return {str(children[0]).lower(): self._string(children[1])}
            case "notification":
                quoted = [pair for pair in children if self._written(pair)[0] in ("'", '"')]
                words = self._properties([pair for pair in children if pair not in quoted])
                properties = {"queue_properties": self._properties(quoted)} if quoted else {}
                return {rule: {word.lower(): value for word, value in words.items()}, **properties}
            case "load":
                return {rule: {str(child.children[0]).lower(): self._string(child.children[1]) for child in children}}
            case "properties" | "options":
                return {rule: self._properties(children)}
            case "property":
                return {"properties": self._properties([tree])}
            case "directory" | "recursive" | "check":
                return {rule: self._boolean(children[0], rule)}
            case "patterns":
                return {rule: [self._string(child) for child in children]}
            case "returns" | "where":
                inside = self._written(tree.children[0])
                return {rule: inside[1:-1].strip()}
            case "timestamp_as_of":
                return {rule: Text(self._written(children[0]))}
            case "as_statement":
                return {rule: Text(str(children[0])[2:].strip())}
            case "expression":
                return {rule: Text(self._written(tree))}
            case "interval":
                return {"every": f"{self._string(tree)}{str(children[1])[0].lower()}"}
            case "primary_key":
                return {rule: [self._name(child).name for child in children if _is(child, "part")]}
            case "on_change" | "accept_removals":
                return {rule: True}
            case _:
                raise AssertionError(rule)

    def _properties(self, pairs: Sequence[Tree[Any]]) -> dict[str, str]:
        return {self._string(pair.children[0]): self._string(pair.children[1]) for pair in pairs}

    def _boolean(self, tree: Tree[Any], what: str) -> bool:
        word = self._string(tree).lower()
        if word not in _TRUE | _FALSE:
            raise SqlError(f"{what.upper()} cannot be {word!r}.", "Write TRUE or FALSE.")
        return word in _TRUE

    def _name(self, tree: Tree[Any]) -> Name:
        return Name.parse(self._written(tree))

    def _string(self, tree: Tree[Any]) -> str:
        text = str(tree.children[0])
        if text[:1] not in ("'", '"'):
            return text
        quote = text[0]
        return _ESCAPE.sub(_unescaped, text[1:-1].replace(quote * 2, quote))

    def _written(self, tree: Tree[Any]) -> str:
        return self._text[tree.meta.start_pos : tree.meta.end_pos]


#: As Spark reads them: a character by its code, a control character, or any other by itself.
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_CONTROLS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}


def _unescaped(match: re.Match[str]) -> str:
    said = match[1]
    if len(said) == 1:
        return _CONTROLS.get(said, said)
    return chr(int(said[1:], 16) if said[0] in "uU" else int(said, 8))


def _is(child: Any, *rules: str) -> bool:
    return hasattr(child, "data") and str(child.data) in rules


def _kind(words: str) -> str:
    first, last = words.lower().split()[0], words.lower().split()[-1].rstrip("s")
    return "dynamic" if first in ("dynamic", "materialized") else last

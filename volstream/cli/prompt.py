"""The prompt of ``sql`` on a terminal: multi-line statements, a history, completion. What does not belong here: running
statements and showing rows (``cli.sql``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory
from sqlglot.tokenizer_core import TokenType

from volstream.base.model.names import Name
from volstream.cli.output import Output
from volstream.errors import SqlError, VolstreamError
from volstream.sql import grammar
from volstream.sql.tokens import split, tokenize
from volstream.tables.delta import places

if TYPE_CHECKING:
    from volstream.api.session import Session

#: Keywords that :func:`grammar.keywords` lacks: the most common ones of Spark's statements, and the plurals of SHOW.
_OTHERS = tuple(
    """
    AND ASC BETWEEN BY CASE CAST CHANGES CONNECTIONS DELETE DETAIL DISTINCT ELSE EMPTY END EXPLAIN EXTENDED FALSE FULL
    GROUP HAVING INNER INSERT IS JOBS JOIN LEFT LIMIT MATCHED MERGE NULL OPTIMIZE ORDER OUTER OVERWRITE PARTITIONED
    PAUSE RIGHT SCHEMA SCHEMAS SELECT STREAMS TABLES TBLPROPERTIES THEN TRUE TRUNCATE UNION UPDATE VACUUM VALUES VIEW
    VOLUMES WHEN
    """.split()  # noqa: SIM905  # a list of many quoted words is not the clearer form
)

#: After these a name follows; names are suggested before a letter is typed.
_BEFORE_NAME = {
    "FROM",
    "JOIN",
    "INTO",
    "OVERWRITE",
    "TABLE",
    "UPDATE",
    "USING",
    "STREAM",
    "VOLUME",
    "JOB",
    "CONNECTION",
    "DESC",
    "DESCRIBE",
    "OPTIMIZE",
    "VACUUM",
}

_ENDS = ("exit", "quit")
_WORD = re.compile(r"[\w.`]*\Z")


@cache
def _keywords() -> Sequence[str]:
    return sorted({*_OTHERS, *grammar.keywords()})


def run_prompt(session: Session, output: Output, run: Callable[[str], None]) -> None:
    """Prompts for statements and runs them, until Ctrl-D, ``exit`` or ``quit``. Reports a failed statement and continues.

    Args:
        run: runs one statement and shows its rows.
    """
    prompt: PromptSession[str] = PromptSession(
        history=FileHistory(str(_history(session.home.settings.home))),
        multiline=Condition(lambda: not is_complete(prompt.default_buffer.text)),
        prompt_continuation=lambda width, _number, wraps: " " * width if wraps else "...> ".rjust(width),
        # Objects may be in a bucket: listing them must not delay typing.
        complete_in_thread=True,
    )
    output.message("Statements end with a semicolon. Ctrl-C clears the line or stops a statement; Ctrl-D or exit ends.")
    while True:
        try:
            # A new completer for each prompt: the previous statement may have created or dropped objects.
            text = prompt.prompt("volstream> ", completer=SqlCompleter(lambda: object_names(session)))
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if is_end(text):
            return
        try:
            for statement in split(text):
                run(statement)
        except VolstreamError as error:
            output.error(error)
        except KeyboardInterrupt:
            output.message("Interrupted.")


def is_complete(text: str) -> bool:
    """Returns whether Enter runs ``text``: it ends with a semicolon outside strings and comments, is empty, or ends the
    prompt."""
    try:
        tokens = tokenize(text)
    except SqlError:  # an unterminated string or comment
        return False
    return not tokens or tokens[-1].token_type is TokenType.SEMICOLON or is_end(text)


def is_end(text: str) -> bool:
    """Returns whether ``text`` ends the prompt."""
    return text.strip().rstrip(";").strip().lower() in _ENDS


def suggestions(before: str, objects: Callable[[], Iterable[str]]) -> tuple[str, Sequence[str]]:
    """Returns the word that is being typed, and its possible completions.

    Args:
        before: the text before the cursor.
        objects: returns names as SQL accepts them; called only if a name may follow.
    """
    match = _WORD.search(before)
    word = match[0] if match else ""
    start = len(before) - len(word)
    try:
        tokens = tokenize(f"{before[:start]}x")
    except SqlError:  # inside a string
        return word, []
    if not tokens or tokens[-1].start != start:  # inside a comment
        return word, []
    due = len(tokens) > 1 and tokens[-2].text.upper() in _BEFORE_NAME
    if not word and not due:
        return word, []
    typed = word.lower()
    names = [name for name in objects() if _begins(name, typed)]
    keywords = [] if due and not word else [keyword for keyword in _keywords() if keyword.lower().startswith(typed)]
    return word, [*names, *keywords] if due else [*keywords, *names]


class SqlCompleter(Completer):
    """Completes keywords and names; the names are loaded once.

    Args:
        objects: returns names as SQL accepts them; may raise VolstreamError and OSError.
    """

    def __init__(self, objects: Callable[[], Iterable[str]]) -> None:
        self._objects = objects
        self._found: Sequence[str] | None = None

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002  # theirs
        word, completions = suggestions(document.text_before_cursor, self._known)
        for text in completions:
            yield Completion(text, start_position=-len(word))

    def _known(self) -> Sequence[str]:
        if self._found is None:
            self._found = []
            # An error here would be drawn over the input; the statement itself will report it.
            with suppress(VolstreamError, OSError):
                self._found = sorted(set(self._objects()))
        return self._found


def object_names(session: Session) -> Sequence[str]:
    """Returns names of tables and of the catalog's objects, as SQL accepts them. Does not use Spark."""
    tables = f"{session.home.warehouse}/tables"
    names = [Name(schema, table) for schema in places.inside(tables) for table in places.inside(f"{tables}/{schema}")]
    for collection in (session.streams, session.volumes, session.jobs, session.connections):
        names += [definition.name for definition in collection.list()]
    return [str(name) for name in names]


def _begins(name: str, typed: str) -> bool:
    """Returns whether a name begins with the typed text, with or without its schema and backticks."""
    bare = name.replace("`", "")
    return any(part.startswith(typed.replace("`", "")) for part in (bare, bare.partition(".")[2]))


def _history(home: Path) -> Path:
    """Returns the history file, readable only by its owner, because statements can contain sensitive names."""
    from volstream.base.privacy import make_directory

    make_directory(home)
    file = home / "sql_history"
    file.touch(mode=0o600)
    return file

"""The prompt of ``volstream sql``: when a statement is complete, what is completed, and a session without Spark."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from volstream.api.objects.sql import rows
from volstream.api.session import Session
from volstream.base import config
from volstream.base.definitions import QueueType
from volstream.cli.output import Output
from volstream.cli.prompt import SqlCompleter, is_complete, is_end, object_names, run_prompt, suggestions
from volstream.errors import CatalogError

NAMES = ["orders", "sales.orders", "`two words`", "photos"]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with Session(config.load(tmp_path / "home")) as session:
        yield session


@pytest.mark.parametrize(
    "text",
    ["SELECT 1;", "SELECT 1 ; ", "SELECT\n1;", "SHOW STREAMS;", "SELECT 1; -- all", "", "  ", "-- nothing", "exit", "QUIT"],
)
def test_enter_runs_a_complete_statement_or_an_empty_line(text: str) -> None:
    assert is_complete(text)


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "SELECT ';'", "SELECT ';", "SELECT 1 -- ;", "SELECT 1 /* ;", "SELECT `;", "SHOW STREAMS", "SELECT 1; SELECT 2"],
)
def test_enter_continues_an_incomplete_statement_on_a_new_line(text: str) -> None:
    assert not is_complete(text)


@pytest.mark.parametrize(("text", "ends"), [("exit", True), ("Quit;", True), ("exit 1", False), ("SELECT 'exit';", False)])
def test_exit_and_quit_end_the_prompt(text: str, ends: bool) -> None:
    assert is_end(text) is ends


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("SEL", ["SELECT"]),
        ("SELECT 1 FROM ord", ["orders", "sales.orders", "ORDER"]),
        ("SELECT ord", ["ORDER", "orders", "sales.orders"]),
        ("SELECT 1 FROM sales.", ["sales.orders"]),
        ("SELECT 1 FROM ", NAMES),
        ("SELECT 1 FROM tw", ["`two words`"]),
        ("SELECT 1 FROM `tw", ["`two words`"]),
        ("DROP STREAM ", NAMES),
        ("SELECT ", []),
        ("", []),
        ("SELECT 'ord", []),
        ("SELECT x -- ord", []),
    ],
)
def test_keywords_and_names_are_completed_where_the_grammar_allows_them(before: str, expected: list[str]) -> None:
    assert list(suggestions(before, lambda: NAMES)[1]) == expected


def test_tables_and_catalog_objects_are_completed_as_sql_identifiers(session: Session, tmp_path: Path) -> None:
    for table in ("public/orders", "sales/two words"):
        (tmp_path / "home" / "warehouse" / "tables" / table).mkdir(parents=True)
    session.volumes.create("photos", str(tmp_path), ignores=["home/**"], queue_type=QueueType.NONE)
    session.streams.create("changes", volume="photos")
    assert set(object_names(session)) == {"orders", "sales.`two words`", "photos", "changes"}


def test_keywords_are_completed_even_if_the_catalog_does_not_answer() -> None:
    def broken() -> list[str]:
        raise CatalogError("gone")

    found = SqlCompleter(broken).get_completions(Document("SELECT 1 FROM o"), CompleteEvent())
    assert [one.text for one in found] == ["OF", "ON", "OPTIMIZE", "OPTIONS", "OR", "ORDER", "OUTER", "OVERWRITE"]


def converse(session: Session, typed: str) -> None:
    """Types at a prompt whose statements need no Spark."""
    output = Output(as_json=False)

    def run(statement: str) -> None:
        if "stop" in statement:
            raise KeyboardInterrupt
        columns, found = rows(session, statement)
        output.table(list(found), columns, "No rows.")

    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(typed)
        run_prompt(session, output, run)


def test_the_prompt_continues_after_errors_and_interruptions(
    session: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session.volumes.create("photos", str(tmp_path), ignores=["home/**"], queue_type=QueueType.NONE)
    session.streams.create("changes", volume="photos")
    cleared, stopped, ctrl_d = "SELECT never \x03", "DROP STREAM stop;\r", "\x04"
    converse(session, f"DESC STREAM nosuch;\r{cleared}{stopped}SHOW\rSTREAMS\r;\r{ctrl_d}")
    said = capsys.readouterr()
    assert "There is no stream nosuch" in said.err
    assert "Interrupted." in said.err
    assert "never" not in said.err
    assert "changes" in said.out


@pytest.mark.parametrize("end", ["exit\r", "quit;\r"])
def test_a_word_ends_the_prompt_and_the_history_is_readable_by_its_owner_only(session: Session, tmp_path: Path, end: str) -> None:
    converse(session, f"SHOW STREAMS;\r{end}")
    file = tmp_path / "home" / "sql_history"
    assert "+SHOW STREAMS;" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

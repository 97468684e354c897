"""Where ``volstream sql`` reads its statements from; no Spark needed."""

from __future__ import annotations

import json
import os
import pty
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest

from volstream.cli.main import run


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Standard input is a terminal."""
    master, slave = pty.openpty()
    with open(slave, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield
    os.close(master)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("options", [["--format", "json"], []])
def test_there_is_no_prompt_for_json_or_without_a_terminal_on_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run(["sql", "--home", str(tmp_path), *options]) == 2
    assert "Give a statement" in capsys.readouterr().err


@pytest.fixture
def home(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """A home that was made."""
    assert run(["init", "--home", str(tmp_path)]) == 0
    capsys.readouterr()
    return str(tmp_path)


@pytest.mark.parametrize("arguments", [[], ["-"]])
def test_statements_are_read_from_standard_input(
    home: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("SHOW STREAMS; SHOW JOBS"))
    assert run(["sql", "--home", home, *arguments]) == 0
    assert capsys.readouterr().err == "No rows.\nNo rows.\n"


@pytest.mark.parametrize(
    ("script", "code", "document"),
    [
        ("SHOW STREAMS", 0, []),
        ("SHOW STREAMS; SHOW JOBS", 0, [[], []]),
        ("SHOW STREAMS; DROP STREAM s; SHOW JOBS", 3, [[]]),
        ("DROP STREAM s; SHOW JOBS", 3, []),
    ],
)
def test_json_output_is_one_document_for_any_number_of_statements(
    home: str, capsys: pytest.CaptureFixture[str], script: str, code: int, document: object
) -> None:
    assert run(["sql", "--home", home, "--format", "json", script]) == code
    assert json.loads(capsys.readouterr().out) == document


def test_the_statement_of_a_script_that_failed_is_named(home: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.sql"
    script.write_text("SHOW STREAMS;\n\nDROP STREAM s;\nSHOW JOBS;\n")
    assert run(["sql", "--home", home, "-f", str(script)]) == 3
    assert "Statement 2 of 3, at line 3:" in capsys.readouterr().err


def test_a_statement_may_begin_with_a_comment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["--home", str(tmp_path / "home"), "sql", "-- only a comment"]) != 0
    assert "The input has no statement." in capsys.readouterr().err

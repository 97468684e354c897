"""``sql --format csv``."""

from __future__ import annotations

import csv
import sys

import pytest

from tests.commands import Shell


def test_rows_are_written_as_csv_with_a_head(shell: Shell) -> None:
    shell.ok("alter-volume", "v", "--comment", 'a, "b"')
    head, row = csv.reader(shell.ok("sql", "--format", "csv", "SHOW VOLUMES").splitlines())
    assert head == ["name", "location", "queue_type", "virtual_cluster", "recursive", "comment", "created_on"]
    shown = dict(zip(head, row, strict=True))
    assert (shown["name"], shown["recursive"], shown["comment"]) == ("v", "true", 'a, "b"')
    code, _, said = shell("sql", "--format", "csv", "SHOW VOLUMES; SHOW JOBS")
    assert (code, "A csv has the rows of one statement." in said) == (3, True)


def test_empty_text_is_quoted_and_null_is_not(shell: Shell) -> None:
    shown = "SHOW VOLUMES"
    assert shell.ok("sql", "--format", "csv", shown).splitlines()[1].split(",")[5] == ""
    shell.ok("alter-volume", "v", "--comment", "")
    assert shell.ok("sql", "--format", "csv", shown).splitlines()[1].split(",")[5] == '""'


@pytest.mark.parametrize(("terminal", "shown"), [(True, r"a\x1b[31mb"), (False, "a\x1b[31mb")])
def test_a_terminal_gets_no_control_characters_of_values(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, terminal: bool, shown: str
) -> None:
    shell.ok("alter-volume", "v", "--comment", "a\x1b[31mb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    assert shown in shell.ok("sql", "--format", "csv", "SHOW VOLUMES")

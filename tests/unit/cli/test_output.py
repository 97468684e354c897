"""The layout of results for people."""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from rich.console import Console

from volstream.base import log
from volstream.cli.output import Output, arranged, done_of
from volstream.errors import InvalidValueError


def shown(row: dict[str, object], width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(arranged([row, row], list(row), width), crop=False, highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_files_that_a_condition_excludes_are_not_called_done() -> None:
    assert done_of({"done": 2, "files": 3, "where": None}) == "2 of 3"
    assert done_of({"done": 3, "files": 3, "where": "size < 9"}) == "3 of 3 (or excluded)"
    assert done_of({"done": None, "files": None, "where": "size < 9"}) is None


def test_a_table_fits_the_terminal_with_long_cells_folded() -> None:
    lines = shown({"id": 1, "text": "word " * 50}, 40)
    assert max(map(len, lines)) <= 40
    assert sum(line.count("word") for line in lines) == 100


def test_a_table_with_too_many_columns_is_shown_row_by_row_and_omits_none() -> None:
    row = {f"column_{number}": f"value_{number}" for number in range(30)}
    lines = shown(dict(row), 80)
    assert [line.split() for line in lines if line.startswith("column_")] == [[*pair] for pair in row.items()] * 2
    assert [line for line in lines if line.startswith("Row")] == ["Row 1", "Row 2"]


def test_a_long_binary_value_is_shown_by_its_size() -> None:
    text = "\n".join(shown({"short": b"ab", "picture": bytes(65), "of_spark": bytearray(70)}, 80))
    assert "X'6162'" in text
    assert "(65 bytes)" in text
    assert "(70 bytes)" in text
    assert "x00" not in text


#: Colours and a title for the terminal (C0), the same in one character (C1), text that is shown backwards, an undecodable byte.
NASTY = "a\x1b[31m\x9b2J\u202egpj.exe\udcff\r\bü"


def obeyed(text: str) -> list[str]:
    return [character for character in text if not (character.isprintable() or character == "\n")]


@pytest.mark.parametrize("as_json", [False, True])
def test_control_characters_in_output_are_escaped(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json)
    output.message(f"{NASTY}\nsecond line")
    output.error(InvalidValueError(NASTY, NASTY))
    output.result({"name": NASTY}, NASTY)
    output.details({"name": NASTY, "document": {NASTY: NASTY}}, ["document"])
    output.table([{NASTY: NASTY}], [NASTY], "")
    said = capsys.readouterr()
    assert obeyed(said.out + said.err) == []
    assert "\nsecond line\n" in said.err
    assert "ü" in said.out


def test_json_preserves_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=True).result([NASTY, "\U000e0001"], "")
    assert json.loads(capsys.readouterr().out) == [NASTY, "\U000e0001"]


@pytest.fixture
def as_before() -> Iterator[None]:
    """Sends logs to standard error again, after the test's own capture has ended."""
    yield
    log.configure("debug")


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.usefixtures("as_before")
def test_control_characters_in_logs_are_escaped(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("debug", json=as_json)
    log.get("test").info("seen", path=NASTY, paths=[NASTY])
    logging.getLogger("of.others").warning("seen %s", NASTY)
    assert obeyed(capsys.readouterr().err) == []


@pytest.mark.parametrize("moment", [datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_a_time_the_local_zone_cannot_represent_is_still_shown(
    moment: datetime, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TZ", "UTC-9" if moment.year > 1 else "UTC+9")
    time.tzset()
    try:
        Output(as_json=False).table([{"at": moment}], ["at"], "")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert f"{moment:%m-%d}" in capsys.readouterr().out

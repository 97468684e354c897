"""How results are arranged for people."""

from __future__ import annotations

import io

from rich.console import Console

from volstream.cli.output import arranged


def shown(row: dict[str, object], width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(arranged([row, row], list(row), width), crop=False, highlight=False, markup=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_table_fits_the_terminal_with_long_cells_folded() -> None:
    lines = shown({"id": 1, "text": "word " * 50}, 40)
    assert max(map(len, lines)) <= 40
    assert sum(line.count("word") for line in lines) == 100


def test_a_table_of_too_many_columns_is_shown_row_by_row_and_leaves_none_out() -> None:
    row = {f"column_{number}": f"value_{number}" for number in range(30)}
    lines = shown(dict(row), 80)
    assert [line.split() for line in lines if line.startswith("column_")] == [[*pair] for pair in row.items()] * 2
    assert [line for line in lines if line.startswith("Row")] == ["Row 1", "Row 2"]

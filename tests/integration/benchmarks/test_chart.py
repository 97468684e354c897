from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.chart import draw, label_of
from benchmarks.report import BASE, Figures


@pytest.mark.parametrize(
    ("seconds", "wrong", "expected"),
    [
        (0.0144, 0, "0.014 s"),
        (0.27, 0, "0.27 s"),
        (3.44, 0, "3.4 s"),
        (32.6, 0, "33 s"),
        (1234.0, 0, "1,234 s"),
        (5.5, 10, "5.5 s, 10 rows wrong"),
    ],
)
def test_a_label_has_two_digits_and_names_what_was_wrong(seconds: float, wrong: int, expected: str) -> None:
    assert label_of({"median": seconds, "wrong": wrong}) == expected


def test_the_chart_is_an_image(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figures = Figures()
    figures.note("all new", 10, BASE, 0.0001)
    figures.note("all new", 10, "volstream", 400.0, wrong=3)
    figures.note("a scenario of a very long name, which needs all of the room that there is", 1000, "another", 1.5)
    draw(figures.document(), tmp_path / "out" / "chart.png")
    assert (tmp_path / "out" / "chart.png").read_bytes().startswith(b"\x89PNG")

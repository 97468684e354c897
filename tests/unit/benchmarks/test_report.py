from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.report import BASE, Figures, write


@pytest.fixture
def figures() -> Figures:
    figures = Figures()
    for base, own in ((1.0, 4.0), (2.0, 5.0), (9.0, 3.0)):
        figures.note("all new", 10, BASE, base)
        figures.note("all new", 10, "volstream", own, {"refresh": own / 2}, wrong=0)
    figures.note("live", 10, "volstream", 1.5)
    return figures


def test_ratios_compare_the_medians_of_the_same_scenario(figures: Figures) -> None:
    found = {(one.scenario, one.contender): figures.ratio(one) for one in figures.all()}
    assert found == {("all new", BASE): 1.0, ("all new", "volstream"): 2.0, ("live", "volstream"): None}


def test_the_document_has_every_round_and_can_be_read_back(figures: Figures, tmp_path: Path) -> None:
    write(figures, tmp_path / "out" / "results.json")
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    own = next(one for one in document["figures"] if one["contender"] == "volstream")
    assert (own["seconds"], own["parts"], own["median"], own["ratio"]) == (
        [4.0, 5.0, 3.0],
        {"refresh": [2.0, 2.5, 1.5]},
        4.0,
        2.0,
    )


def test_the_table_shows_medians_and_parts(figures: Figures) -> None:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(figures.table())
    assert "refresh 2.00" in shown.get()

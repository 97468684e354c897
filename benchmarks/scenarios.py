"""The measurements: the same steps for every contender, each followed by a check of its rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import files, raw
from benchmarks.contenders import Contender
from benchmarks.files import Tree
from benchmarks.report import Figures

#: Of bursts.
OVERWRITTEN = "overwritten at once"

ALL_NEW, UNCHANGED, CHANGES, SLOW = "all new", "nothing changed", "130 changes", "all new, 5 ms a file"

_NEW, _OVERWRITTEN, _DELETED = 100, 20, 10


class WrongRowsError(Exception):
    """A contender that follows changes has wrong rows, so that its time is meaningless."""


def files_round(tree: Tree, count: int, contenders: Sequence[Contender], figures: Figures) -> None:
    """Runs one round over ``count`` files: all new; nothing changed; some added, overwritten and deleted."""
    tree.make(count)
    for contender in contenders:
        contender.begin(tree.folder)
    for scenario in (ALL_NEW, UNCHANGED, CHANGES):
        if scenario == CHANGES:
            tree.change(new=_NEW, overwritten=_OVERWRITTEN, deleted=_DELETED)
        for contender in contenders:
            measure(scenario, tree.folder, count, contender, figures)
        if scenario == UNCHANGED:
            started = time.perf_counter()
            for _ in raw.listing(tree.folder):
                pass
            figures.note(scenario, count, "listing alone", time.perf_counter() - started)


def burst_round(tree: Tree, count: int, contenders: Sequence[Contender], figures: Figures) -> None:
    """Runs one round of files that are all new, and then all overwritten at once: the same work, with rows to replace."""
    tree.make(count)
    for contender in contenders:
        contender.begin(tree.folder)
        measure(ALL_NEW, tree.folder, count, contender, figures)
    tree.change(new=0, overwritten=count, deleted=0)
    for contender in contenders:
        measure(OVERWRITTEN, tree.folder, count, contender, figures)


def slow_round(tree: Tree, count: int, contenders: Sequence[Contender], figures: Figures) -> None:
    """Runs one round with the slow function."""
    tree.make(count)
    for contender in contenders:
        contender.begin(tree.folder, slow=True)
        measure(SLOW, tree.folder, count, contender, figures)


def measure(scenario: str, folder: Path, count: int, contender: Contender, figures: Figures) -> None:
    """Measures one update of one contender."""
    started = time.perf_counter()
    parts = contender.update()
    seconds = time.perf_counter() - started
    wrong = files.wrong_rows(contender.rows(), files.truth(folder))
    if wrong and contender.follows_changes:
        raise WrongRowsError(f"{contender.name}, {scenario}, {count} files: {wrong} rows are wrong.")
    figures.note(scenario, count, contender.name, seconds, parts, wrong)

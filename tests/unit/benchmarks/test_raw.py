from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import raw
from benchmarks.files import Tree, truth


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path / "files")
    tree.make(20)
    return tree


def test_the_loop_processes_everything_once(tree: Tree, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    assert raw.update(tree.folder, results) == 20
    assert raw.rows(results) == truth(tree.folder)
    assert raw.update(tree.folder, results) == 0


def test_the_loop_follows_new_overwritten_and_deleted_files(tree: Tree, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    raw.update(tree.folder, results)
    tree.change(new=3, overwritten=2, deleted=4)
    assert raw.update(tree.folder, results) == 5
    assert raw.rows(results) == truth(tree.folder)


def test_deletes_alone_are_followed(tree: Tree, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    raw.update(tree.folder, results)
    tree.change(new=0, overwritten=0, deleted=1)
    assert raw.update(tree.folder, results) == 0
    assert raw.rows(results) == truth(tree.folder)

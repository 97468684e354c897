from __future__ import annotations

from pathlib import Path

from benchmarks.files import Tree, truth, wrong_rows
from benchmarks.functions import Summary, summary_of


def test_the_same_seed_makes_the_same_files(tmp_path: Path) -> None:
    trees = [Tree(tmp_path / name) for name in ("one", "other")]
    for tree in trees:
        tree.make(30)
        tree.change(new=5, overwritten=3, deleted=2)
    assert truth(trees[0].folder) == truth(trees[1].folder)


def test_files_are_nested_three_deep_and_have_the_requested_sizes(tmp_path: Path) -> None:
    Tree(tmp_path / "files").make(50)
    files = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    assert len(files) == 50
    assert {len(path.relative_to(tmp_path / "files").parts) for path in files} == {4}
    assert all(1 << 10 <= path.stat().st_size <= 20 << 10 for path in files)


def test_a_change_adds_overwrites_and_deletes_the_requested_numbers(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "files")
    tree.make(20)
    before = truth(tree.folder)
    tree.change(new=4, overwritten=3, deleted=2)
    after = truth(tree.folder)
    assert len(after.keys() - before.keys()) == 4
    assert len(before.keys() - after.keys()) == 2
    assert sum(before[path] != after[path] for path in before.keys() & after.keys()) == 3


def test_an_overwritten_file_has_a_new_time(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "files")
    tree.make(1)
    (path,) = (tmp_path / "files" / name for name in truth(tree.folder))
    before = path.stat().st_mtime_ns
    tree.change(new=0, overwritten=1, deleted=0)
    assert path.stat().st_mtime_ns != before


def test_a_summary_covers_the_bytes() -> None:
    found = summary_of(b"two words\nand three more")
    assert (found.words, found.first_line) == (5, "two words")


def test_missing_surplus_and_different_rows_are_detected() -> None:
    one, other = Summary("a", 1, ""), Summary("b", 1, "")
    assert wrong_rows({"x": one, "y": one}, {"x": one, "y": one}) == 0
    assert wrong_rows({"same": one, "surplus": one, "other": one}, {"same": one, "missing": one, "other": other}) == 3

"""Which paths belong to a volume."""

from __future__ import annotations

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from volstream.base.model.paths import Selection


@pytest.mark.parametrize("path", [".hidden", "a/.hidden", "a~", "a.tmp", "x/b.part", "b.crdownload", ".git/a", "a/.b/c"])
def test_unfinished_and_hidden_names_are_ignored_by_default(path: str) -> None:
    assert not Selection().accepts(path)


@pytest.mark.parametrize("path", ["a", "a/b.png", "-rf", "a.tmp.png", "ü", "new\nline", "tmp", "a/b/c/d"])
def test_other_names_are_selected_by_default(path: str) -> None:
    assert Selection().accepts(path)


@pytest.mark.parametrize(
    ("glob", "path", "expected"),
    [
        ("*.png", "a.png", True),
        ("*.png", "deep/down/a.png", True),
        ("*.png", "a.PNG", False),
        ("*.png", "a.png.txt", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("in/*.png", "in/a.png", True),
        ("in/*.png", "in/b/a.png", False),
        ("in/**/*.png", "in/a.png", True),
        ("in/**/*.png", "in/b/c/a.png", True),
        ("**/x/*", "x/a", True),
        ("**/x/*", "a/x/b", True),
        ("**/x/*", "ax/b", False),
        ("in/**", "in/a/b", True),
        ("in/**", "out/a", False),
        ("[ab].txt", "a.txt", True),
        ("[!ab].txt", "a.txt", False),
        ("[!ab].txt", "c.txt", True),
        ("[0-9]*", "7up", True),
        ("[", "[", True),
        ("[[]", "[", True),
        ("[^a]", "^", True),
        ("[^a]", "b", False),
        ("[\\]", "\\", True),
        ("[z-a]", "b", False),
        ("x/a[!b]c", "x/a/c", False),
        ("a+(b).txt", "a+(b).txt", True),
        ("*", "new\nline", True),
        ("a**/b", "a/b", True),
        ("a**/b", "axx/yy/b", True),
        ("a**/b", "ab", False),
    ],
)
def test_a_glob_is_matched_as_documented(glob: str, path: str, expected: bool) -> None:
    assert Selection(patterns=(glob,), ignores=()).accepts(path) is expected


def test_one_matching_pattern_is_enough_and_an_ignore_wins() -> None:
    selection = Selection(patterns=("*.png", "*.jpg"), ignores=("skip*",))
    assert selection.accepts("a.jpg")
    assert not selection.accepts("skip.jpg")
    assert not selection.accepts("skipped/a.jpg")


def test_without_recursion_only_the_top_level_is_selected() -> None:
    selection = Selection(recursive=False)
    assert selection.accepts("a")
    assert not selection.accepts("d/a")
    assert not selection.accepts("/a")
    assert selection.may_contain("")
    assert not selection.may_contain("d")


@pytest.mark.parametrize("path", ["", "a/", "/"])
def test_a_directory_is_not_a_file(path: str) -> None:
    assert not Selection().accepts(path)


@given(st.text("ab.*?[]!/\\-^&~|", max_size=12), st.text("ab./\\", max_size=8))
@example("[?--]", "-")
def test_any_glob_compiles_and_answers(glob: str, path: str) -> None:
    Selection(patterns=(glob,), ignores=(glob,)).accepts(path)


@given(st.text("ab.*?\n", min_size=1, max_size=6), st.text("ab.\n", min_size=1, max_size=6))
def test_a_glob_for_names_matches_as_a_shell_would(glob: str, name: str) -> None:
    assert Selection(ignores=(glob,)).accepts(f"dir.ab/{name}") == (
        not fnmatchcase(name, glob) and not fnmatchcase("dir.ab", glob)
    )


def matches(glob: str, path: str, before: str = "/") -> bool:
    """What a glob of ``*``, ``**`` and letters means, by trying everything."""
    if not glob:
        return not path
    if glob.startswith("**/") and before == "/":
        starts = [0, *(place + 1 for place, letter in enumerate(path) if letter == "/")]
        return any(matches(glob[3:], path[start:]) for start in starts)
    if glob.startswith("**"):
        return any(matches(glob[2:], path[start:], "*") for start in range(len(path) + 1))
    if glob.startswith("*"):
        within = len(path.partition("/")[0])
        return any(matches(glob[1:], path[start:], "*") for start in range(within + 1))
    return path.startswith(glob[0]) and matches(glob[1:], path[1:], glob[0])


@given(st.lists(st.sampled_from(["a", "b", "/", "*", "**", "**/"]), max_size=8).map("".join), st.text("ab/", max_size=10))
@example("**/a*b/**/a", "a/ab/b/a")
@example("*a*b**a", "aab/b/a")
def test_matching_a_star_greedily_at_the_first_fit_loses_no_match(glob: str, path: str) -> None:
    path = f"/{path}/x"  # so that the glob is matched against the whole of it
    glob = f"/{glob}/x"
    assert Selection(patterns=(glob,), ignores=()).accepts_name(path) is matches(glob, path)


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("*_*_*_*_*.csv", "_" * 255),
        ("*_*_*_*_*_*_*.csv", "_" * 1024),
        ("**/*a*/**/*a*/**/*a*b", "a/" * 512),
        ("**a**a**a**a**b", "a" * 1024),
        ("x/*a*a*a*a*a*b", "x/" + "a" * 1022),
    ],
)
def test_a_name_that_nearly_matches_in_many_ways_is_decided_quickly(glob: str, path: str) -> None:
    selection = Selection(patterns=(glob,), ignores=())
    began = time.process_time()
    assert not selection.accepts(path)
    assert time.process_time() - began < 1

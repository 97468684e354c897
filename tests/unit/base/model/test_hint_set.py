"""Folding hints into keys to check and subtrees to list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.hints import Hint, HintSet, KeyHint, SubtreeHint
from volstream.base.model.paths import Selection

ALL = Selection(ignores=())
PATHS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map("/".join)
PREFIXES = st.one_of(st.just(""), PATHS.map(lambda path: path + "/"))
HINTS = st.lists(st.one_of(st.builds(KeyHint, PATHS), st.builds(SubtreeHint, PREFIXES, st.just("why"))), max_size=30)


def folded(*hints: Hint, selection: Selection = ALL) -> HintSet:
    fold = HintSet(selection)
    fold.add(hints)
    return fold


def test_each_key_is_checked_once_in_the_order_of_its_first_hint() -> None:
    fold = folded(KeyHint("b"), KeyHint("a"), KeyHint("b"))
    assert fold.single_keys() == ["b", "a"]
    assert fold.listings() == []


def test_keys_below_a_subtree_are_covered_by_its_listing() -> None:
    fold = folded(KeyHint("a/x"), SubtreeHint("a/", "moved"), KeyHint("ab"), KeyHint("a"), SubtreeHint("a/b/", "inner"))
    assert fold.listings() == [("a/", "moved")]
    assert fold.single_keys() == ["ab", "a"]


def test_a_full_listing_covers_everything() -> None:
    fold = folded(KeyHint("a"), SubtreeHint("b/", "moved"), SubtreeHint("", "overflow"))
    assert fold.listings() == [("", "overflow")]
    assert fold.single_keys() == []


def test_the_first_reason_for_a_listing_is_kept() -> None:
    assert folded(SubtreeHint("a/", "first"), SubtreeHint("a/", "second")).listings() == [("a/", "first")]


def test_hints_outside_the_volume_are_ignored() -> None:
    selection = Selection(recursive=True, patterns=("*.jpg",), ignores=("tmp",))
    fold = folded(KeyHint("a.txt"), KeyHint("tmp/a.jpg"), SubtreeHint("tmp/", "moved"), selection=selection)
    assert not fold
    flat = folded(KeyHint("d/a"), SubtreeHint("d/", "moved"), selection=Selection(recursive=False, ignores=()))
    assert not flat
    assert folded(SubtreeHint("", "poll"), selection=Selection(recursive=False))


def test_a_fold_is_true_when_there_is_something_to_do() -> None:
    assert not folded()
    assert folded(KeyHint("a"))
    assert folded(SubtreeHint("", "poll"))


@given(HINTS)
def test_everything_hinted_at_is_checked_exactly_once(hints: list[Hint]) -> None:
    fold = folded(*hints)
    prefixes, keys = [prefix for prefix, _ in fold.listings()], fold.single_keys()
    assert len(keys) == len(set(keys))
    for hint in hints:
        path = hint.path if isinstance(hint, KeyHint) else hint.prefix
        assert sum(path.startswith(prefix) for prefix in prefixes) + keys.count(path) == 1


@given(HINTS)
def test_the_order_of_hints_does_not_change_what_is_checked(hints: list[Hint]) -> None:
    forth, back = folded(*hints), folded(*reversed(hints))
    assert forth.listings() == back.listings()
    assert set(forth.single_keys()) == set(back.single_keys())

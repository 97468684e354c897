"""Listings of a bucket that were interrupted: what changed meanwhile is not missed, and what they left behind is not used."""

from __future__ import annotations

import pytest

from tests.integration.changes.directory.conftest import Keeping
from tests.ordered import Bucket
from volstream.base.model.hints import HintSet, KeyHint, SubtreeHint
from volstream.changes.directory.reconcile import ReconcileResult
from volstream.changes.directory.writer import Counts
from volstream.errors import StorageError


class World:
    """A volume on a bucket, and the events it has received since the last refresh."""

    def __init__(self, kept: Keeping) -> None:
        self.kept = kept
        self.bucket = Bucket(["a/x/1", "a/x/2", "a/y/1", "b/1", "c/1", "d"])
        self.hints = HintSet(kept.volume.selection)

    def list(self) -> ReconcileResult:
        return self.kept.keeper(store=self.bucket).reconcile()

    def refresh(self, *prefixes: str) -> ReconcileResult:
        self.hints.add([SubtreeHint(prefix, "requested") for prefix in prefixes])
        done = self.kept.keeper(store=self.bucket).apply(self.hints)
        self.hints = HintSet(self.kept.volume.selection)
        return done

    def add(self, key: str) -> None:
        """Adds an object, and has its event received."""
        self.bucket.keys = sorted([*self.bucket.keys, key])
        self.hints.add([KeyHint(key)])

    def is_right(self) -> bool:
        return sorted(self.kept.directory()) == self.bucket.keys


@pytest.fixture
def world(kept: Keeping) -> World:
    made = World(kept)
    made.list()
    return made


def test_a_file_whose_event_came_while_its_folder_was_listed_in_vain_is_in_the_directory(world: World) -> None:
    world.bucket.fails_at = "a/y/1"
    with pytest.raises(StorageError):
        world.refresh("a/")
    world.bucket.fails_at = None
    world.add("a/x/3")
    assert world.refresh("a/").counts == Counts(1, 0, 0, 3)
    assert world.is_right()


def test_a_listing_does_not_miss_what_changed_after_one_that_failed(world: World) -> None:
    world.bucket.fails_at = "c/1"
    with pytest.raises(StorageError):
        world.list()
    world.bucket.fails_at = None
    world.add("a/x/3")
    assert world.list().counts == Counts(1, 0, 0, 3)
    assert world.is_right()


def test_the_first_listing_goes_on_where_another_process_ended_and_then_finds_what_changed(kept: Keeping) -> None:
    world = World(kept)
    world.bucket.fails_at = "c/1"
    with pytest.raises(StorageError):
        world.list()
    world.bucket.fails_at = None
    world.add("a/x/3")
    world.bucket.asked.clear()
    world.list()
    assert [cause for _, cause, *_ in kept.refreshes()] == ["first-listing", "listing"]
    assert world.is_right()
    assert world.bucket.asked[0][0] == "c/", "what was listed before is not listed first"


def test_what_the_listing_of_a_folder_left_behind_is_not_taken_for_files_of_others(world: World) -> None:
    world.bucket.fails_at = "a/y/1"
    with pytest.raises(StorageError):
        world.refresh("a/")
    world.bucket.fails_at = None
    assert world.refresh("b/", "c/").counts == Counts()
    assert world.is_right()

"""The contract of every store: what volstream relies on."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from volstream.base.model.paths import FileInfo, Selection
from volstream.errors import StorageError
from volstream.files.storage import open_store
from volstream.files.storage.base import HasDetails, HasParts, ObjectStore, TakesOutputs
from volstream.files.storage.buckets import PART_BYTES

ALL = Selection(ignores=())


@dataclass
class Place:
    """An empty location, and how a test changes it from outside.

    Attributes:
        location: a URI, as users give it to ``create-volume``.
        missing: the URI of a location that does not exist.
        put: creates or replaces an object at a path below the location.
        delete: deletes an object at a path.
        open: returns the store at a location.
        is_clean: a failed output leaves nothing behind.
        unusable: characters that paths in the store cannot have.
        folds: the store merges consecutive slashes.
    """

    location: str
    missing: str
    put: Callable[[str, bytes], object]
    delete: Callable[[str], object]
    open: Callable[[str], ObjectStore] = open_store
    is_clean: bool = True
    unusable: str = ""
    folds: bool = False

    @property
    def store(self) -> ObjectStore:
        """A new store at the location."""
        return self.open(self.location)


def listed(store: ObjectStore, prefix: str = "", selection: Selection = ALL) -> dict[str, FileInfo]:
    """Returns what a store lists, by path."""
    found = list(store.list(prefix, selection))
    assert all(isinstance(info, FileInfo) for info in found)
    infos = [info for info in found if isinstance(info, FileInfo)]
    assert len({info.relative_path for info in infos}) == len(infos)
    return {info.relative_path: info for info in infos}


class StoreContract:
    """Tests of a store. Subclass it in a test module with a name that begins with ``Test``, and supply the
    fixture ``place``.

    What a store need not do, such as taking outputs, is skipped if its class lacks the methods.
    """

    @pytest.fixture
    def place(self) -> Place:
        """Returns a :class:`Place`, a new one for each test."""
        raise NotImplementedError("Supply the fixture `place`.")

    def test_an_empty_location_lists_nothing(self, place: Place) -> None:
        assert listed(place.store) == {}

    def test_a_listing_shows_every_file_at_every_depth(self, place: Place) -> None:
        paths = {"a.txt", "b/c.txt", "b/d/e.txt", "f/g/h/i.txt"}
        for path in paths:
            place.put(path, path.encode())
        infos = listed(place.store)
        assert set(infos) == paths
        assert all(info.size == len(path) for path, info in infos.items())

    def test_a_listing_shows_what_lies_below_a_prefix_and_nothing_else(self, place: Place) -> None:
        for path in ("a/1", "a/b/2", "ab/3", "4"):
            place.put(path, b"")
        assert set(listed(place.store, "a/")) == {"a/1", "a/b/2"}
        assert listed(place.store, "nowhere/") == {}
        if not place.folds:
            assert listed(place.store, "/") == {}

    def test_a_selection_prunes_directories_and_names(self, place: Place) -> None:
        for path in ("keep.png", "skip.txt", ".git/config.png", "in/keep.png", "in/work.tmp"):
            place.put(path, b"")
        assert set(listed(place.store, selection=Selection(patterns=("*.png",)))) == {"keep.png", "in/keep.png"}
        assert set(listed(place.store, selection=Selection(recursive=False))) == {"keep.png", "skip.txt"}
        assert listed(place.store, "in/", Selection(recursive=False)) == {}

    def test_parts_are_of_the_listed_version_and_of_no_other(self, place: Place) -> None:
        content = bytes(range(256))
        for path in ("a b/c+ü.bin", "empty"):
            place.put(path, content if path != "empty" else b"")
        store = place.store
        if not isinstance(store, HasParts):
            pytest.skip("the store reads no parts")
        infos = listed(store)
        info = infos["a b/c+ü.bin"]
        for start, end in ((0, 256), (0, 100), (100, 200), (200, 256)):
            with store.open_part(info, start, end) as part:
                assert part.read() == content[start:end]
        with store.open_part(infos["empty"], 0, 0) as part:
            assert part.read() == b""
        place.put(info.relative_path, content[::-1])
        for start, end in ((0, 256), (100, 200), (200, 256)):
            with pytest.raises(StorageError, match="changed"):
                store.open_part(info, start, end)
        place.delete(info.relative_path)
        with pytest.raises(FileNotFoundError):
            store.open_part(info, 0, 256)

    def test_what_a_store_knows_of_an_object_is_fetched(self, place: Place) -> None:
        content = bytes(range(256))
        place.put("a b/c+ü.bin", content)
        store = place.store
        if not isinstance(store, HasDetails):
            pytest.skip("the store knows no more")
        assert store.read_range("a b/c+ü.bin", 10, 5) == content[10:15]
        assert store.tags("a b/c+ü.bin") == {}
        assert store.details("a b/c+ü.bin").metadata == {}
        for ask in (store.details, store.tags, partial(store.read_range, start=0, length=1)):
            with pytest.raises(FileNotFoundError):
                ask("missing")

    @pytest.fixture
    def outputs(self, place: Place) -> TakesOutputs:
        store = place.store
        if not isinstance(store, TakesOutputs):
            pytest.skip("the store takes no outputs")
        return store

    @pytest.mark.parametrize("size", [0, 10, PART_BYTES, PART_BYTES + 1])
    def test_an_output_appears_at_once_and_is_the_same_after_a_move(self, place: Place, outputs: TakesOutputs, size: int) -> None:
        content = b"0123456789" * (size // 10) + b"x" * (size % 10)
        written = outputs.put(".made/a b", io.BytesIO(content), "image/png")
        first = place.store.head(".made/a b")
        assert first is not None
        assert (first.size, first.etag) == written == (size, first.etag)
        etag = outputs.move(".made/a b", "deep/below/c.png")
        moved = place.store.head("deep/below/c.png")
        assert moved is not None
        assert (moved.size, moved.etag, moved.content_type) == (size, etag, "image/png")
        assert etag == first.etag
        with place.store.open("deep/below/c.png") as file:
            assert file.read() == content
        assert place.store.head(".made/a b") is None
        assert outputs.move(".made/a b", "deep/below/c.png") is None

    def test_a_moved_output_replaces_what_has_its_path(self, place: Place, outputs: TakesOutputs) -> None:
        place.put("a", b"old")
        outputs.put(".made/1", io.BytesIO(b"new"), None)
        assert outputs.obstacle("a") == "already exists"
        assert outputs.move(".made/1", "a") is not None
        with place.store.open("a") as file:
            assert file.read() == b"new"
        assert outputs.obstacle("b/c") is None

    def test_a_move_that_must_not_replace_anything_leaves_both_as_they_were(self, place: Place, outputs: TakesOutputs) -> None:
        place.put("a", b"old")
        outputs.put(".made/1", io.BytesIO(b"new"), None)
        with pytest.raises(FileExistsError):
            outputs.move(".made/1", "a", replaces=False)
        for path, content in (("a", b"old"), (".made/1", b"new")):
            with place.store.open(path) as file:
                assert file.read() == content
        assert outputs.move(".made/1", "b", replaces=False) is not None
        assert outputs.move(".made/1", "c", replaces=False) is None
        assert set(listed(place.store)) == {"a", "b"}

    def test_a_folder_of_outputs_is_removed_with_all_in_it_and_nothing_else(self, place: Place, outputs: TakesOutputs) -> None:
        for path in ("a/b/1", "a/b/.c/2", "a/bc", "d"):
            outputs.put(path, io.BytesIO(b"x"), None)
        outputs.remove_folder("a/b")
        outputs.remove_folder("a/b")
        assert set(listed(place.store)) == {"a/bc", "d"}
        outputs.remove("d")
        outputs.remove("d")
        assert set(listed(place.store)) == {"a/bc"}

    def test_outputs_are_written_by_a_pickled_store(self, place: Place, outputs: TakesOutputs) -> None:
        pickle.loads(pickle.dumps(outputs)).put("a", io.BytesIO(b"x"), None)
        assert set(listed(place.store)) == {"a"}

    def test_an_output_whose_content_cannot_be_read_does_not_appear(self, place: Place, outputs: TakesOutputs) -> None:
        class Broken(io.RawIOBase):
            def __init__(self) -> None:
                self.left = PART_BYTES + 1

            def read(self, size: int = -1) -> bytes:
                if not self.left:
                    raise ValueError("broken")
                part = b"x" * min(size, self.left)
                self.left -= len(part)
                return part

        with pytest.raises(ValueError, match="broken"):
            outputs.put("below/a", Broken(), None)  # type: ignore[arg-type]  # as users have them
        if place.is_clean:
            assert listed(place.store) == {}

    def test_head_agrees_with_the_listing(self, place: Place) -> None:
        place.put("a/b.json", b"{}")
        info = listed(place.store)["a/b.json"]
        assert place.store.head("a/b.json") == info
        assert info.content_type == "application/json"
        assert info.last_modified_time.utcoffset() is not None

    def test_head_finds_neither_missing_objects_nor_directories(self, place: Place) -> None:
        place.put("a/b", b"")
        assert place.store.head("a/c") is None
        assert place.store.head("a") is None
        assert place.store.head("a/") is None
        assert place.store.head("a/b/c") is None
        assert place.store.head("\udcff") is None

    def test_an_overwrite_with_the_same_size_changes_the_version(self, place: Place) -> None:
        place.put("a", b"1")
        before = place.store.head("a")
        place.delete("a")
        place.put("b", b"x")
        place.put("a", b"2")
        after = place.store.head("a")
        assert before is not None
        assert after is not None
        assert before.version != after.version

    def test_the_content_can_be_read_and_seeked(self, place: Place) -> None:
        place.put("a b/c", b"0123456789")
        with place.store.open("a b/c") as file:
            file.seek(5)
            assert file.read() == b"56789"

    def test_a_deleted_object_cannot_be_opened(self, place: Place) -> None:
        place.put("a", b"")
        place.delete("a")
        with pytest.raises(FileNotFoundError):
            place.store.open("a")

    def test_a_missing_location_is_an_error_and_not_an_empty_listing(self, place: Place) -> None:
        store = place.open(place.missing)
        with pytest.raises(StorageError) as listing:
            list(store.list("", ALL))
        assert listing.value.remedy
        with pytest.raises(StorageError):
            store.head("a")
        with pytest.raises(StorageError):
            store.open("a")

    def test_a_pickled_store_reads_the_same_objects(self, place: Place) -> None:
        place.put("a", b"x")
        assert pickle.loads(pickle.dumps(place.store)).head("a") == place.store.head("a")

    def test_a_url_is_percent_encoded_below_the_location(self, place: Place) -> None:
        assert place.store.url("a b/ü%?#.txt").endswith("/a%20b/%C3%BC%25%3F%23.txt")

    @pytest.mark.parametrize("name", ["with space", "a+b", "50%25", "a&b=c", 'it\'s "x"', "new\nline", "ü日本", "-rf", "a" * 255])
    def test_odd_names_are_listed_read_and_found(self, place: Place, name: str) -> None:
        if set(name) & set(place.unusable):
            pytest.skip("no name can be so there")
        place.put(f"d/{name}", b"x")
        assert set(listed(place.store)) == {f"d/{name}"}
        assert place.store.head(f"d/{name}") is not None
        with place.store.open(f"d/{name}") as file:
            assert file.read() == b"x"

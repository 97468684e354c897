"""Locations: which store, which spelling."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.errors import InvalidValueError
from volstream.model.locations import file_uri, local_path
from volstream.storage import normalise_location, open_store
from volstream.storage.local import LocalStore
from volstream.storage.memory import MemoryStore

NAMES = st.binary(min_size=1).map(os.fsdecode).filter(lambda name: "\0" not in name)


@given(NAMES)
def test_any_path_survives_the_way_to_a_uri_and_back(name: str) -> None:
    path = os.path.abspath("/root/" + name)
    assert local_path(file_uri(path)) == "/" + path.lstrip("/")


@given(NAMES)
def test_normalising_twice_changes_nothing(name: str) -> None:
    once = normalise_location("/root/" + name)
    assert normalise_location(once) == once
    assert once.isascii()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/in/", "file:///data/in"),
        ("//data", "file:///data"),
        ("/", "file:///"),
        ("/a b/c%#?", "file:///a%20b/c%25%23%3F"),
        ("file:///a%20b/", "file:///a%20b"),
        ("file:///a b#c", "file:///a%20b%23c"),
        ("FILE://localhost/a", "file:///a"),
        ("file:/a", "file:///a"),
        ("memory://name", "memory://name"),
        ("memory://name/", "memory://name"),
        ("~", "file://" + os.path.expanduser("~")),
        ("relative/x", "file://" + os.getcwd() + "/relative/x"),
    ],
)
def test_a_location_has_one_spelling(text: str, expected: str) -> None:
    assert normalise_location(text) == expected


@pytest.mark.parametrize("text", ["", "file://host/a", "memory://", "s3://bucket/x", "oss://bucket", "a\0b"])
def test_what_is_no_location_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError):
        normalise_location(text)


def test_an_unknown_scheme_is_refused_with_those_that_are_available() -> None:
    with pytest.raises(InvalidValueError, match=r"file://, memory:// and plain paths"):
        open_store("s3://bucket/prefix")


def test_the_scheme_chooses_the_store() -> None:
    assert isinstance(open_store("/data"), LocalStore)
    assert isinstance(open_store("file:///data"), LocalStore)
    assert isinstance(open_store("memory://x"), MemoryStore)

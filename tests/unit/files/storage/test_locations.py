"""Locations: their stores and their canonical spelling."""

from __future__ import annotations

import os
import sys
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.memory import MemoryStore
from volstream.base.model.paths import did_you_mean, file_uri, local_path, quote_path, without_secrets
from volstream.errors import DependencyError, InvalidValueError
from volstream.files.providers.alibaba.store import OssStore
from volstream.files.providers.aws.store import S3Store
from volstream.files.storage import normalise_location, open_store, place_of_reports
from volstream.files.storage.local import LocalStore

NAMES = st.binary(min_size=1).map(os.fsdecode).filter(lambda name: "\0" not in name)


@given(NAMES)
def test_any_path_survives_the_round_trip_through_a_uri(name: str) -> None:
    path = os.path.abspath("/root/" + name)
    assert local_path(file_uri(path)) == "/" + path.lstrip("/")


@given(NAMES)
def test_a_path_is_quoted_byte_by_byte(name: str) -> None:
    assert quote_path(name) == quote(os.fsencode(name))


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://me:secret@host/a@b.csv?sig=secret#x", "https://host/a@b.csv"),
        ("s3://me:secret@bucket/who?.csv", "s3://bucket/who?.csv"),
        ("/data/me@home?", "/data/me@home?"),
    ],
)
def test_no_location_is_shown_with_its_secrets(location: str, shown: str) -> None:
    assert without_secrets(location) == shown


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
        ("s3://bucket/a b%20/", "s3://bucket/a b%20"),
        ("S3A://bucket", "s3://bucket"),
        ("oss://bucket/a//b", "oss://bucket/a//b"),
        ("relative/x", "file://" + os.getcwd() + "/relative/x"),
    ],
)
def test_a_location_has_one_spelling(text: str, expected: str) -> None:
    assert normalise_location(text) == expected


@pytest.mark.parametrize(
    "text", ["", "file://host/a", "memory://", "s3://", "s3:///x", "oss://a b/x", "oss://b.oss-cn-hangzhou.aliyuncs.com", "a\0b"]
)
def test_invalid_locations_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValueError):
        normalise_location(text)


@pytest.mark.parametrize("scheme", ["gs", "az"])
def test_inventories_that_cannot_be_read_are_refused(scheme: str) -> None:
    with pytest.raises(InvalidValueError, match=f"Inventories of {scheme}:// are not read"):
        place_of_reports(f"{scheme}://reports/daily", f"{scheme}://bucket/in")


def test_an_unknown_scheme_is_rejected_with_the_available_ones() -> None:
    with pytest.raises(InvalidValueError, match=r"az://, file://, gs://, memory://, oss://, s3:// and plain paths"):
        open_store("gopher://hole")


def test_the_scheme_determines_the_store() -> None:
    assert isinstance(open_store("/data"), LocalStore)
    assert isinstance(open_store("file:///data"), LocalStore)
    assert isinstance(open_store("memory://x"), MemoryStore)
    assert isinstance(open_store("s3://bucket"), S3Store)
    assert isinstance(open_store("oss://bucket"), OssStore)


def test_a_missing_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "volstream.files.providers.alibaba.store", raising=False)
    monkeypatch.setitem(sys.modules, "oss2", None)
    with pytest.raises(DependencyError, match=r"pip install 'volstream\[oss\]'"):
        open_store("oss://bucket")


@pytest.mark.parametrize(
    ("location", "path", "hint"),
    [
        ("file:///data/my%20files", "/data/my files/a/b.txt", "Paths are relative to the volume: 'a/b.txt'. "),
        ("file:///data", "data/b.txt", "Paths are relative to the volume: 'b.txt'. "),
        ("file:///data", "/database/b.txt", ""),
        ("s3://bucket/in", "s3://bucket/in/b.txt", "Paths are relative to the volume: 'b.txt'. "),
        ("s3://bucket/in", "/in/a.txt", "Did you mean 'in/a.txt'? "),
        ("file:///data", "a.tx", "Did you mean 'a.txt'? "),
    ],
)
def test_an_unknown_path_hints_at_the_file_it_may_mean(
    monkeypatch: pytest.MonkeyPatch, location: str, path: str, hint: str
) -> None:
    monkeypatch.chdir("/")
    assert did_you_mean(location, path, ["a.txt", "in/a.txt"]) == hint

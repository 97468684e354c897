"""The content type of a file by its name."""

from __future__ import annotations

import mimetypes
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.paths import content_type

_TYPES = mimetypes.MimeTypes()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.txt", "text/plain"),
        ("b.html/a", None),
        ("b.html/a.png", "image/png"),
        (".txt", None),
        ("..txt", None),
        (".a.txt", "text/plain"),
        ("a.", None),
        ("a.tar.gz", "application/gzip"),
        ("", None),
    ],
)
def test_a_type_follows_from_the_extension(path: str, expected: str | None) -> None:
    assert content_type(path) == expected


@given(st.lists(st.sampled_from([".", "/", "a", "txt", "html", "é"]), max_size=8).map("".join))
def test_an_extension_is_what_the_standard_library_considers_one(path: str) -> None:
    assert content_type(path) == _TYPES.guess_type("name" + os.path.splitext(path)[1])[0]

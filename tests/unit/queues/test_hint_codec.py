"""Hints as message bodies: the round trip, and whatever else a queue may hold."""

from __future__ import annotations

import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from volstream.model.hints import Hint, KeyHint, Rejection, SubtreeHint
from volstream.queues.hint_codec import encode, parse

PATHS = st.binary(min_size=1).map(os.fsdecode)
HINTS: st.SearchStrategy[Hint] = st.builds(KeyHint, PATHS) | st.builds(
    SubtreeHint, st.just("") | PATHS.map(lambda path: path + "/"), st.text(st.characters(codec="utf-8"))
)


@given(HINTS)
def test_any_hint_about_any_file_name_survives(hint: Hint) -> None:
    assert parse(encode(hint)) == (hint,)


@given(st.binary())
@example(b"[" * 100_000)
@example(b"1" * 5_000)
@example(b'{"key": "\\ud800"}')
@example(b"\xff\xfe")
def test_parsing_never_raises(body: bytes) -> None:
    parsed = parse(body)
    if isinstance(parsed, Rejection):
        assert parsed.reason
        assert len(parsed.subject) <= 4096
        parsed.subject.encode("utf-8")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"key"',
        b'{"key": ""}',
        b'{"key": 1}',
        b'{"subtree": "a", "reason": "x"}',
        b'{"\\ud800": 1}',
    ],
)
def test_bodies_that_are_not_hints_are_rejected_with_a_reason(body: bytes) -> None:
    parsed = parse(body)
    assert isinstance(parsed, Rejection)
    parsed.reason.encode("utf-8")

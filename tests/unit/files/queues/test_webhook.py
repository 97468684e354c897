"""What senders post becomes hints, or is refused as a whole."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base.model.hints import KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.files.queues.bodies import parse

RECORD = {"s3": {"bucket": {"name": "b"}, "object": {"key": "a/c.jpg"}}}
OSS = {"eventName": "ObjectCreated:PutObject", "oss": {"bucket": {"name": "b"}, "object": {"key": "x.jpg"}}}


@pytest.mark.parametrize(
    ("document", "hints"),
    [
        ({"path": "a/b.txt"}, [KeyHint("a/b.txt")]),
        ({"paths": ["a", "b c"]}, [KeyHint("a"), KeyHint("b c")]),
        ({"path": "a/"}, [SubtreeHint("a/", "posted")]),
        ([{"path": "a"}, {"path": "b"}], [KeyHint("a"), KeyHint("b")]),
        ([], []),
        ({"specversion": "1.0", "type": "t", "data": {"path": "a"}}, [KeyHint("a")]),
        ({"Records": [RECORD]}, [ObjectHint("b", "a/c.jpg")]),
        ({"EventName": "s3:ObjectCreated:Put", "Key": "b/a", "Records": [RECORD]}, [ObjectHint("b", "a/c.jpg")]),
        ({"specversion": "1.0", "data": RECORD}, [ObjectHint("b", "a/c.jpg")]),
        ({"specversion": "1.0", "data": {"Records": [RECORD]}}, [ObjectHint("b", "a/c.jpg")]),
        ({"detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": "k"}}}, [ObjectHint("b", "k")]),
        ({"events": [OSS]}, [ObjectHint("b", "x.jpg")]),
        ({"specversion": "1.0", "data": OSS}, [ObjectHint("b", "x.jpg")]),
        ({"Event": "s3:TestEvent"}, []),
    ],
)
def test_each_kind_of_event_is_understood(document: object, hints: list[object]) -> None:
    assert list(parse(json.dumps(document).encode())) == hints  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"path=a", "not JSON"),
        (b'"a"', "not an event"),
        (b'{"name": "a"}', "not an event that volstream knows: an object with the keys 'name'"),
        (b'{"path": ""}', "must be a non-empty"),
        (b'{"path": "/"}', "must be a non-empty"),
        (b'{"path": 7}', "must be a non-empty"),
        (b'{"paths": ["a", null]}', "must be a non-empty"),
        (b'[{"path": "a"}, {}]', "not an event"),
        (b'{"Records": [{}]}', "A record in the message lacks the bucket's name"),
    ],
)
def test_one_event_that_is_not_understood_refuses_all(body: bytes, reason: str) -> None:
    found = parse(body)
    assert isinstance(found, Rejection)
    assert reason in found.reason


@given(
    st.binary()
    | st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    ["path", "paths", "Records", "s3", "specversion", "data", "events", "oss", "bucket", "object", "key", "name"]
                ),
                inner,
            )
        ),
    ).map(lambda document: json.dumps(document).encode())
)
def test_nothing_that_is_posted_is_an_error_of_ours(body: bytes) -> None:
    parse(body)

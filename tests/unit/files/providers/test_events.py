"""The providers' messages as hints: every format by a fixture of its own, and whatever else a queue may hold.

The fixtures are written after the providers' documentation; emulators make few of them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.bodies import azure_body, gcs_body, oss_body, s3_body
from volstream.base.model.hints import ObjectHint, Rejection
from volstream.files.providers.alibaba import events as oss_events
from volstream.files.providers.aws import events as s3_events
from volstream.files.providers.azure import events as az_events
from volstream.files.providers.google import events as gs_events

Parse = Callable[[bytes], Sequence[ObjectHint] | Rejection]

EVENTS = Path(__file__).parent / "events"

#: Fixture -> the keys that it is a hint of.
S3 = {
    "put": ("in/summer day+1.png", "in/summer+day%2B1.png"),
    "multipart": ("in/big.tif",),
    "delete": ("in/a.png",),
    "delete_marker": ("in/a.png",),
    "lifecycle_expiration": ("in/old.png",),
    "lifecycle_delete_marker": ("in/old.png",),
    "lifecycle_transition": ("in/cold.png",),
    "restore_completed": ("in/cold.png",),
    "replication": ("in/copied.png",),
    "directory": (),
    "test_event": (),
    "two_records": ("in/first.png", "in/second.png"),
    "sns_envelope": ("in/summer day+1.png", "in/summer+day%2B1.png"),
    "sns_test_event": (),
    "eventbridge_created": ("in/summer day+1.png", "in/summer+day%2B1.png"),
    "eventbridge_deleted": ("in/a.png",),
    "cloudtrail_call": ("in/a b.png", "in/a+b.png"),
    "cloudtrail_logs": ("in/1.json.gz", "in/2.json.gz"),
}
OSS = {
    "put": ("in/summer day+1.png",),
    "append": ("in/log.txt",),
    "multipart_complete": ("in/big.tif",),
    "multipart_initiate": (),
    "multipart_part": (),
    "multipart_part_copy": (),
    "multipart_abort": (),
    "symlink": ("in/alias.png",),
    "delete": ("in/a.png",),
    "delete_many": ("in/a.png",),
    "replication_created": ("in/copied.png",),
    "replication_removed": ("in/copied.png",),
    "replication_modified": ("in/copied.png",),
    "modified": ("in/a.png",),
    "read": (),
    "directory": (),
    "unknown": ("in/a.png",),
    "topic": ("in/a.png",),
    "eventbridge": ("in/a.png",),
}
GS = {
    "finalize": ("in/summer day+1.png",),
    "finalize_without_payload": ("in/summer day+1.png",),
    "overwrite": ("in/a.png",),
    "overwritten": ("in/a.png",),
    "delete": ("in/a.png",),
    "archive": ("in/a.png",),
    "metadata_update": ("in/a.png",),
    "encoded": ("in/100%25.png",),
    "folder": (),
    "eventarc": ("in/a.png",),
    "resource": ("in/a.png",),
}

AZ = {
    "block_blob": ("in/summer day+1.png",),
    "block_list": ("in/big.tif",),
    "append_blob": ("in/log.txt",),
    "copy": ("in/copied.png",),
    "create_file": (),
    "flush_with_close": ("in/lake.csv",),
    "deleted": ("in/a.png",),
    "tier_changed": ("in/cold.png",),
    "renamed": ("in/new name.csv", "in/old%20name.csv", "in/old name.csv", "in/new%20name.csv"),
    "cloudevent": ("in/a.png",),
    "validation": (),
}

#: Fixture -> the folders below which it is a hint of everything.
AZ_FOLDERS = {
    "directory_created": ("in/new/",),
    "directory_deleted": ("in/old/",),
    "directory_renamed": ("in/new/", "in/old%20one/", "in/old one/"),
}

KEYS = ["sp ace", "a+b", "100%", "%41", "a&b=c", "q'\"", "new\nline", "日本/ü.png", "/leading", "a//b", "x" * 1024]


def hinted(*keys: str) -> tuple[ObjectHint, ...]:
    return tuple(ObjectHint("photos", key) for key in keys)


def test_every_fixture_has_an_expectation() -> None:
    assert {path.stem for path in (EVENTS / "s3").iterdir()} == set(S3)
    assert {path.stem for path in (EVENTS / "oss").iterdir()} == set(OSS)
    assert {path.stem for path in (EVENTS / "gs").iterdir()} == set(GS)
    assert {path.stem for path in (EVENTS / "az").iterdir()} == set(AZ)
    assert {path.stem for path in (EVENTS / "az_folders").iterdir()} == set(AZ_FOLDERS)


@pytest.mark.parametrize("name", S3)
def test_s3_messages_are_parsed(name: str) -> None:
    assert s3_events.parse((EVENTS / "s3" / f"{name}.json").read_bytes()) == hinted(*S3[name])


@pytest.mark.parametrize("name", OSS)
@pytest.mark.parametrize("wrap", [bytes, base64.b64encode, base64.encodebytes], ids=["raw", "base64", "lines"])
def test_oss_messages_are_parsed(name: str, wrap: Callable[[bytes], bytes]) -> None:
    assert oss_events.parse(wrap((EVENTS / "oss" / f"{name}.json").read_bytes())) == hinted(*OSS[name])


@pytest.mark.parametrize("name", GS)
def test_messages_of_cloud_storage_are_parsed(name: str) -> None:
    assert gs_events.parse((EVENTS / "gs" / f"{name}.json").read_bytes()) == hinted(*GS[name])


@pytest.mark.parametrize("name", AZ)
@pytest.mark.parametrize("wrap", [bytes, base64.b64encode], ids=["raw", "base64"])
def test_messages_of_blob_storage_are_parsed(name: str, wrap: Callable[[bytes], bytes]) -> None:
    parsed = az_events.parse(wrap((EVENTS / "az" / f"{name}.json").read_bytes()))
    assert not isinstance(parsed, Rejection)
    assert {*parsed} == {*hinted(*AZ[name])}


@pytest.mark.parametrize("name", AZ_FOLDERS)
def test_an_event_of_a_folder_is_a_hint_of_all_below_it(name: str) -> None:
    parsed = az_events.parse((EVENTS / "az_folders" / f"{name}.json").read_bytes())
    assert not isinstance(parsed, Rejection)
    assert {*parsed} == {ObjectHint("photos", key, below=True) for key in AZ_FOLDERS[name]}


@pytest.mark.parametrize("key", KEYS)
def test_any_key_is_reported_unchanged(key: str) -> None:
    for hints in (
        s3_events.parse(s3_body(key)),
        oss_events.parse(oss_body(key)),
        gs_events.parse(gcs_body(key)),
        az_events.parse(azure_body(key)),
    ):
        assert not isinstance(hints, Rejection)
        assert hints[0] == ObjectHint("photos", key)


def test_an_s3_key_is_decoded_once_or_not_at_all_as_ceph_sends_it() -> None:
    assert s3_events.parse(s3_body("%2541+")) == hinted("%2541+", "%252541%2B")


def test_an_oss_key_that_may_be_encoded_is_reported_both_ways() -> None:
    assert oss_events.parse(oss_body("a%20b+c")) == hinted("a%20b+c", "a b+c")
    assert oss_events.parse(oss_body("%ff")) == hinted("%ff")


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1))
def test_every_record_is_read(keys: list[str]) -> None:
    files = [key for key in keys if not key.endswith("/")]
    for hints in (s3_events.parse(s3_body(*keys)), oss_events.parse(oss_body(*keys))):
        assert not isinstance(hints, Rejection)
        assert set(hinted(*files)) <= set(hints)


@pytest.mark.parametrize(("body", "envelope"), [(s3_body("a"), {"Type": "Notification"}), (oss_body("a"), {})])
def test_an_envelope_may_contain_something_unreadable(body: bytes, envelope: dict[str, str]) -> None:
    parse: Parse = s3_events.parse if envelope else oss_events.parse
    assert parse(json.dumps({**envelope, "Message": body.decode()}).encode()) == hinted("a")
    for text in ("", "nonsense", "\ud800", "{}", "[" * 100_000):
        assert isinstance(parse(json.dumps({**envelope, "Message": text}).encode()), Rejection)


def test_the_envelope_of_a_topic_may_contain_base64() -> None:
    wrapped = json.dumps({"Message": base64.b64encode(oss_body("a")).decode()}).encode()
    assert oss_events.parse(wrapped) == hinted("a")
    assert oss_events.parse(base64.b64encode(wrapped)) == hinted("a")


@pytest.mark.parametrize("parse", [s3_events.parse, oss_events.parse, gs_events.parse, az_events.parse])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"Records"',
        b"\xff\xfe\x00",
        b'{"Records": {}, "events": {}}',
        b'{"Records": [null], "events": [null]}',
        b'{"Records": [{"s3": {"bucket": {"name": "b"}}}], "events": [{"eventName": "x", "oss": {"bucket": {"name": "b"}}}]}',
        b'{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": ""}}}]}',
        b'{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "%ff"}}}]}',
        b'{"Records": [{"s3": {"bucket": {"name": "b"}, "object": {"key": "\\ud800"}}}]}',
        b'{"events": [{"eventName": "x", "oss": {"bucket": {"name": "\\ud800"}, "object": {"key": "k"}}}]}',
        b'{"\\ud800": 1}',
        b'{"Type": "SubscriptionConfirmation", "Message": "You have chosen to subscribe", "SubscribeURL": "https://x"}',
        b"<Notification/>",
        b'{"message": {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "b"}}}',
        b'{"eventType": "Microsoft.Storage.BlobCreated", "subject": "/blobServices/default/containers/c", "data": {}}',
        b'{"eventType": "Microsoft.Storage.BlobCreated", "subject": 1, "data": {"sourceUrl": "https://h/c"}}',
        b'{"eventType": "Microsoft.Resources.ResourceWriteSuccess", "data": {}}',
        b'{"message": {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": "\\ud800"}}}',
        b'{"message": {"attributes": {"eventType": "OBJECT_FINALIZE", "bucketId": "b", "objectId": 1}}}',
    ],
)
def test_messages_that_are_not_events_are_rejected_with_a_reason(parse: Parse, body: bytes) -> None:
    parsed = parse(body)
    assert isinstance(parsed, Rejection)
    assert parsed.reason.endswith(".")
    parsed.reason.encode("utf-8")
    parsed.subject.encode("utf-8")


def test_one_unreadable_record_rejects_the_message() -> None:
    good = {"s3": {"bucket": {"name": "b"}, "object": {"key": "k"}}}
    assert isinstance(s3_events.parse(json.dumps({"Records": [good, {}]}).encode()), Rejection)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "Records",
                    "events",
                    "s3",
                    "oss",
                    "bucket",
                    "object",
                    "name",
                    "key",
                    "eventName",
                    "Type",
                    "Message",
                    "Event",
                    "detail",
                    "detail-type",
                    "message",
                    "attributes",
                    "eventType",
                    "bucketId",
                    "objectId",
                    "subject",
                    "sourceUrl",
                    "data",
                ]
            )
            | st.text(max_size=2),
            children,
            max_size=4,
        )
    ),
    max_leaves=20,
)


def test_a_key_that_looks_encoded_is_looked_for_under_both_names_unless_the_sender_encodes() -> None:
    key, decoded = "crawl/https%3A%2F%2Fexample.com", "crawl/https://example.com"
    event = {"detail-type": "Object Created", "detail": {"bucket": {"name": "b"}, "object": {"key": key}}}
    record = {"s3": {"bucket": {"name": "b"}, "object": {"key": key}}}
    ceph, minio = ({"Records": [{"eventSource": source, **record}]} for source in ("ceph:s3", "minio:s3"))
    for document, keys in ((event, {key, decoded}), (ceph, {key, decoded}), (minio, {decoded})):
        hints = s3_events.parse(damaged(document))
        assert not isinstance(hints, Rejection)
        assert {hint.key for hint in hints} == keys


def damaged(document: Any) -> bytes:
    return json.dumps(document).encode()


@pytest.mark.parametrize("parse", [s3_events.parse, oss_events.parse, gs_events.parse, az_events.parse])
@given(body=st.binary() | JSON.map(damaged) | JSON.map(damaged).map(base64.b64encode))
@example(body=b"[" * 100_000)
@example(body=b"1" * 5_000)
@example(body=base64.b64encode(b"[" * 100_000))
@example(body=b"\xff\xfe")
@example(body=b'{"Message": ' + b"[" * 100_000)
def test_parsing_never_raises(parse: Parse, body: bytes) -> None:
    parsed = parse(body)
    if isinstance(parsed, Rejection):
        assert parsed.reason
        assert len(parsed.subject) <= 4096
        parsed.subject.encode("utf-8")
        parsed.reason.encode("utf-8")
    else:
        assert all(hint.bucket and hint.key and not hint.key.endswith("/") for hint in parsed)


@pytest.mark.parametrize("url", ["http://[", "https://a\u2100b/", "//[::1", "", "\0"])
def test_a_place_that_is_no_url_leaves_the_other_one(url: str) -> None:
    event = {
        "eventType": "Microsoft.Storage.BlobRenamed",
        "subject": "/blobServices/default/containers/files/blobs/in/a",
        "data": {"destinationUrl": url, "sourceUrl": "https://account.blob.core.windows.net/files/in/b"},
    }
    hints = az_events.parse(json.dumps(event).encode())
    assert not isinstance(hints, Rejection)
    assert {hint.key for hint in hints} == {"in/a", "in/b"}

"""The stand-in for OSS, used through the real SDK: what it stores, refuses and reports."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

import oss2
import pytest

from tests.clouds import STANDINS, Cloud


def bucket_of(cloud: Cloud, name: str, secret: str = "oss-long-lived-secret") -> Any:
    auth = oss2.AuthV4("LTAITEST", secret)
    return oss2.Bucket(auth, cloud.access.endpoint, name, region="cn-hangzhou")


def test_the_sdk_writes_copies_appends_and_deletes_and_every_change_sends_an_event(oss: Cloud) -> None:
    told: list[dict[str, Any]] = []
    oss.service.tell = lambda body: told.extend(json.loads(base64.b64decode(body))["events"])
    try:
        bucket = bucket_of(oss, "told")
        bucket.create_bucket()
        bucket.put_object("in/a b+%ü", b"123", headers={"Content-Type": "text/x"})
        bucket.put_object("in/a b+%ü", b"1")
        bucket.copy_object("told", "in/a b+%ü", "copy")
        bucket.append_object("log", 0, b"1")
        bucket.append_object("log", 1, b"2")
        bucket.delete_object("copy")
        bucket.delete_object("copy")
        assert bucket.batch_delete_objects(["log", "in/a b+%ü"]).deleted_keys == ["log", "in/a b+%ü"]
        bucket.delete_bucket()
    finally:
        oss.service.tell = None
    key = "in/a b+%ü"
    assert [(one["eventName"], one["oss"]["object"]["key"], one["oss"]["object"]["deltaSize"]) for one in told] == [
        ("ObjectCreated:PutObject", key, 3),
        ("ObjectCreated:PutObject", key, -2),
        ("ObjectCreated:CopyObject", "copy", 1),
        ("ObjectCreated:AppendObject", "log", 1),
        ("ObjectCreated:AppendObject", "log", 1),
        ("ObjectRemoved:DeleteObject", "copy", -1),
        ("ObjectRemoved:DeleteObjects", "log", -2),
        ("ObjectRemoved:DeleteObjects", key, -1),
    ]
    assert {one["oss"]["bucket"]["name"] for one in told} == {"told"}


def test_parts_and_conditions_behave_as_in_the_service(oss: Cloud) -> None:
    oss.make_bucket("parts")
    oss.put("parts", "a", b"0123456789")
    bucket = bucket_of(oss, "parts")
    assert bucket.get_object("a", byte_range=(2, 4)).read() == b"234"
    assert bucket.get_object("a", byte_range=(20, None)).read() == b"0123456789"
    with pytest.raises(oss2.exceptions.PreconditionFailed):
        bucket.get_object("a", headers={"If-Match": "other"})


def test_a_wrong_secret_is_rejected(oss: Cloud) -> None:
    with pytest.raises(oss2.exceptions.SignatureDoesNotMatch):
        bucket_of(oss, "any", "wrong").put_object("a", b"")


def test_it_runs_as_a_program() -> None:
    command = [sys.executable, str(STANDINS / "oss.py"), "--port", "0", "--bucket", "demo"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = process.stdout.readline().split()[-1]
        try:
            bucket = oss2.Bucket(oss2.AuthV4("test", "test"), endpoint, "demo", region="cn-hangzhou")
            bucket.put_object("a", b"1")
            assert bucket.get_object("a").read() == b"1"
        finally:
            process.terminate()

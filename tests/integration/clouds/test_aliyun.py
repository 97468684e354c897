"""Reaching Alibaba Cloud: where keys come from, how role keys are renewed, what STS refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.clouds import Answers, Cloud
from volstream.errors import QueueError, StorageDeniedError, StorageError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.alibaba import credentials
from volstream.files.providers.alibaba.queue import MnsService
from volstream.files.queues.base import QueueSpec

ROLE = "acs:ram::1234567890:role/reader"

NAMES = (
    "ALIBABA_CLOUD_ACCESS_KEY_ID",
    "ALIBABA_CLOUD_ACCESS_KEY_SECRET",
    "ALIBABA_CLOUD_SECURITY_TOKEN",
    "OSS_ACCESS_KEY_ID",
    "OSS_ACCESS_KEY_SECRET",
    "OSS_SESSION_TOKEN",
    "ALIBABA_CLOUD_REGION_ID",
    "OSS_REGION",
)


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("prefix", "token"), [("ALIBABA_CLOUD", "SECURITY_TOKEN"), ("OSS", "SESSION_TOKEN")])
def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, prefix: str, token: str) -> None:
    monkeypatch.setenv(f"{prefix}_ACCESS_KEY_ID", "id")
    monkeypatch.setenv(f"{prefix}_ACCESS_KEY_SECRET", "secret")
    assert credentials.keys(Access("oss")) == Keys("id", "secret")
    monkeypatch.setenv(f"{prefix}_{token}", "token")
    assert credentials.keys(Access("oss")) == Keys("id", "secret", "token")


def test_keys_come_from_a_profile_of_the_vendors_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from alibabacloud_credentials.provider import cli_profile

    file = tmp_path / "config.json"
    profile = {"name": "work", "mode": "StsToken", "access_key_id": "P", "access_key_secret": "s", "sts_token": "t"}
    file.write_text(json.dumps({"current": "other", "profiles": [profile]}))
    monkeypatch.setattr(cli_profile.ac, "HOME", str(tmp_path))
    (tmp_path / ".aliyun").mkdir()
    file.rename(tmp_path / ".aliyun" / "config.json")
    credentials._provider.cache_clear()
    assert credentials.keys(Access("oss", credentials="profile:work")) == Keys("P", "s", "t")
    with pytest.raises(StorageDeniedError, match="profile 'nobody'"):
        credentials.keys(Access("oss", credentials="profile:nobody"))
    rotated = profile | {"access_key_id": "ROTATED"}
    (tmp_path / ".aliyun" / "config.json").write_text(json.dumps({"current": "other", "profiles": [rotated]}))
    assert credentials.keys(Access("oss", credentials="profile:work")).id == "ROTATED"


def test_role_keys_are_renewed_before_they_expire(oss: Cloud) -> None:
    oss.service.roles[ROLE] = "external"
    access = replace(oss.access, role_arn=ROLE, external_id="external")
    oss.service.session_seconds = 60
    first = credentials.keys(access)
    oss.service.session_seconds = None
    second = credentials.keys(access)
    assert first.token != second.token
    assert second.expires is not None
    assert second.expires - datetime.now(UTC) > timedelta(minutes=55)
    assert credentials.keys(access) is second


def test_a_refusal_by_sts_is_explained_in_plain_words(oss: Cloud) -> None:
    oss.service.roles[ROLE] = "external"
    access = replace(oss.access, role_arn=ROLE, external_id="wrong")
    with pytest.raises(StorageDeniedError, match=r"reader cannot be assumed: .*NoPermission.*describe connection"):
        credentials.keys(access)
    with pytest.raises(StorageDeniedError, match=r"EntityNotExist\.Role"):
        credentials.keys(replace(access, role_arn=f"{ROLE}-of-nobody"))
    with pytest.raises(StorageDeniedError, match="SignatureDoesNotMatch") as error:
        credentials.keys(replace(access, keys=Keys("LTAITEST", "mistyped-secret")))
    assert "mistyped-secret" not in str(error.value)


def test_transient_errors_of_sts_are_those_of_the_store_or_the_queue_that_wants_keys(answers: Answers) -> None:
    access = Access("oss", "cn-hangzhou", answers.url, ROLE, "external", "static", Keys("id", "secret"))
    answers.answer = lambda *_: (503, {}, b'{"Code": "ServiceUnavailable", "Message": "Later."}')
    with pytest.raises(StorageError, match=r"Later\. \(ServiceUnavailable\)") as error:
        credentials.keys(access)
    assert error.value.transient
    with pytest.raises(QueueError, match=r"Later\. \(ServiceUnavailable\)"):
        MnsService(QueueSpec("oss://b/in", name="http://127.0.0.1:1/queues/q", access=access)).describe()
    answers.answer = lambda *_: (502, {}, b"<html>")
    with pytest.raises(StorageError, match="cannot be assumed") as error:
        credentials.keys(access)
    assert error.value.transient


def test_the_region_is_explicit_or_taken_from_the_endpoint_or_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert credentials.region(Access("oss", "oss-cn-beijing")) == "cn-beijing"
    assert credentials.region(Access("oss", endpoint="https://oss-ap-southeast-1-internal.aliyuncs.com")) == "ap-southeast-1"
    assert credentials.region(Access("oss", endpoint="http://127.0.0.1:9100")) is None
    monkeypatch.setenv("OSS_REGION", "cn-shanghai")
    assert credentials.region(Access("oss")) == "cn-shanghai"

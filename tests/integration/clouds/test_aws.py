"""Reaching Amazon: whose keys sign, how role keys are renewed, what its errors mean."""

from __future__ import annotations

import pickle
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.clouds import Answers, Cloud, unused_name
from tests.waiting import eventually
from volstream.errors import DependencyError, QueueError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.aws import credentials
from volstream.files.providers.aws.queue import SqsService
from volstream.files.queues.base import QueueSpec

ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No client that was made in another environment."""
    for cache in (credentials._client, credentials._session, credentials._session_of_keys):
        cache.cache_clear()


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without credentials; the file of its profiles."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path / "config"


def sessions(answers: Answers, lifetimes: list[float]) -> None:
    """Makes the server an STS whose keys live as long as given, one after another."""
    numbers: Iterator[int] = iter(range(100))

    def answer(*_: object) -> tuple[int, dict[str, str], bytes]:
        number = next(numbers)
        ends = (datetime.now(UTC) + timedelta(seconds=lifetimes[number])).strftime("%Y-%m-%dT%H:%M:%SZ")
        keys = (
            f"<Credentials><AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            f"<SessionToken>t</SessionToken><Expiration>{ends}</Expiration></Credentials>"
        )
        results = "".join(f"<{name}Result>{keys}</{name}Result>" for name in ("AssumeRole", "GetSessionToken"))
        return 200, {"Content-Type": "text/xml"}, f"<Response>{results}</Response>".encode()

    answers.answer = answer


def access(answers: Answers, role: str | None = None, token: str | None = None) -> Access:
    return Access("s3", "eu-west-1", answers.url, role, "external", "static", Keys("AKIA", "long-lived", token))


def keys_of(one: Access) -> Keys:
    keys = credentials.for_tasks(one, "s3://b").keys
    assert keys is not None
    return keys


def test_role_keys_are_renewed_before_they_expire(answers: Answers) -> None:
    sessions(answers, [300, 3600])
    one = access(answers, ROLE)
    assert keys_of(one).id == "ASIA1"
    assert keys_of(one) == Keys("ASIA1", "s", "t")
    assert len(answers.log) == 2


def test_long_lived_keys_become_session_keys_and_temporary_ones_are_used_as_is(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions(answers, [3600])
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", answers.url)
    amazons = replace(access(answers), endpoint=None)
    assert keys_of(amazons) == Keys("ASIA0", "s", "t")
    for one in (amazons, access(answers)):
        assert keys_of(replace(one, keys=Keys("AKIA", "long-lived", "mine"))) == Keys("AKIA", "long-lived", "mine")
    assert len(answers.log) == 1


@pytest.mark.parametrize("by", ["connection", "environment"])
def test_tasks_at_another_store_sign_for_a_day_without_the_keys_and_without_sessions(
    answers: Answers, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = access(answers)
    if by == "environment":
        one = replace(one, endpoint=None)
        monkeypatch.setenv("AWS_ENDPOINT_URL", answers.url)
    given = credentials.for_tasks(one, "s3://b")
    assert credentials.for_tasks(given, "s3://b") == given
    assert given.days is not None
    travelled = pickle.dumps(given)
    assert b"long-lived" not in travelled

    seen: list[str] = []

    def answer(_method: str, _path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        seen.append(headers["authorization"].partition("Signature=")[2])
        return 200, {"Content-Length": "0"}, b""

    answers.answer = answer
    asked = {"Bucket": "b", "Key": "k \u00e9"}
    secret = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "long-lived", "region_name": "eu-west-1"}
    config = credentials.client(one, "s3").meta.config.merge(Config(signature_version="s3v4"))
    by_secret = boto3.client("s3", endpoint_url=answers.url, config=config, **secret)

    def same() -> bool:  # if they sign within the same second
        clients = credentials.client(pickle.loads(travelled), "s3"), by_secret
        urls = [client.generate_presigned_url("get_object", Params=asked, ExpiresIn=60) for client in clients]
        for client in clients:
            client.put_object(**asked, Body=b"x", ContentType="text/plain", Metadata={"a": "b"})
        return urls[0] == urls[1] and seen[-2] == seen[-1]

    eventually(same, 10)


def test_keys_come_from_the_environment_or_a_profile(no_credentials: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_credentials.write_text(
        "[profile work]\naws_access_key_id = P\naws_secret_access_key = s\naws_session_token = t\nregion = eu-north-1\n"
    )
    profile = Access("s3", credentials="profile:work")
    assert keys_of(profile).id == "P"
    assert credentials.region(profile) == "eu-north-1"
    for name, value in (("ACCESS_KEY_ID", "E"), ("SECRET_ACCESS_KEY", "s"), ("SESSION_TOKEN", "t")):
        monkeypatch.setenv(f"AWS_{name}", value)
    assert keys_of(Access("s3")).id == "E"


def test_a_client_in_use_signs_with_rotated_keys_of_a_profile(
    no_credentials: Path, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def answer(_method: str, _path: str, headers: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
        seen.append(re.findall(r"Credential=(\w+)/", headers["authorization"])[0])
        return 200, {"Content-Type": "text/xml"}, b"<ListAllMyBucketsResult/>"

    def rotate(key: str) -> None:
        no_credentials.with_name("credentials").write_text(f"[work]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    answers.answer = answer
    access = Access("s3", endpoint=answers.url, credentials="profile:work", region="eu-west-1")
    for key in ("OLD", "ROTATED"):
        rotate(key)
        credentials.client(access, "s3").list_buckets()
    assert seen == ["OLD", "ROTATED"]
    same = credentials.client(access, "s3")
    assert credentials.client(access, "s3") is same, "it is made once for a file as it is"


def test_missing_credentials_say_what_to_do(no_credentials: Path) -> None:
    with pytest.raises(StorageDeniedError, match="AWS_ACCESS_KEY_ID"), credentials.errors("s3://bucket"):
        credentials.for_tasks(Access("s3"), "s3://b")
    with pytest.raises(StorageDeniedError, match=r"nobody.*could not be found"), credentials.errors("s3://bucket"):
        credentials.client(Access("s3", credentials="profile:nobody"), "s3")
    with pytest.raises(StorageDeniedError, match="region"), credentials.errors("the queue q"):
        credentials.client(Access("s3", credentials="static", keys=Keys("a", "b")), "sqs")


def test_other_services_share_the_endpoint_of_a_store_that_is_not_amazons() -> None:
    keys = Keys("a", "b", "c")
    own = Access("s3", "eu-west-1", "https://s3.dualstack.eu-west-1.amazonaws.com", credentials="static", keys=keys)
    foreign = Access("s3", None, "http://minio:9000", credentials="static", keys=keys)
    places = [credentials.client(one, service).meta.endpoint_url for one in (own, foreign) for service in ("s3", "sqs")]
    assert places == [own.endpoint, "https://sqs.eu-west-1.amazonaws.com", foreign.endpoint, foreign.endpoint]
    assert credentials.client(own, "sqs", "http://elsewhere:1").meta.endpoint_url == "http://elsewhere:1"


def test_clients_of_s3_and_sqs_work(sqs: Cloud) -> None:
    client = credentials.client(sqs.access, "sqs")
    url = client.create_queue(QueueName=unused_name())["QueueUrl"]
    assert url in client.list_queues()["QueueUrls"]
    with pytest.raises(QueueError) as error, credentials.errors("the queue x", QueueError, DependencyError):
        client.get_queue_url(QueueName=unused_name())
    assert error.value.transient


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "AccessDenied", StorageDeniedError),
        (400, "InvalidToken", StorageDeniedError),
        (400, "ExpiredToken", StorageError),
        (403, "ExpiredToken", StorageError),
        (404, "NoSuchBucket", StorageError),
        (503, "SlowDown", StorageThrottledError),
        (400, "RequestTimeout", StorageError),
    ],
)
def test_responses_are_classified_as_refusals_or_transient(status: int, code: str, kind: type[StorageError]) -> None:
    said = {"Error": {"Code": code, "Message": "Because."}, "ResponseMetadata": {"HTTPStatusCode": status}}
    with pytest.raises(StorageError, match=rf"s3://b: Because\. \({code}\)") as error, credentials.errors("s3://b"):
        raise ClientError(said, "GetObject")
    assert type(error.value) is kind


def test_an_answer_of_another_kind_of_service_is_an_error_with_what_it_says(answers: Answers) -> None:
    said = b"<Error><Code>NotImplemented</Code><Message>A header implies something.</Message></Error>"
    answers.answer = lambda *_: (501, {"Content-Type": "application/xml"}, said)
    with pytest.raises(StorageError, match=r"The credentials: A header implies something\. \(NotImplemented\)"):
        credentials.for_tasks(access(answers, ROLE), "s3://b")


@pytest.mark.parametrize("said", [b"{}", b'{"Attributes": {"Visibi', b"<html>Log in</html>", b'{"Messages": [{}]}'])
def test_an_answer_of_a_queue_that_is_broken_off_is_an_error_or_empty(answers: Answers, said: bytes) -> None:
    answers.answer = lambda *_: (200, {"Content-Type": "application/x-amz-json-1.0"}, said)
    named = QueueSpec("s3://b", name="q", access=access(answers))
    queue = SqsService(replace(named, name=f"{answers.url}/1/q"))
    for ask, lacks in (SqsService(named).open, "QueueUrl"), (queue.describe, "Attributes"):
        with pytest.raises(QueueError, match=f"the answer has no {lacks}"):
            ask()
    if b"Messages" in said:
        with pytest.raises(QueueError, match="the answer has no MessageId"):
            queue.receive(1, 0)
    else:
        assert queue.receive(1, 0) == []


def test_no_vendor_exception_escapes() -> None:
    kinds = [var for var in vars(botocore.exceptions).values() if isinstance(var, type) and issubclass(var, BotoCoreError)]
    assert len(kinds) > 50
    for kind in kinds:
        made: Any = kind.__new__(kind, "text")  # their constructors all want something else
        with pytest.raises(StorageError), credentials.errors("s3://b"):
            raise made


def _page(chance: random.Random) -> str:
    """A page of a listing as stores write it, more or less."""
    letters = "ab/ +%&<>'\"\u00e9\u2603\U0001f600\t=~.0"
    escaped = chance.random() < 0.7

    def text(value: str) -> str:
        return escape(quote(value, safe="/") if escaped else value)

    parts: list[str] = [f"<EncodingType>{chance.choice(['url', 'url', 'other'])}</EncodingType>"] if escaped else []
    for _ in range(chance.randrange(60)):
        key = "".join(chance.choices(letters, k=chance.randrange(1, 12)))
        members = [
            f"<Key>{text(key)}</Key>",
            f"<Size>{chance.randrange(1 << chance.randrange(1, 60))}</Size>",
            f"<LastModified>{chance.choice(['2026-03-01T10:00:00.000Z', '2026-03-01T10:00:00.123Z', '2026-03-01T10:00:00+02:00'])}</LastModified>",
            f"<ETag>{chance.choice(['&quot;ab&quot;', 'ab', ''])}</ETag>",
            "<StorageClass>STANDARD</StorageClass>",
            "<Owner><ID>x</ID><DisplayName>Key</DisplayName></Owner>",
        ]
        chance.shuffle(members)
        parts.append(f"<Contents>{''.join(members)}</Contents>")
    parts += [
        f"<CommonPrefixes><Prefix>{text(name)}</Prefix></CommonPrefixes>" for name in ("a/", "b c/") if chance.random() < 0.4
    ]
    parts += [
        f"<IsTruncated>{chance.choice(['false', 'true</IsTruncated><NextContinuationToken>n</NextContinuationToken><IsTruncated>true'])}</IsTruncated>"
    ]
    chance.shuffle(parts)
    namespace = chance.choice(["", ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"', ' xmlns="http://other/"'])
    return f'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult{namespace}>{"".join(parts)}</ListBucketResult>'


def test_pages_of_listings_are_read_as_botocore_reads_them(answers: Answers) -> None:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "eu-west-1"}
    theirs = boto3.Session(**keys).client("s3", endpoint_url=answers.url)
    ours = credentials.client(Access("s3", "eu-west-1", answers.url, credentials="static", keys=Keys("a", "b")), "s3")
    odd = ["<Other><Contents><Key>a</Key></Contents></Other>", "<ListBucketResult/>"]
    chance = random.Random(75)
    for content in [*(_page(chance) for _ in range(40)), *odd]:
        body = content.encode()
        answers.answer = lambda *_, body=body: (200, {"Content-Type": "application/xml"}, body)
        read: list[Any] = []
        for client in (theirs, ours):
            page = client.list_objects_v2(Bucket="b")
            objects = [tuple(map(one.get, ("Key", "Size", "LastModified", "ETag"))) for one in page.get("Contents", ())]
            rest = {name: value for name, value in page.items() if name not in ("Contents", "ResponseMetadata")}
            read.append((objects, rest))
        assert read[0] == read[1], content
        if read[0][0] and content not in odd:
            assert "StorageClass" not in page["Contents"][0], "botocore parsed them"


def test_an_error_in_a_page_of_status_200_is_an_error(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    ours = credentials.client(Access("s3", "eu-west-1", answers.url, credentials="static", keys=Keys("a", "b")), "s3")
    answers.answer = lambda *_: (200, {"Content-Type": "application/xml"}, b"<Error><Code>InternalError</Code></Error>")
    with pytest.raises(ClientError, match="InternalError"):
        ours.list_objects_v2(Bucket="b")

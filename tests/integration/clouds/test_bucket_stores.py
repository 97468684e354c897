"""What is specific to buckets: keys no directory can have, pages, service errors, refusals, credentials that travel."""

from __future__ import annotations

import os
import pickle
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
import stamina

from tests.clouds import Answers, Cloud
from tests.proxies import Mood, before
from tests.servers import each
from volstream.base.model.paths import FileInfo, Finding, Selection
from volstream.errors import StorageDeniedError, StorageError
from volstream.files.providers.access import Access, DayKeys, Keys
from volstream.files.providers.alibaba.store import OssStore
from volstream.files.providers.aws import credentials
from volstream.files.providers.aws.store import S3Store
from volstream.files.providers.azure.store import BlobStore
from volstream.files.providers.google.store import GcsStore
from volstream.files.storage import open_store
from volstream.files.storage.base import KeyOrdered, ObjectStore
from volstream.files.storage.buckets import BucketStore

ALL = Selection(ignores=())

ODD = ["/lead", "d//double", "x\x01y", "?q", "#f", "~t", "*'()!", "a%2Fb", "é" * 500, "i/n/side", "<&>"]

XML = {"Content-Type": "application/xml"}


@pytest.fixture
def bucket(cloud: Cloud) -> str:
    name = f"b{uuid.uuid4().hex}"
    cloud.make_bucket(name)
    return name


def store_of(cloud: Cloud, bucket: str, prefix: str = "", page: int = 1000, access: Access | None = None) -> ObjectStore:
    location = f"{cloud.access.provider}://{bucket}{prefix}"
    made: Callable[..., BucketStore] = {"s3": S3Store, "oss": OssStore, "gs": GcsStore, "az": BlobStore}[cloud.access.provider]
    return made(location, access or cloud.access, page=page)


def refused(answers: Answers, status: int, code: str) -> None:
    body = f"<Error><Code>{code}</Code><Message>Because.</Message></Error>".encode()
    answers.answer = lambda method, path, headers: (status, XML, body)


def both(answers: Answers) -> list[ObjectStore]:
    """A store of each provider, on the server whose answers the test gives."""
    keys = Keys("AK", "secret", "token")
    oss = Access("oss", "cn-hangzhou", answers.url, credentials="static", keys=keys)
    return [S3Store("s3://bucket", replace(oss, provider="s3")), OssStore("oss://bucket", oss)]


def test_keys_of_every_kind_are_listed_found_and_read_across_many_pages(cloud: Cloud, bucket: str) -> None:
    # SeaweedFS keeps objects as files: it takes slashes together, and names have 255 bytes at most.
    odd = ["x\x01y", "?q", "#f", "~t", "*'()!", "a%2Fb", "i/n/side", "<&>"] if cloud.server == "seaweedfs" else ODD
    odd = [key for key in odd if cloud.server != "azurite" or key.isprintable()]  # it cannot list others
    for key in odd:
        cloud.put(bucket, f"in/{key}", key.encode())
    cloud.put(bucket, "inside", b"")
    # LocalStack repeats keys where a page ends at one that is encoded in a URL.
    store = store_of(cloud, bucket, "/in", page=1000 if cloud.server == "localstack" else 3)
    infos = [info for info in store.list("", ALL) if isinstance(info, FileInfo)]
    assert [info.relative_path for info in infos] == sorted(odd, key=str.encode)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(store.head, sorted(odd, key=str.encode))) == infos
        assert list(pool.map(lambda key: store.open(key).read(), odd)) == [key.encode() for key in odd]
    if cloud.server != "seaweedfs":
        assert {info.relative_path for info in store.list("/", ALL) if isinstance(info, FileInfo)} == {"/lead"}
    flat = [info.relative_path for info in store.list("", Selection(False, ignores=())) if isinstance(info, FileInfo)]
    assert flat == sorted((key for key in odd if "/" not in key), key=str.encode)
    assert store.head("é" * 600) is None


def test_a_listing_can_be_split_by_sub_prefix_and_resume_after_any_key(cloud: Cloud, bucket: str) -> None:
    paths = ["a", "b/1", "b/2", "b/c/3", "d/4", "e"]
    for path in paths:
        cloud.put(bucket, f"in/{path}", b"")
    store = store_of(cloud, bucket, "/in", page=2)
    assert isinstance(store, KeyOrdered)

    def listed(prefix: str, after: str, *, deep: bool, recursive: bool = True) -> list[str]:
        found = store.list_after(prefix, Selection(recursive), after, deep=deep)
        return [one.relative_path for one in found if isinstance(one, FileInfo)]

    assert [list(store.prefixes(prefix)) for prefix in ("", "b/", "d/")] == [["b/", "d/"], ["b/c/"], []]
    assert [listed("", after, deep=True) for after in ("", "b/1", "e")] == [paths, paths[2:], []]
    assert listed("", "", deep=False) == ["a", "e"]
    assert listed("", "a", deep=False) == ["e"]
    assert listed("b/", "b/1", deep=True) == ["b/2", "b/c/3"]
    assert listed("", "", deep=True, recursive=False) == ["a", "e"]
    assert listed("b/", "", deep=True, recursive=False) == []


def test_a_directory_marker_is_not_a_file_and_with_content_is_a_finding(cloud: Cloud, bucket: str) -> None:
    cloud.put(bucket, "in/", b"")
    cloud.put(bucket, "in/marker/", b"")
    cloud.put(bucket, "in/odd/", b"content")
    cloud.put(bucket, "in/.ignored/", b"content")
    assert [found.path for found in store_of(cloud, bucket, "/in").list("", Selection()) if isinstance(found, Finding)] == [
        "odd/"
    ]


def test_an_oss_key_that_cannot_be_in_a_url_is_a_finding(oss: Cloud) -> None:
    oss.make_bucket("dots")
    oss.put("dots", "a/../b", b"")
    store = store_of(oss, "dots")
    assert [found.path for found in store.list("", ALL) if isinstance(found, Finding)] == ["a/../b"]
    assert store.head("a/../b") is None


def test_compressed_objects_are_read_as_stored(answers: Answers) -> None:
    headers = {"ETag": '"e"', "Content-Encoding": "gzip", "Last-Modified": "Sat, 21 Nov 2026 14:00:00 GMT"}
    answers.answer = lambda method, path, asked: (200, headers, b"\x1f\x8b not really")
    for store in both(answers):
        assert store.open("a").read() == b"\x1f\x8b not really"


def test_a_full_read_is_one_request_and_a_partial_read_one_more(answers: Answers) -> None:
    content = bytes(range(256)) * (3 << 12)

    def answer(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        start = int(headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        return 206 if start else 200, {"ETag": '"e"'}, content[start:]

    answers.answer = answer
    for store in both(answers):
        answers.log.clear()
        assert store.open("a").read() == content
        assert answers.log == ["GET /bucket/a"]
        with store.open("a") as file:
            file.seek(len(content) - 5)
            assert file.read() == content[-5:]
        assert len(answers.log) == 3


def test_an_interrupted_read_resumes_where_it_broke_off(answers: Answers) -> None:
    content = bytes(range(256)) * 100

    def answer(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        start = int(headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        left = str(len(content) - start)
        return 206 if start else 200, {"ETag": '"e"', "Content-Length": left}, content[start : start + 10_000]

    answers.answer = answer
    for store in both(answers):
        answers.log.clear()
        assert store.open("a").read() == content
        assert len(answers.log) == 3


def test_an_object_replaced_while_it_is_read_is_an_error(cloud: Cloud, bucket: str) -> None:
    cloud.put(bucket, "a", b"1" * (3 << 20))
    with store_of(cloud, bucket).open("a") as file:
        file.read(1)
        cloud.put(bucket, "a", b"2" * (3 << 20))
        file.seek(2 << 20)
        with pytest.raises(StorageError, match="changed while it was being read"):
            file.read()


def test_throttling_and_service_errors_are_retried(answers: Answers) -> None:
    headers = {"ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 14:00:00 GMT", "Content-Length": "3"}
    for store in both(answers):
        pending = [(503, XML, b"<Error><Code>SlowDown</Code></Error>"), None, (200, headers, b"")]
        answers.answer = lambda method, path, asked, pending=pending: pending.pop(0)  # type: ignore[misc]
        info = store.head("a")
        assert info is not None
        assert (info.size, info.last_modified_time) == (3, datetime(2026, 11, 21, 14, tzinfo=UTC))
        assert not pending


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
def test_a_refusal_is_permanent_and_reveals_no_secret(answers: Answers, code: str) -> None:
    refused(answers, 403, code)
    for store in both(answers):
        with pytest.raises(StorageDeniedError) as listing:
            list(store.list("", ALL))
        assert code in listing.value.message
        assert "describe connection" in listing.value.remedy or "The key is wrong" in listing.value.remedy
        with pytest.raises(StorageDeniedError):
            store.head("a")
        with pytest.raises(StorageDeniedError):
            store.open("a")
        assert "secret" not in str(listing.value)
        assert "token" not in str(listing.value)


def test_with_prefix_only_permission_a_listing_reveals_that_a_key_is_gone(answers: Answers) -> None:
    page = b"<ListBucketResult><IsTruncated>false</IsTruncated>%s</ListBucketResult>"
    longer = b"<Contents><Key>p/ab</Key><LastModified>2026-11-21T14:00:00Z</LastModified><ETag>e</ETag><Size>1</Size></Contents>"
    pages = [page % b"", page % longer, page % longer.replace(b"ab", b"a")]
    answers.answer = lambda method, path, asked: (403, {}, b"") if method == "HEAD" else (200, XML, pages[0])
    store = S3Store("s3://bucket/p", Access("s3", "r", answers.url, credentials="static", keys=Keys("AK", "s", "t")))
    assert store.head("a") is None
    del pages[0]
    assert store.head("a") is None
    del pages[0]
    with pytest.raises(StorageDeniedError):
        store.head("a")


def test_expired_keys_are_a_transient_error(answers: Answers) -> None:
    refused(answers, 400, "ExpiredToken")
    with pytest.raises(StorageError) as s3:
        list(both(answers)[0].list("", ALL))
    refused(answers, 403, "SecurityTokenExpired")
    with pytest.raises(StorageError) as oss:
        list(both(answers)[1].list("", ALL))
    assert s3.value.transient
    assert oss.value.transient


def test_an_unreachable_server_is_a_transient_error() -> None:
    keys = Keys("AK", "secret", "token")
    store = OssStore("oss://bucket", Access("oss", "cn-hangzhou", "http://127.0.0.1:1", credentials="static", keys=keys))
    with stamina.set_testing(True, attempts=1), pytest.raises(StorageError) as error:
        store.head("a")
    assert error.value.transient


def test_a_store_that_answers_with_other_keys_than_were_asked_for_is_an_error(answers: Answers) -> None:
    listing = (
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>a/b/x.txt</Key>"
        b'<LastModified>2026-11-21T14:00:00Z</LastModified><ETag>"e"</ETag><Size>3</Size></Contents></ListBucketResult>'
    )
    answers.answer = lambda method, path, asked: (200, XML, listing)
    store = S3Store("s3://bucket/a//b", Access("s3", "r", answers.url, credentials="static", keys=Keys("AK", "s", "t")))
    with pytest.raises(StorageError, match=r"below 'a//b/' contains the key 'a/b/x\.txt'") as error:
        list(store.list("", ALL))
    assert "slashes" in error.value.remedy


@pytest.mark.parametrize("page", [b"", b"<html><body>Sign in.</body></html>"])
def test_a_page_of_a_proxy_is_an_error_and_no_empty_bucket_or_object(answers: Answers, page: bytes) -> None:
    answers.answer = lambda method, path, asked: (200, {"Content-Type": "text/html"}, page)
    requests: list[Callable[[ObjectStore], object]] = [
        lambda store: list(store.list("", ALL)),
        lambda store: store.head("a"),
        lambda store: store.open("a").read(),
    ]
    with stamina.set_testing(True, attempts=1):
        for store in both(answers):
            for request in requests:
                with pytest.raises(StorageError):
                    request(store)


def test_volumes_in_one_bucket_share_the_checks_that_it_is_there(answers: Answers) -> None:
    answers.answer = lambda method, path, asked: (
        200,
        XML,
        b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
    )
    access = Access("s3", "r", answers.url, credentials="static", keys=Keys("AK", "s", "t"))
    for prefix in "abc":
        S3Store(f"s3://bucket/{prefix}", access).check()
    assert len(answers.log) == 1
    S3Store("s3://other", access).check()
    assert len(answers.log) == 2
    refused(answers, 404, "NoSuchBucket")
    for _ in range(2):
        with pytest.raises(StorageError):
            S3Store("s3://missing", access).check()


def test_s3_keys_with_a_newline_can_be_read_and_listed(answers: Answers) -> None:
    listing = (
        b"<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated><Contents><Key>a%0A+b%01</Key>"
        b'<LastModified>2026-11-21T14:00:00.123Z</LastModified><ETag>"e"</ETag><Size>3</Size></Contents></ListBucketResult>'
    )
    said = {"ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 14:00:00 GMT", "Content-Length": "3"}
    answers.answer = lambda method, path, asked: (200, said, b"") if method == "HEAD" else (200, XML, listing)
    store = both(answers)[0]
    assert list(store.list("", ALL)) == [store.head("a\n b\x01")]
    assert answers.log[-1] == "HEAD /bucket/a%0A%20b%01"


@pytest.mark.parametrize("cloud", each("moto", "oss", "localstack", "seaweedfs"), indirect=True)  # those that take keys
def test_no_long_lived_secret_travels_with_a_store(cloud: Cloud, bucket: str) -> None:
    cloud.put(bucket, "a", b"x")
    secret = cloud.access.keys.secret.encode() if cloud.access.keys else b""
    travelled = pickle.dumps(store_of(cloud, bucket))
    again = pickle.dumps(pickle.loads(travelled))
    assert b"long-lived" in secret
    assert secret not in travelled
    assert secret not in again
    assert pickle.loads(again).open("a").read() == b"x"
    assert secret.decode() not in repr(cloud.access)


@pytest.mark.parametrize("cloud", each("moto", "oss", "localstack"), indirect=True)  # those that have roles
def test_role_keys_travel_with_a_store_but_not_the_keys_that_assumed_the_role(cloud: Cloud, bucket: str) -> None:
    arn = "arn:aws:iam::123456789012:role/reader"
    if cloud.service is not None:
        arn = "acs:ram::1234567890:role/reader"
        cloud.service.roles[arn] = "said-to-sts"
    access = replace(cloud.access, role_arn=arn, external_id="said-to-sts")
    travelled = pickle.dumps(store_of(cloud, bucket, access=access))
    assert b"long-lived" not in travelled
    assert b"said-to-sts" not in travelled
    assert pickle.loads(travelled).head("a") is None


def test_temporary_keys_travel_unchanged() -> None:
    keys = Keys("ASIA", "passing", "token", datetime.now(UTC))
    for scheme in ("s3", "oss"):
        store = open_store(f"{scheme}://bucket", Access(scheme, "cn-hangzhou", credentials="static", keys=keys))
        assert b"passing" in pickle.dumps(store)


def test_daily_signing_keys_cannot_sign_on_a_later_day(oss: Cloud) -> None:
    days = DayKeys("LTAITEST", (("20260101", b"key"),))
    assert "key" not in repr(days).replace("DayKeys", "")
    with pytest.raises(StorageError, match="have expired") as error:
        OssStore("oss://bucket", replace(oss.access, keys=None, days=days)).head("a")
    assert error.value.transient


def test_threads_can_share_a_store(s3: Cloud) -> None:
    s3.make_bucket("shared")
    s3.put("shared", "a", b"x")
    store, barrier = store_of(s3, "shared"), threading.Barrier(4)

    def read(_: int) -> bytes:
        barrier.wait(10)
        with store.open("a") as file:
            return file.read()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [b"x"] * 4
    assert credentials.client(s3.access, "s3") is credentials.client(replace(s3.access), "s3")


@pytest.mark.long
@pytest.mark.parametrize("mood", [mood for mood in Mood if mood is not Mood.GOOD])
def test_a_content_is_read_whole_or_not_at_all_however_answers_break_off(cloud: Cloud, bucket: str, mood: Mood) -> None:
    content = os.urandom(3 << 20)
    cloud.put(bucket, "a", content)
    with before(str(cloud.access.endpoint), delay=0.01) as proxy:
        store = store_of(cloud, bucket, access=replace(cloud.access, endpoint=proxy.url))
        with store.open("a") as file:
            begun, rest = file.read(1000), b""
            proxy.mood = mood
            timer = threading.Timer(1, setattr, (proxy, "mood", Mood.GOOD))
            timer.start()
            with suppress(StorageError):
                rest = file.read()
        timer.join()
        assert not rest or begun + rest == content
        with store.open("a") as file:
            assert file.read() == content

"""Reaching Azure: which account, what tasks get, who signs URLs, what refusals say, and accounts with a hierarchical namespace."""

from __future__ import annotations

import io
import json
import pickle
import traceback
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.storage.blob import UserDelegationKey

from tests.clouds import Answers, Cloud, azure_queue, unused_name
from tests.ports import free_ports
from tests.servers import AZURE_KEY
from volstream.base.model.paths import FileInfo, Selection
from volstream.errors import (
    DependencyError,
    InvalidValueError,
    QueueError,
    StorageDeniedError,
    StorageError,
    StorageThrottledError,
)
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.azure import credentials
from volstream.files.providers.azure.queue import StorageQueueService, address
from volstream.files.providers.azure.store import BlobStore, DataLakeStore
from volstream.files.queues import open_queue
from volstream.files.queues.base import QueueSettings, QueueSpec
from volstream.files.storage import normalise_location, open_store
from volstream.files.storage.base import HasDetails, KeyOrdered, TakesOutputs
from volstream.files.storage.buckets import Found

ALL = Selection(ignores=())

EMPTY = b"<EnumerationResults><Blobs/><NextMarker/></EnumerationResults>"

HOST = "devstoreaccount1.dfs.core.windows.net"


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCOUNT", "ACCOUNT_NAME", "KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)


def access(answers: Answers) -> Access:
    return Access("az", endpoint=answers.url, credentials="static", keys=Keys("account", AZURE_KEY))


def test_the_account_is_in_the_location_or_the_endpoint_or_the_keys_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(location: str, **options: Any) -> tuple[str, str]:
        return credentials.account(Access("az", **options), normalise_location(location))

    keys = Keys("fromkeys", "")
    assert found("abfss://con@myaccount.dfs.core.windows.net/p/") == ("myaccount", "https://myaccount.blob.core.windows.net")
    assert found("az://con@mine.blob.core.chinacloudapi.cn") == ("mine", "https://mine.blob.core.chinacloudapi.cn")
    own = "https://other.blob.core.windows.net"
    assert found("az://con/p", endpoint=own) == ("other", own)
    assert found("abfss://con@lake.dfs.core.windows.net", endpoint=own) == ("lake", "https://lake.blob.core.windows.net")
    assert found("az://con/p", credentials="static", keys=keys) == ("fromkeys", "https://fromkeys.blob.core.windows.net")
    emulator = "http://127.0.0.1:10000"
    assert found("az://con", endpoint=emulator, credentials="static", keys=keys) == ("fromkeys", f"{emulator}/fromkeys")
    with pytest.raises(InvalidValueError, match=r"account of az://con is unknown.*--endpoint"):
        found("az://con")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", "fromenv")
    assert found("az://con") == ("fromenv", "https://fromenv.blob.core.windows.net")


@pytest.mark.parametrize(
    "location",
    [
        "az://ab",
        "az://UPPER",
        "abfss://con@host",
        "az://con@account.queue.core.windows.net",
        "az://a@b@c",
        "abfss://con@account.dfs.core.windows.net.evil.com",
        "az://con@account.blob.core.windows.net.evil.com",
    ],
)
def test_what_names_no_container_is_refused_and_shown_in_full(location: str) -> None:
    with pytest.raises(InvalidValueError, match="does not name a bucket") as error:
        normalise_location(location)
    assert location.partition("://")[2] in str(error.value)


@pytest.mark.long
def test_tasks_get_a_signature_for_one_container_and_never_the_key(azurite: Cloud) -> None:
    name, other = unused_name(), unused_name()
    for container in (name, other):
        azurite.make_bucket(container)
        azurite.put(container, "a", b"x")
    travelled = pickle.dumps(open_store(f"az://{name}", azurite.access))
    assert AZURE_KEY.encode() not in travelled
    store = pickle.loads(travelled)
    assert store.open("a").read() == b"x"
    assert pickle.dumps(store) == travelled
    given = credentials.for_tasks(azurite.access, f"az://{name}")
    assert credentials.for_tasks(azurite.access, f"az://{name}") is given
    assert given.keys is not None
    assert given.keys.expires is not None
    assert given.keys.expires - datetime.now(UTC) > timedelta(hours=23)
    assert str(given.keys.token) not in repr(given)
    with pytest.raises(StorageDeniedError):
        open_store(f"az://{other}", given).head("a")


@pytest.mark.long
def test_the_key_of_an_account_signs_urls_and_a_tasks_signature_does_not(azurite: Cloud) -> None:
    name = unused_name()
    azurite.make_bucket(name)
    azurite.put(name, "in/ü+a b.txt", b"content")
    store = open_store(f"az://{name}/in", azurite.access)
    assert isinstance(store, HasDetails)
    with urllib.request.urlopen(store.presigned_url("ü+a b.txt", 60)) as reply:
        assert reply.read() == b"content"
    with pytest.raises(InvalidValueError, match="shared access signature cannot sign"):
        pickle.loads(pickle.dumps(store)).presigned_url("a", 60)


def test_the_delegation_key_of_an_identity_travels_with_its_signature_and_signs_urls() -> None:
    key = UserDelegationKey()  # type: ignore[no-untyped-call]  # as the SDK has it
    key.signed_oid, key.signed_tid, key.signed_service, key.value = "oid", "tid", "b", AZURE_KEY
    key.signed_start, key.signed_expiry, key.signed_version = "2026-11-27T00:00:00Z", "2026-11-28T00:00:00Z", "2026-02-06"
    keys = Keys("account", json.dumps(vars(key)), "sig=of-the-task", datetime.now(UTC) + timedelta(days=1))
    store = pickle.loads(pickle.dumps(BlobStore("az://container/in", Access("az", credentials="static", keys=keys))))
    url = store.presigned_url("a b", 60)
    assert url.startswith("https://account.blob.core.windows.net/container/in/a%20b?")
    assert "skoid=oid" in url
    assert "sig=of-the-task" not in url
    assert AZURE_KEY not in repr(store._access)


@pytest.mark.long
def test_metadata_and_tags_of_a_blob_are_fetched(azurite: Cloud) -> None:
    name = unused_name()
    azurite.make_bucket(name)
    blob = azurite.service.get_blob_client(name, "ü a")
    blob.upload_blob(b"x", metadata={"camera": "left"}, tags={"a": "1"})
    store = open_store(f"az://{name}", azurite.access)
    assert isinstance(store, HasDetails)
    assert store.details("ü a").metadata == {"camera": "left"}
    assert store.tags("ü a") == {"a": "1"}


def test_a_users_signature_travels_alone_and_signs_nothing() -> None:
    keys = Keys("account", AZURE_KEY, "sig=x")
    travelled = pickle.dumps(BlobStore("az://container", Access("az", credentials="static", keys=keys)))
    assert AZURE_KEY.encode() not in travelled
    assert b"sig=x" in travelled
    with pytest.raises(InvalidValueError, match="cannot sign URLs"):
        BlobStore("az://container", Access("az", credentials="static", keys=keys)).presigned_url("a", 60)


def test_a_server_that_is_not_azures_gets_no_tokens(answers: Answers) -> None:
    with pytest.raises(StorageDeniedError, match="gets no tokens of Azure"):
        BlobStore("az://container@account.blob.core.windows.net", Access("az", endpoint=answers.url)).head("a")
    assert not answers.log


def test_a_signature_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests that are refused, cut or sent nowhere: their addresses have it."""
    monkeypatch.setattr(credentials, "_BACKOFF_SECONDS", 0)
    keys = Keys("account", "", "sv=2024&sp=rwdl&sig=SECRET%3D")
    near = Access("az", endpoint=f"http://127.0.0.1:{free_ports(1)[0]}", credentials="static", keys=keys)
    store = BlobStore("az://container/in", near)
    queue = open_queue("storagequeue", QueueSpec("az://container", name=f"{near.endpoint}/account/events", access=near))
    asked: list[Callable[[], object]] = [
        lambda: [*store.list("", ALL)],
        lambda: store.head("a"),
        lambda: store.open("a"),
        lambda: store.write("a", b"x"),
        lambda: store.remove("a"),
        queue.start,
    ]
    for ask in asked:
        with pytest.raises(DependencyError) as error:
            ask()
        assert "SECRET" not in "".join(traceback.format_exception(error.value))
        assert "container" in str(error.value) or "events" in str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://account.blob.core.windows.net.evil.com", "is not the connection's server"),
        ("https://account.blob.core.evil", "is not the connection's server"),
        ("http://account.blob.core.windows.net", "Write https://"),
        ("https://other.blob.core.windows.net", "not of other"),
        ("http://10.0.0.7:10000/account", "Write https://"),
    ],
)
@pytest.mark.parametrize("token", [None, "sig=x"])
def test_only_the_connections_server_gets_its_keys(url: str, said: str, token: str | None) -> None:
    keys = Keys("account", AZURE_KEY, token)
    with pytest.raises(StorageDeniedError, match=said):
        credentials.credential(Access("az", credentials="static", keys=keys), url)
    assert credentials.credential(Access("az", credentials="static", keys=keys), "https://account.queue.core.windows.net")
    own = Access("az", endpoint="https://blobs.mine.example", credentials="static", keys=keys)
    assert credentials.credential(own, "https://blobs.mine.example/account")


def test_only_azures_hosts_get_tokens() -> None:
    for url in ("https://account.queue.core.windows.net.evil.com", "https://evil.com", "https://account.blob.core.evil"):
        with pytest.raises(StorageDeniedError, match="gets no tokens of Azure"):
            credentials.credential(Access("az"), url)


def test_a_folder_that_no_blob_can_be_in_is_empty_without_a_request(answers: Answers) -> None:
    store = BlobStore("az://container/in", access(answers))
    for prefix in ("a\x01/", "a\\b/", "../", f"{'x' * 1100}/", "\uffff/"):
        assert [*store.list(prefix, ALL)] == []
    assert not answers.log


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        (403, "AuthorizationPermissionMismatch", StorageDeniedError, "describe connection"),
        (401, "NoAuthenticationInformation", StorageDeniedError, "describe connection"),
        (404, "ContainerNotFound", StorageError, "Create the container"),
        (503, "ServerBusy", StorageThrottledError, "ServerBusy"),
        (500, "InternalError", StorageError, "InternalError"),
        (409, "ContainerBeingDeleted", StorageError, "ContainerBeingDeleted"),
    ],
)
def test_refusals_of_the_store_are_mapped(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, status: int, code: str, kind: type[StorageError], said: str
) -> None:
    monkeypatch.setattr(credentials, "_BACKOFF_SECONDS", 0)
    answers.answer = lambda *_: (status, {"x-ms-error-code": code}, b"")
    store = BlobStore("az://container/in", access(answers))
    for ask in (lambda: [*store.list("", ALL)], lambda: store.head("a"), lambda: store.write("a", b"x")):
        with pytest.raises(kind, match=said) as error:
            ask()
        assert type(error.value) is kind
        assert "az://container/in/" in str(error.value)


def test_the_signature_of_a_task_that_has_ended_is_a_temporary_problem(answers: Answers) -> None:
    answers.answer = lambda *_: (403, {"x-ms-error-code": "AuthenticationFailed"}, b"")
    keys = Keys("account", "", "sig=x", datetime.now(UTC) - timedelta(seconds=1))
    with pytest.raises(StorageError, match="has expired") as error:
        BlobStore("az://container", replace(access(answers), keys=keys)).head("a")
    assert error.value.transient


def test_a_listing_out_of_order_is_an_error_that_names_the_location_to_use(answers: Answers) -> None:
    form = "<Blob><Name>{}</Name><Properties><Last-Modified>Fri, 27 Nov 2026 14:00:00 GMT</Last-Modified><Etag>e</Etag>"
    form += "<Content-Length>1</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
    blobs = "".join(map(form.format, ("a/b", "a.txt")))
    page = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()
    answers.answer = lambda *_: (200, {"Content-Type": "application/xml"}, page)
    with pytest.raises(StorageError, match=r"abfss://container@account\.dfs\.core\.windows\.net/"):
        list(BlobStore("az://container", access(answers)).list("", ALL))
    lake = DataLakeStore("az://container@account.dfs.core.windows.net", access(answers))
    assert [info.relative_path for info in lake.list("", ALL) if isinstance(info, FileInfo)] == ["a/b", "a.txt"]


@pytest.mark.parametrize("headers", [{"Content-MD5": "i+d", "ETag": "e"}, {"Content-Length": "3"}])
def test_an_answer_that_lacks_a_part_is_a_temporary_problem(answers: Answers, headers: Mapping[str, str]) -> None:
    answers.answer = lambda *_: (200, headers, b"")
    with pytest.raises(StorageError) as error:
        BlobStore("az://container", access(answers)).head("a")
    assert error.value.transient


@pytest.mark.long
def test_folders_of_a_hierarchical_namespace_are_no_files_and_go_with_what_is_removed(azurite: Cloud) -> None:
    name = unused_name()
    azurite.make_bucket(name)
    for folder in ("a", "a/b", "empty"):
        azurite.service.get_blob_client(name, folder).upload_blob(b"", metadata={"hdi_isfolder": "true"})
    azurite.put(name, "a/b/file", b"x")
    azurite.put(name, "other", b"x")
    store = open_store(f"az://{name}@{HOST}", azurite.access)
    assert not isinstance(store, KeyOrdered)
    assert isinstance(open_store(f"az://{name}", azurite.access), KeyOrdered)
    assert [entry.relative_path for entry in store.list("", ALL) if isinstance(entry, FileInfo)] == ["a/b/file", "other"]
    assert store.head("a") is None
    assert isinstance(store, TakesOutputs)
    assert isinstance(store, HasDetails)
    assert store.put("a/b/c", io.BytesIO(b"xy"), None)[0] == 2
    store.remove_folder("a")
    container = azurite.service.get_container_client(name)
    assert [*container.list_blob_names()] == ["empty", "other"]


def test_a_namespace_without_tags_has_none(answers: Answers) -> None:
    refusal = {"x-ms-error-code": "FeatureNotYetSupportedForHierarchicalNamespaceAccounts"}

    def answer(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        return 409, refusal, b""

    answers.answer = answer
    assert DataLakeStore("az://container@account.dfs.core.windows.net", access(answers)).tags("a") == {}
    with pytest.raises(StorageError):
        BlobStore("az://container", access(answers)).tags("a")


@pytest.mark.long
def test_what_replaces_a_blob_while_it_is_moved_stays(azurite: Cloud) -> None:
    class Overtaken(BlobStore):
        def _copy(self, path: str, to: str, found: Found, replaces: bool) -> str:
            etag = super()._copy(path, to, found, replaces)
            azurite.put(self._place.bucket, path, b"newer")
            return etag

    name = unused_name()
    azurite.make_bucket(name)
    store = Overtaken(f"az://{name}", azurite.access)
    azurite.put(name, "a", b"older")
    assert store.move("a", "b") is not None
    assert (store.open("a").read(), store.open("b").read()) == (b"newer", b"older")


@pytest.mark.long
def test_a_path_with_a_backslash_is_not_the_blob_with_a_slash(azurite: Cloud) -> None:
    name = unused_name()
    azurite.make_bucket(name)
    azurite.put(name, "a\\b", b"x")
    store = open_store(f"az://{name}", azurite.access)
    assert [entry.relative_path for entry in store.list("", ALL) if isinstance(entry, FileInfo)] == ["a/b"]
    assert store.head("a/b") is not None
    assert store.head("a\\b") is None
    with pytest.raises(FileNotFoundError):
        store.open("a\\b")
    assert isinstance(store, TakesOutputs)
    assert store.obstacle("a\\c") == "cannot be a key"


def test_a_queue_is_given_by_url_or_by_name_in_the_volumes_account() -> None:
    spec = QueueSpec("az://container@account.dfs.core.windows.net/in", name="events", access=Access("az"))
    assert address(spec) == "https://account.queue.core.windows.net/events"
    url = "https://other.queue.core.windows.net/events"
    assert address(replace(spec, name=url)) == url
    for wrong in ("Events", "a", "https://other.queue.core.windows.net/", f"{url}?sig=secret"):
        with pytest.raises(InvalidValueError, match="is not the address of a Storage Queue") as error:
            address(replace(spec, name=wrong))
        assert "secret" not in str(error.value)
    with pytest.raises(InvalidValueError, match="is not the address"):
        address(replace(spec, access=Access("az", endpoint="http://127.0.0.1:10000")))


@pytest.mark.long
def test_a_message_stays_with_who_received_it_until_it_is_returned_or_deleted(azurite: Cloud) -> None:
    url = azure_queue(azurite, unused_name())
    settings = QueueSettings(visibility_seconds=60)
    service = StorageQueueService(QueueSpec("az://container", settings=settings, name=url, access=azurite.access))
    assert service.open() == 60
    service._client.send_message("ü")
    [first] = service.receive(10, 5)
    assert first.body == "ü".encode()
    assert service.receive(10, 0.2) == []
    kept = service.keep([first.handle], 30)[first.handle]
    assert kept not in (None, first.handle)
    assert service.keep([first.handle], 30) == {first.handle: None}, "its handle is another one now"
    assert service.keep([str(kept)], 0)[str(kept)] is not None
    [again] = service.receive(10, 5)
    assert again.id == first.id
    assert service.delete([first.handle, again.handle]) == ()
    assert service.delete([again.handle]) == ()
    with pytest.raises(QueueError, match="Create the queue"):
        StorageQueueService(QueueSpec("az://container", name=f"{url}-missing", access=azurite.access)).open()

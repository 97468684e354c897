"""Reaching Google: where credentials come from, what tasks get, who signs URLs, what refusals say, and a bucket that notifies."""

from __future__ import annotations

import json
import pickle
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.clouds import Answers, Cloud, PubSub, unused_name
from tests.servers import fake_gcs
from tests.waiting import eventually
from volstream.base.model.hints import ObjectHint
from volstream.base.model.paths import Selection
from volstream.base.model.work import CheckState
from volstream.errors import InvalidValueError, QueueError, StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.providers.access import Access, Keys
from volstream.files.providers.base import BucketPlace, provider_of
from volstream.files.providers.google import credentials
from volstream.files.providers.google.queue import PubSubService, address
from volstream.files.providers.google.store import GcsStore, client
from volstream.files.queues import open_queue
from volstream.files.queues.base import Message, QueueSettings, QueueSpec
from volstream.files.storage.buckets import Found

ACCOUNT = "volstream@my-project.iam.gserviceaccount.com"

JSON = {"Content-Type": "application/json"}

QUIET = {"GOOGLE_APPLICATION_CREDENTIALS": "", "GOOGLE_CLOUD_PROJECT": "", "NO_GCE_CHECK": "true"}


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {**QUIET, "CLOUDSDK_CONFIG": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def secret() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return made.private_bytes(*form).decode()


@pytest.fixture
def profile(answers: Answers, secret: str, tmp_path: Path) -> str:
    """A connection's credentials: the key of a service account whose tokens the test's server gives."""
    file = tmp_path / "key.json"
    key = {"type": "service_account", "client_email": ACCOUNT, "private_key": secret, "project_id": "from-the-key"}
    file.write_text(json.dumps({**key, "token_uri": f"{answers.url}/token"}))
    answers.answer = lambda *_: (200, JSON, b'{"access_token": "short-lived", "expires_in": 3600}')
    return f"profile:{file}"


def test_tasks_get_a_token_and_never_the_key(answers: Answers, profile: str, secret: str) -> None:
    access = Access("gs", credentials=profile)
    given = credentials.for_tasks(access, "gs://bucket")
    assert given.keys is not None
    assert (given.credentials, given.keys.id, given.keys.token) == ("static", ACCOUNT, "short-lived")
    assert given.keys.expires is not None
    assert credentials.for_tasks(given, "gs://bucket") == given
    travelled = pickle.dumps(GcsStore("gs://bucket", access))
    assert secret.encode()[100:200] not in travelled
    assert b"key.json" not in travelled
    assert b"short-lived" in travelled
    assert "short-lived" not in repr(given)
    assert answers.log == ["POST /token"], "the token is kept"


def test_a_key_that_was_replaced_in_its_file_is_read_again(answers: Answers, profile: str) -> None:
    access, file = Access("gs", credentials=profile), Path(profile.removeprefix("profile:"))
    before = client(access)
    assert client(access) is before
    assert credentials.email(credentials.credentials(access)) == ACCOUNT
    file.write_text(file.read_text().replace(ACCOUNT, f"rotated-{ACCOUNT}"))
    assert client(access) is not before
    assert credentials.email(credentials.credentials(access)) == f"rotated-{ACCOUNT}"


def test_a_role_is_a_service_account_that_the_credentials_act_as(answers: Answers, profile: str) -> None:
    role = "other@their-project.iam.gserviceaccount.com"
    asked: list[str] = []

    def answer(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        asked.append(f"{path} {headers.get('authorization', '')}")
        if path == "/token":
            return 200, JSON, b'{"access_token": "source", "expires_in": 3600}'
        return 200, JSON, b'{"accessToken": "assumed", "expireTime": "2099-01-01T00:00:00Z"}'

    answers.answer = answer
    access = Access("gs", endpoint=answers.url, role_arn=role, credentials=profile)
    keys = credentials.for_tasks(access, "gs://bucket").keys
    assert keys is not None
    assert (keys.id, keys.token) == (role, "assumed")
    assert asked[-1] == f"/v1/projects/-/serviceAccounts/{role}:generateAccessToken Bearer source"
    assert credentials.project(access) == "their-project"


def test_a_server_that_is_not_googles_gets_no_token_unless_a_profile_names_it(answers: Answers, profile: str) -> None:
    sent: list[str] = []

    def answer(method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes]:
        sent.append(headers.get("authorization", ""))
        return 200, JSON, b'{"access_token": "short-lived", "expires_in": 3600, "items": []}'

    answers.answer = answer
    for source in ("env", profile):
        GcsStore("gs://bucket", Access("gs", endpoint=answers.url, credentials=source))._check_bucket()
    assert sent == ["", "", "Bearer short-lived"]


def test_no_token_is_sent_unencrypted(profile: str) -> None:
    for endpoint in ("http://storage.googleapis.com", "http://10.0.0.7"):
        with pytest.raises(StorageDeniedError, match="Write https://"):
            GcsStore("gs://bucket", Access("gs", endpoint=endpoint, credentials=profile)).head("a")
    assert not credentials.is_own("http://storage.googleapis.com")


def test_what_is_no_key_at_google_is_no_file(answers: Answers) -> None:
    """The packages would resolve these like paths, and take the bucket for an object."""
    answers.answer = lambda *_: (200, JSON, b'{"items": []}')
    store = GcsStore("gs://bucket", Access("gs", endpoint=answers.url))
    for key in (".", ".."):
        assert store.head(key) is None
        with pytest.raises(FileNotFoundError):
            store.open(key)
    assert all(line.startswith("GET /storage/v1/b/bucket/o?") for line in answers.log), "listings of the bucket"
    with pytest.raises(StorageError, match="incomplete"):
        store.head("a")


def test_missing_credentials_are_explained(tmp_path: Path) -> None:
    with pytest.raises(StorageDeniedError, match=r"no Google credentials .*GOOGLE_APPLICATION_CREDENTIALS"):
        GcsStore("gs://bucket", Access("gs")).head("a")
    for number, text in enumerate(("", "[]", "{}", '{"type": "authorized_user"}', '{"type": "service_account"}')):
        (tmp_path / f"{number}.json").write_text(text)
    for name in ("none", *range(5)):
        with pytest.raises(StorageDeniedError, match=rf"no Google credentials in .*/{name}\.json: "):
            GcsStore("gs://bucket", Access("gs", credentials=f"profile:{tmp_path}/{name}.json")).head("a")


def test_the_key_of_a_service_account_signs_urls(gcs: Cloud, profile: str) -> None:
    bucket = unused_name()
    gcs.make_bucket(bucket)
    gcs.put(bucket, "in/ü a.txt", b"content")
    store = GcsStore(f"gs://{bucket}/in", replace(gcs.access, credentials=profile))
    url = store.presigned_url("ü a.txt", 60)
    assert parse_qs(urlsplit(url).query)["X-Goog-Expires"] == ["60"]
    with urllib.request.urlopen(url) as reply:
        assert reply.read() == b"content"
    with pytest.raises(InvalidValueError, match="only a service account can sign URLs"):
        GcsStore(f"gs://{bucket}", gcs.access).presigned_url("a", 60)


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (403, StorageDeniedError, "describe connection"),
        (401, StorageDeniedError, "no Google credentials"),
        (404, StorageError, "Create the bucket"),
        (503, StorageThrottledError, "Later"),
        (429, StorageThrottledError, "Later"),
        (500, StorageError, "Later"),
    ],
)
def test_refusals_of_the_store_are_mapped(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[StorageError], said: str
) -> None:
    from volstream.files.providers.google import store as module

    monkeypatch.setattr(module, "_OPTIONS", {"timeout": 5, "retry": module._RETRY.with_timeout(0.1)})
    body = json.dumps({"error": {"message": "Later."}}).encode()
    answers.answer = lambda *_: (status, JSON, body)
    store = GcsStore("gs://bucket/in", Access("gs", endpoint=answers.url))
    for ask in (lambda: [*store.list("", Selection())], lambda: store.head("a"), lambda: store.write("a", b"x")):
        with pytest.raises(kind, match=said) as error:
            ask()
        assert type(error.value) is kind
        assert "gs://bucket/in/" in str(error.value)


@pytest.mark.parametrize("status", [204, 404, 412])
def test_what_replaces_an_object_while_it_is_moved_stays(answers: Answers, status: int) -> None:
    answers.answer = lambda *_: (status, JSON, b"")
    found = Found(1, datetime.now(UTC), "e", None, "1795795242833532")
    GcsStore("gs://bucket", Access("gs", endpoint=answers.url))._remove_version("a", found)  # fake-gcs-server ignores conditions
    [asked] = answers.log
    assert asked.startswith("DELETE /storage/v1/b/bucket/o/a?")
    assert "ifGenerationMatch=1795795242833532" in asked


def test_the_token_of_a_task_that_has_ended_is_a_temporary_problem(answers: Answers) -> None:
    answers.answer = lambda *_: (401, JSON, b"{}")
    access = Access("gs", endpoint=answers.url, credentials="static", keys=Keys(ACCOUNT, "", "ended"))
    with pytest.raises(StorageError, match="have expired") as error:
        GcsStore("gs://bucket", access).head("a")
    assert error.value.transient


def test_a_subscription_is_given_by_name_full_name_or_the_url_of_an_emulator(profile: str) -> None:
    assert address("files") == (None, None, "files")
    assert address("projects/p/subscriptions/files") == (None, "p", "files")
    assert address("http://127.0.0.1:8085/projects/p/subscriptions/files") == ("127.0.0.1:8085", "p", "files")
    for wrong in ("", "projects/p/topics/t", "https://pubsub.googleapis.com/projects/p/subscriptions/files", "http://h/files"):
        with pytest.raises(InvalidValueError, match="is not a Pub/Sub subscription"):
            address(wrong)
    spec = QueueSpec("gs://bucket", name="files", access=Access("gs", credentials=profile))
    assert PubSubService(spec).path == "projects/from-the-key/subscriptions/files"
    with pytest.raises(QueueError, match="is unknown"):
        _ = PubSubService(replace(spec, access=Access("gs", endpoint="http://127.0.0.1:1"))).path


@pytest.mark.long
def test_a_subscription_describes_itself_and_a_missing_one_is_an_error(pubsub: PubSub) -> None:
    name = pubsub.make(unused_name()).subscription
    state = PubSubService(QueueSpec("gs://bucket", name=name, access=Access("gs"))).describe()
    assert (state.waiting, state.visibility_seconds, state.dead_letter_queue) == (None, 10.0, "")
    with pytest.raises(QueueError, match="cannot be found"):
        PubSubService(QueueSpec("gs://bucket", name=f"{name}-missing", access=Access("gs"))).open()


@pytest.mark.long
def test_messages_stay_invisible_to_others_for_longer_than_the_deadline_of_their_subscription(pubsub: PubSub) -> None:
    topic = pubsub.make(unused_name())
    spec = QueueSpec("gs://bucket", name=topic.subscription, access=Access("gs"), settings=QueueSettings(wait_seconds=1))
    topic.send(b'{"message": {"attributes": {"a": "b"}, "data": ""}}')
    service = PubSubService(spec)
    got = [delivery for _ in range(5) for delivery in service.receive(10, 1)]
    assert [*service.keep([got[0].handle], 60)] == [got[0].handle]
    assert service.keep([got[0].handle], 0) == {got[0].handle: got[0].handle}  # back to the queue
    again = [delivery for _ in range(5) for delivery in service.receive(10, 1)]
    assert [delivery.id for delivery in again] == [got[0].id]
    assert service.delete([again[0].handle]) == []


@pytest.fixture
def notifying(pubsub: PubSub) -> Iterator[tuple[Access, str, str]]:
    """Cloud Storage whose events a subscription gets: the access, the bucket's name, the subscription."""
    name = unused_name()
    topic = pubsub.make(name)
    with ExitStack() as stack:
        url = stack.enter_context(
            fake_gcs(
                "-event.pubsub-project-id=tests",
                f"-event.pubsub-topic={name}",
                "-event.list=finalize,delete,metadataUpdate",
                PUBSUB_EMULATOR_HOST=urlsplit(pubsub.url).netloc,
            )
        )
        access = Access("gs", endpoint=url)
        client(access).create_bucket(name, project="tests")
        yield access, name, topic.subscription


@pytest.mark.long
def test_uploads_deletions_and_changed_metadata_of_a_bucket_are_heard_of(notifying: tuple[Access, str, str]) -> None:
    access, bucket, subscription = notifying
    queue = open_queue("pubsub", QueueSpec(f"gs://{bucket}", name=subscription, access=access))
    queue.start()
    got: list[Message] = []

    def heard(*keys: str) -> bool:
        messages = queue.receive(100, 1)
        queue.acknowledge(messages)
        got.extend(messages)
        assert not [message.rejection for message in got if message.rejection]
        return [hint for message in got for hint in message.hints] == [ObjectHint(bucket, key) for key in keys]

    store = GcsStore(f"gs://{bucket}", access)
    try:
        store.write("in/ü a+b%20.txt", b"x")
        eventually(lambda: heard("in/ü a+b%20.txt"))
        store.remove("in/ü a+b%20.txt")
        eventually(lambda: heard(*["in/ü a+b%20.txt"] * 2))
    finally:
        queue.stop()


def test_wiring_that_cannot_be_asked_for_is_skipped_with_what_to_allow(gcs: Cloud) -> None:
    provider = provider_of("gs://bucket")
    assert provider is not None
    check = provider.check_wiring(gcs.access, BucketPlace.of("gs://bucket"), "http://127.0.0.1:1/projects/p/subscriptions/none")
    assert check.state is CheckState.SKIPPED
    assert "storage.buckets.get" in check.fix

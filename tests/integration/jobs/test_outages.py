"""A store that denies, fails or resets: files wait and spend no retry, but one object that is denied is that file's failure.

Against a model that knows which files the store gives at each run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import md5
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from tests.clouds import Answers, answers
from tests.integration.conftest import Place, place_in
from volstream.base.config import Settings
from volstream.base.model.work import FailureKind, FailureState
from volstream.errors import StorageError
from volstream.spark.session import SparkGateway

__all__ = ["answers"]

XML = {"Content-Type": "application/xml"}

CODE = """
def f(file):
    try:
        return {"n": len(file.read_text())}
    except Exception as error:
        raise ValueError("it cannot be parsed") from error
"""


class Bucket:
    """Objects of a server that speaks S3, and what it refuses: the status for GETs of a key."""

    def __init__(self, answers: Answers) -> None:
        self.objects: dict[str, str] = {}
        self.refuses: Callable[[str], int | None] = lambda _: None
        answers.answer = self.answer

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str], bytes] | None:
        parts = urlsplit(path)
        asked = parse_qs(parts.query)
        key = unquote(parts.path).removeprefix("/bucket").lstrip("/")
        if "list-type" in asked or not key:
            return 200, XML, self._listed(asked.get("prefix", [""])[0])
        if (status := self.refuses(key)) is not None and method == "GET":
            return (
                None
                if status == 0
                else (status, XML, f"<Error><Code>{'AccessDenied' if status == 403 else 'E'}</Code></Error>".encode())
            )
        if key not in self.objects:
            return 404, XML, b"<Error><Code>NoSuchKey</Code></Error>"
        body = self.objects[key].encode()
        about = {"ETag": self._etag(key), "Last-Modified": "Sun, 01 Mar 2026 10:00:00 GMT"}
        if (wanted := headers.get("range")) is not None:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = body[int(first) : int(last or len(body)) + 1]
            return 206, {**about, "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(body)}"}, part
        return 200, about, body

    def _etag(self, key: str) -> str:
        return f'"{md5(self.objects[key].encode(), usedforsecurity=False).hexdigest()}"'

    def _listed(self, prefix: str) -> bytes:
        found = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-03-01T10:00:00.000Z</LastModified><ETag>{escape(self._etag(key))}</ETag>"
            f"<Size>{len(text)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for key, text in sorted(self.objects.items())
            if key.startswith(prefix)
        )
        return f"<ListBucketResult><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


@pytest.fixture
def bucket(answers: Answers) -> Bucket:
    return Bucket(answers)


@pytest.fixture
def far(
    tmp_path: Path, settings: Settings, gateway: SparkGateway, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A place whose volume ``far`` is the bucket, with a job that has no retries left after one failure."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with place_in(tmp_path, settings, gateway) as place:
        place.session.connections.create("c", "s3", endpoint=answers.url, region="eu-west-1")
        place.session.volumes.create("far", "s3://bucket", connection="c", queue_type="none", check=False)
        yield place


def failures(place: Place) -> dict[str, tuple[FailureState, FailureKind, int]]:
    return {one.path: (one.state, one.kind, one.attempts) for one in place.session.jobs.failures("j")}


def run(place: Place) -> bool:
    """Runs the job on the bucket's files; returns False if the store ended the run."""
    place.session.volumes.refresh("far", accept_removals=True)
    try:
        place.run()
    except StorageError:
        return False
    return True


def test_one_denied_object_among_many_is_its_own_failure(far: Place, bucket: Bucket) -> None:
    bucket.objects = {f"a/{number:03}": "x" * number for number in range(1, 60)}
    bucket.refuses = lambda key: 403 if key == "a/030" else None
    far.job(CODE, volume="far", retries=0)
    assert run(far)
    assert failures(far) == {"a/030": (FailureState.QUARANTINED, FailureKind.DENIED, 1)}
    assert len(far.table()) == 58


@pytest.mark.parametrize("status", [403, 0, pytest.param(500, marks=pytest.mark.long)])
def test_an_outage_spends_no_retries_and_all_files_come_afterwards(far: Place, bucket: Bucket, status: int) -> None:
    bucket.objects = {f"{folder}/{number}": "x" * number for folder in "abc" for number in range(1, 8)}
    bucket.refuses = lambda _: status
    far.job(CODE, volume="far", retries=0)
    far.session.volumes.refresh("far")
    with pytest.raises(StorageError, match=r"Files of the volume far cannot be read: .*; 21 files wait for the store\."):
        far.run()
    for _ in range(2):
        assert not run(far)
        assert {*failures(far).values()} == {(FailureState.WAITING, FailureKind.STORE, 0)}
    bucket.refuses = lambda _: None
    assert run(far)
    assert failures(far) == {}
    assert len(far.table()) == 21


def test_a_policy_on_one_prefix_lets_its_files_wait_and_the_others_pass(far: Place, bucket: Bucket) -> None:
    bucket.objects = {"a/0": "x", "b/0": "x"}
    far.job(CODE, volume="far", retries=0)
    assert run(far)
    bucket.objects |= {f"{folder}/{number}": "x" for folder in "ab" for number in range(1, 5)}
    bucket.refuses = lambda key: 403 if key.startswith("a/") else None
    assert not run(far)
    assert {*failures(far)} == {f"a/{number}" for number in range(1, 5)}
    assert [row[0] for row in far.table()] == ["a/0", *(f"b/{number}" for number in range(5))]
    bucket.refuses = lambda _: None
    assert run(far)
    assert len(far.table()) == 10


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_only_what_is_refused_by_itself_spends_retries(far: Place, bucket: Bucket, seed: int) -> None:
    chance = random.Random(seed)
    bucket.objects = {f"{folder}/0": "x" for folder in "abc"}
    far.job(CODE, volume="far", retries=1)
    assert run(far)
    refused = dict.fromkeys(bucket.objects, 0)  # by itself, in runs since it changed
    for step in range(10):
        for _ in range(chance.randrange(4)):
            key = f"{chance.choice('abc')}/{chance.randrange(1, 30)}"
            bucket.objects[key] = "x" * chance.randrange(1, 99)
            refused[key] = 0
        outage = chance.choice([None, None, "", "a/", "b/"])
        own = {key for key in bucket.objects if not key.endswith("/0") and chance.random() < 0.15}
        bucket.refuses = partial(refusal, outage, own)
        far.session.jobs.retry("j")  # whatever waits for its time, but what has failed stays so
        run(far)
        for key in own:
            refused[key] += outage is None or not key.startswith(outage)
        for key, (state, kind, attempts) in failures(far).items():
            assert attempts <= refused[key], (seed, step, key)
            assert (kind is FailureKind.STORE) == (state is FailureState.WAITING), (seed, step, key)
        assert all(count == len(bucket.objects[path]) or path in failures(far) for path, count in far.table()), (seed, step)
    bucket.refuses = lambda _: None
    far.session.jobs.retry("j")
    assert run(far)
    assert failures(far) == {}
    assert dict(far.table()) == {key: len(text) for key, text in bucket.objects.items()}


def refusal(outage: str | None, own: set[str], key: str) -> int | None:
    return 403 if key in own or (outage is not None and key.startswith(outage)) else None

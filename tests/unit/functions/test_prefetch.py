"""Contents of a bucket, fetched in parts ahead of the function: versions, broken answers, requests, memory."""

from __future__ import annotations

import io
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from tests.running import Runner, failed, planned, replied, results
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind
from volstream.errors import StorageError
from volstream.files.storage.buckets import Content, Ranged
from volstream.functions import worker

READING = "def f(file): return {'s': file.read_text()}"


class Body(io.BytesIO):
    """A part of an object, whose connection breaks once so many bytes are left."""

    def __init__(self, content: bytes, breaks_at: int) -> None:
        super().__init__(content)
        self._left = len(content) - breaks_at

    def read(self, amount: int | None = None, /) -> bytes:
        data = super().read(min(amount or 0, self._left))
        self._left -= len(data)
        return data


class Bucket(MemoryStore):
    """Objects in memory whose parts are asked for one by one.

    Attributes:
        asked: the requests for content: path, start.
        heads: the paths whose version was looked up.
        before, after: called around each of the answers with content.
        breaks_at: bytes that the bodies of a request lack.
    """

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.asked: list[tuple[str, int]] = []
        self.heads: list[str] = []
        self.before: Callable[[str, int], object] = lambda *_: None
        self.after: Callable[[str, int], object] = lambda *_: None
        self.breaks_at: Callable[[str, int], int] = lambda *_: 0

    def __reduce__(self) -> tuple[object, ...]:
        return (_bucket, ())  # the test's own object: pickling is how it comes to an executor

    def head(self, path: str) -> FileInfo | None:
        self.heads.append(path)
        return super().head(path)

    def open_part(self, info: FileInfo, start: int, end: int) -> Ranged:
        path = info.relative_path
        return Ranged(path, partial(self._fetch, path, end), errors, start, (info.version, end))

    def _fetch(self, path: str, end: int, start: int) -> Content:
        self.asked.append((path, start))
        self.before(path, start)
        content, now = self.open(path).read(), super().head(path)
        assert now is not None
        self.after(path, start)
        return Content(end, f'"{now.etag}"', Body(content[start:end], self.breaks_at(path, start)))


_bucket_now: Bucket | None = None


def _bucket() -> Bucket:
    assert _bucket_now is not None
    return _bucket_now


@contextmanager
def errors() -> Iterator[None]:
    yield


@pytest.fixture
def bucket(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    global _bucket_now
    monkeypatch.setattr(worker, "_PART_BYTES", 4)
    _bucket_now = Bucket(store.url("").rstrip("/"))
    return _bucket_now


@pytest.fixture
def files(bucket: Bucket) -> list[FileInfo]:
    """The first one is read before anything is known."""
    return [bucket.put(name, content) for name, content in (("a", b"first"), ("b", b"0123456789"), ("c", b""), ("d", b"4444"))]


def test_contents_come_in_parts_and_their_version_with_them(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    table = run(READING, files, "s STRING", store=bucket)
    assert [row for _, row in results(table)] == [{"s": text} for text in ("first", "0123456789", "", "4444")]
    assert sorted(bucket.asked) == [("b", 0), ("b", 4), ("b", 8), ("c", 0), ("d", 0)]
    assert bucket.heads == ["a"]


@pytest.mark.parametrize(
    "code",
    [
        "def f(file): return {'s': str(dict(file.metadata)) + file.read_text()}",
        "def f(file): return {'s': file.read_text() + str(dict(file.tags))}",
        "def f(file): return {'s': file.read_text() if file.name == 'a' else ''}",
    ],
)
def test_what_the_content_does_not_confirm_is_looked_up(run: Runner, bucket: Bucket, files: list[FileInfo], code: str) -> None:
    assert failed(run(code, files, "s STRING", store=bucket)) == {}
    assert sorted(bucket.heads) == ["a", "b", "c", "d"]


def test_a_set_is_looked_up_unless_all_of_its_contents_confirm_it(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    code = """
from volstream import File
def f(files: list[File]): return {"s": "".join(one.read_text() for one in files if one.name != "d")}
"""
    sets = [files[:1], files[1:2], files[2:]]
    plan = planned([FileInfo(f"set {number}", 9, files[0].last_modified_time, "e") for number in range(3)])
    members = pa.array([[one._asdict() for one in members] for members in sets])
    work = run.work(code, "s STRING", store=bucket, sets=True)
    found = replied(work, plan.set_column(plan.schema.get_field_index("members"), "members", members))
    assert found["result"].to_pylist() == [{"s": "first"}, {"s": "0123456789"}, {"s": ""}]
    assert sorted(bucket.heads) == ["a", "c", "d"]


def test_a_store_without_parts_is_asked_for_the_version(run: Runner, store: MemoryStore) -> None:
    files = [store.put(name, b"1") for name in "abc"]
    store.put("c", b"2")
    table = run(READING.replace("return", "file.count('calls'); return"), files, "s STRING", store=store)
    assert [*failed(table)] == ["c"]
    assert table["counted"].to_pylist() == ['{"calls": 1.0}'] * 3


def test_parts_of_two_versions_never_meet(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    replaced = threading.Event()

    def before(path: str, start: int) -> None:
        if (path, start) == ("b", 4):
            assert replaced.wait(20)

    def after(path: str, start: int) -> None:
        if (path, start) == ("b", 0):
            bucket.put("b", b"ABCDEFGHIJ")
            replaced.set()

    bucket.before, bucket.after = before, after
    table = run(READING, files, "s STRING", store=bucket)
    assert {path: kind for path, (kind, _) in failed(table).items()} == {"b": FailureKind.CHANGED}
    assert dict(results(table))["d"] == {"s": "4444"}


def test_a_function_that_hides_another_version_has_no_row(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    bucket.put("b", b"ABCDEFGHIJ")
    code = "def f(file):\n    try: return {'s': file.read_text()}\n    except Exception: return {'s': 'none'}"
    table = run(code, files, "s STRING", store=bucket)
    assert {path: kind for path, (kind, _) in failed(table).items()} == {"b": FailureKind.CHANGED}


def test_a_part_that_breaks_off_is_resumed(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    bucket.breaks_at = lambda path, start: 1 if (path, start) == ("b", 4) else 0
    table = run(READING, files, "s STRING", store=bucket)
    assert dict(results(table))["b"] == {"s": "0123456789"}
    assert sorted(start for path, start in bucket.asked if path == "b") == [0, 4, 7, 8]


def test_a_part_that_stays_too_short_fails_its_file_alone(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    bucket.breaks_at = lambda path, start: 2 if (path, start) == ("b", 8) else 0
    table = run(READING, files, "s STRING", store=bucket)
    assert failed(table) == {"b": (FailureKind.UNREADABLE, "b ended before its full size was read.")}
    assert [row for _, row in results(table)] == [{"s": "first"}, None, {"s": ""}, {"s": "4444"}]


def test_a_request_that_fails_is_an_error_of_its_file(run: Runner, bucket: Bucket, files: list[FileInfo]) -> None:
    def before(path: str, start: int) -> None:
        if (path, start) == ("b", 8):
            raise StorageError("The store hiccupped.")

    bucket.before = before
    table = run(READING, files, "s STRING", store=bucket)
    assert failed(table) == {"b": (FailureKind.UNREADABLE, "The store hiccupped.")}


def test_a_content_in_parts_is_in_memory_once(store: MemoryStore) -> None:
    size = 32 << 20
    made = Bucket(store.url("").rstrip("/"))
    info, content = FileInfo("a", size, made.put("b", b"").last_modified_time, "e"), bytes(1 << 20)

    class Endless(io.RawIOBase):
        def read(self, amount: int = -1, /) -> bytes:
            return content[:amount]

    def open_part(info: FileInfo, start: int, end: int) -> Ranged:
        return Ranged("a", lambda _: Content(end, "e", Endless()), errors, start, ("e", end))

    made.open_part = open_part  # type: ignore[method-assign]
    tracemalloc.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            whole = worker.Parts(made, info, pool).result()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(whole) == size
    assert most < size + (4 << 20)

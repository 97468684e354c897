"""Kinds of functions (classes set up once, functions on several files), and what they may use: memory, contents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import BinaryIO

import pytest

from tests.running import BATCH, Frozen, Runner, failed, results
from volstream.errors import InvalidValueError
from volstream.functions.source import function
from volstream.model.files import FileInfo
from volstream.model.work import FailureKind
from volstream.storage.memory import MemoryStore

COUNTING = """
class f:
    made = 0
    def __init__(self, **arguments):
        type(self).made += 1
        self.arguments = arguments
    def __call__(self, file):
        return {"n": self.made, "s": str(self.arguments)}
"""


def test_a_class_is_set_up_once_for_all_batches_of_a_worker(run: Runner, store: MemoryStore) -> None:
    files = [store.put(name, b"") for name in "ab"]
    for _ in range(2):
        table = run(COUNTING, files, "n BIGINT, s STRING", arguments={"model": "large"})
        assert [row for _, row in results(table)] == [{"n": 1, "s": "{'model': 'large'}"}] * 2


def test_other_arguments_or_an_edit_set_a_class_up_again(run: Runner, store: MemoryStore) -> None:
    file = store.put("a", b"")
    counting = f"{COUNTING}# of this test"
    run(counting, [file], "n BIGINT, s STRING", arguments={"model": "large"})
    again = run(counting, [file], "n BIGINT, s STRING", arguments={"model": "small"})
    assert results(again) == [("a", {"n": 2, "s": "{'model': 'small'}"})]
    edited = run(counting.replace("= 0", "= 10"), [file], "n BIGINT, s STRING", arguments={"model": "small"})
    assert results(edited) == [("a", {"n": 11, "s": "{'model': 'small'}"})]


def test_a_failing_setup_is_reported_with_each_file_and_says_where(run: Runner, store: MemoryStore) -> None:
    code = "class f:\n    def __init__(self): raise OSError('no model here')\n    def __call__(self, file): pass"
    table = run(code, [store.put(name, b"") for name in "ab"])
    expected = (FailureKind.SET_UP, "OSError: no model here")
    assert failed(table) == {"a": expected, "b": expected}
    assert "in __init__" in table["error_traceback"][0].as_py()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return [{'n': len(files)} for file in files]", [3, 3, 3]),
        ("for file in files: yield {'n': file.size}", [1, 2, 3]),
        ("return [None, [], {'n': 1}]", [None, None, 1]),
        ("return ([{'n': file.size}] for file in files)", [1, 2, 3]),
    ],
)
def test_a_function_on_several_files_returns_an_entry_for_each(
    run: Runner, store: MemoryStore, body: str, expected: Sequence[int | None]
) -> None:
    files = [store.put(name, name.encode() * size) for size, name in enumerate("abc", start=1)]
    table = run(f"{BATCH}    {body}", files)
    assert failed(table) == {}
    assert [row and row["n"] for _, row in results(table)] == expected


def test_files_come_in_groups_of_the_declared_size(run: Runner, store: MemoryStore) -> None:
    code = (
        "import volstream\n@volstream.function(returns='n BIGINT', batch_size=2)\n"
        "def f(files, *, plus):\n    return [{'n': len(files) + int(plus)} for file in files]"
    )
    table = run(code, [store.put(name, b"") for name in "abcde"], arguments={"plus": "10"})
    assert [row and row["n"] for _, row in results(table)] == [12, 12, 12, 12, 11]


def test_a_group_that_fails_is_called_again_file_by_file(run: Runner, store: MemoryStore) -> None:
    code = (
        f"{BATCH}    if 'b' in [file.name for file in files]: 1 / 0\n    return [{{'n': len(files)}} for file in files]"
    )
    table = run(code, [store.put(name, b"") for name in "abc"])
    assert failed(table) == {"b": (FailureKind.RAISED, "ZeroDivisionError: division by zero")}
    assert results(table) == [("a", {"n": 1}), ("b", None), ("c", {"n": 1})]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "was given 1 file and returned 0 entries"),
        ("return {'n': 1}", "was given 1 file and returned a dict"),
        ("return [7]", "returned a value of type int"),
    ],
)
def test_a_group_whose_entries_do_not_fit_says_so(run: Runner, store: MemoryStore, body: str, message: str) -> None:
    ((kind, text),) = failed(run(f"{BATCH}    {body}", [store.put("a", b"")])).values()
    assert kind is FailureKind.WRONG_RESULT
    assert message in text


def test_a_batch_size_below_one_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match="0 files at once"):
        function(returns="n BIGINT", batch_size=0)


# Contents fetched ahead.


class Slow(Frozen):
    """A store whose reads take a while; counts them."""

    def __init__(self, files: Sequence[FileInfo], *, meet: int = 1) -> None:
        super().__init__(files)
        self.opened: list[str] = []
        self.calls = 0
        self._meet = threading.Barrier(meet)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return (_slow, ())  # the test's own object: pickling is how it comes to an executor

    def open(self, path: str) -> BinaryIO:
        with self._lock:
            self.opened.append(path)
            first = len(self.opened) == 1
        if not first:  # the first is read before anything is known
            self._meet.wait(timeout=20)
        return BytesIO(path.encode())


_slow_store: Slow | None = None


def _slow() -> Slow:
    assert _slow_store is not None
    return _slow_store


@pytest.fixture
def slow(store: MemoryStore) -> Callable[..., Slow]:
    def make(files: Sequence[FileInfo], **options: int) -> Slow:
        global _slow_store
        _slow_store = Slow(files, **options)
        return _slow_store

    return make


def test_contents_are_prefetched_so_that_the_function_waits_for_none(
    run: Runner, store: MemoryStore, slow: Callable[..., Slow]
) -> None:
    # Eight reads must be under way at once, or the barrier breaks and every file fails.
    files = [store.put(f"{number:02}", b"x") for number in range(17)]
    remote = slow(files, meet=8)
    table = run("def f(file): return {'n': len(file.read_bytes())}", files, store=remote)
    assert failed(table) == {}
    assert sorted(remote.opened) == [file.relative_path for file in files]


def test_nothing_is_fetched_for_a_function_that_reads_nothing(
    run: Runner, store: MemoryStore, slow: Callable[..., Slow]
) -> None:
    files = [store.put(f"{number:02}", b"x") for number in range(10)]
    remote = slow(files)
    run("def f(file): return {'n': file.size}", files, store=remote)
    assert remote.opened == []


def test_no_more_is_prefetched_than_the_budget(run: Runner, store: MemoryStore, slow: Callable[..., Slow]) -> None:
    files = [store.put(f"{number:02}", b"x" * 100) for number in range(12)]
    remote = slow(files)
    code = """
import time
from tests.unit.functions import test_calls
def f(file):
    file.read_bytes()
    time.sleep(0.02)
    return {"n": len(test_calls._slow_store.opened)}
"""
    table = run(code, files, store=remote, ahead_bytes=300)
    assert failed(table) == {}
    # Of each file: those done, itself, and two ahead of it at most: what is fetched, read or not, fits the budget.
    seen = [row["n"] for _, row in results(table) if row]
    assert all(opened <= number + 1 + 2 for number, opened in enumerate(seen))
    assert max(opened - number - 1 for number, opened in enumerate(seen)) == 2

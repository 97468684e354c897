"""Kinds of functions (classes set up once, functions on several files), and what they may use: memory, contents."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from tests.memory import MemoryStore
from tests.running import BATCH, EVERYWHERE, Frozen, Runner, failed, results
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind
from volstream.base.processes import new_owner
from volstream.errors import InvalidValueError
from volstream.functions.concurrency import CallSchedule, Pace
from volstream.functions.signature import function

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


TYPED = """
from __future__ import annotations
class f:
    def __init__(self, whole: int, part: float | None, both: bool = False, text: str = "", many: list[int] = (), any=None):
        self.got = repr((whole, part, both, text, many, any))
    def __call__(self, file):
        return {"s": self.got}
"""


def test_arguments_are_what_their_annotations_say(run: Runner, store: MemoryStore) -> None:
    given = {"whole": "8", "part": "0.5", "both": "True", "text": "1", "many": "1", "any": "1"}
    assert results(run(TYPED, [store.put("a", b"")], "s STRING", arguments=given)) == [
        ("a", {"s": "(8, 0.5, True, '1', '1', '1')"})
    ]
    table = run(TYPED, [store.put("b", b"")], "s STRING", arguments={**given, "whole": "abc"})
    assert failed(table) == {"b": (FailureKind.SET_UP, "The argument whole is 'abc', which is no int.")}


def test_a_child_that_comes_back_does_not_answer(run: Runner, store: MemoryStore) -> None:
    code = """
import os, time
def f(file):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return {"s": "parent" if child else "child"}
"""
    assert results(run(code, [store.put("a", b"")], "s STRING")) == [("a", {"s": "parent"})]


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


@pytest.mark.parametrize("isolate", [False, True])
def test_an_entry_that_is_an_error_fails_its_file_alone(run: Runner, isolate: bool) -> None:
    code = (
        f"import volstream\ncalls = 0\n{BATCH}    global calls\n    calls += 1\n    yield {{'n': calls}}\n"
        "    yield ValueError('no')\n    yield volstream.RetryLater('busy', 5)\n    yield {'n': calls}\n    yield OSError()"
    )
    files = [FileInfo(name, 1, datetime.now(UTC), "e") for name in "abcde"]
    table = run(code, files, isolate=isolate, store=Frozen(files))
    assert [row for _, row in results(table)] == [{"n": 1}, None, None, {"n": 1}, None]
    assert failed(table) == {
        "b": (FailureKind.RAISED, "ValueError: no"),
        "c": (FailureKind.RETRY_LATER, "busy"),
        "e": (FailureKind.RAISED, "OSError: "),
    }


@pytest.mark.parametrize("kind", ["", "async "])
def test_a_class_that_is_set_up_again_closes_what_it_had_before(
    run: Runner, store: MemoryStore, tmp_path: Path, kind: str
) -> None:
    code = f"""{COUNTING}
    {kind}def close(self):
        with open({str(tmp_path / "closed")!r}, "a") as file: file.write(self.arguments["model"] + " ")
        raise OSError("the connection is lost")
"""
    file = store.put("a", b"")
    for model in ("large", "large", "small", "tiny"):
        assert not failed(run(code, [file], "n BIGINT, s STRING", arguments={"model": model}))
    assert (tmp_path / "closed").read_text() == "large small "


@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_what_a_function_counts_is_summed_up_also_for_files_that_fail(run: Runner, isolate: bool) -> None:
    code = (
        "def f(file):\n    file.count('tokens', file.size)\n    file.count('calls')\n    file.count('calls')\n"
        "    if file.size == 2: raise ValueError('no')\n    return [{'n': 1}] * file.size"
    )
    files = [FileInfo(f"{size}", size, datetime.now(UTC), "e") for size in range(4)]
    table = run(code, files, isolate=isolate, store=Frozen(files))
    counted = [text and json.loads(text) for text in table["counted"].to_pylist()]
    assert counted == [{"tokens": size, "calls": 2} for size in range(3)] + [{"tokens": 3, "calls": 2}, None, None]


@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_what_is_counted_before_a_group_is_called_again_counts_too(run: Runner, isolate: bool) -> None:
    code = f"{BATCH}    for file in files: file.count('calls')\n    if len(files) > 1: raise ValueError\n    return [None]"
    files = [FileInfo(name, 0, datetime.now(UTC), "e") for name in "ab"]
    table = run(code, files, isolate=isolate, store=Frozen(files))
    assert [json.loads(text) for text in table["counted"].to_pylist()] == [{"calls": 2}] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("'n', -1", "ValueError: count('n', -1): the number must be from 0"),
        ("'n', float('nan')", "ValueError: count('n', nan): the number must be from 0"),
        ("'n', 1e300", "ValueError: count('n', 1e+300): the number must be from 0"),
        ("'n', '3'", "TypeError: count() takes a name and a number, not 'n' and '3'"),
        ("5", "TypeError: count() takes a name and a number, not 5 and 1"),
        ("'a\\nb'", "ValueError: The name of a count must have 1 to 100 printable characters"),
        ("'\\ud800'", "ValueError: The name of a count must have 1 to 100 printable characters"),
        ("''", "ValueError: The name of a count must have 1 to 100 printable characters"),
        ("str(file.size) * 101", "ValueError: The name of a count must have 1 to 100 printable characters"),
    ],
)
def test_what_cannot_be_counted_fails_its_file(run: Runner, store: MemoryStore, call: str, message: str) -> None:
    [(kind, error)] = failed(run(f"def f(file):\n    file.count({call})", [store.put("a", b"")])).values()
    assert kind is FailureKind.RAISED
    assert error.startswith(message)


def test_a_file_has_no_more_than_a_hundred_counts(run: Runner, store: MemoryStore) -> None:
    code = "def f(file):\n    for at in range(101): file.count(str(at))"
    assert "at most 100 counts" in failed(run(code, [store.put("a", b"")]))["a"][1]


PACED = "import time\n{0}def f(file):\n    return {{'n': time.monotonic_ns()}}\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "isolate"),
    [
        (PACED.format(""), False),
        (PACED.format(""), True),
        (PACED.format("import volstream\n@volstream.function(concurrency=4)\n"), False),
        (PACED.format("async "), False),
    ],
    ids=["plain", "isolated", "threads", "coroutine"],
)
def test_calls_keep_their_pace(run: Runner, code: str, isolate: bool) -> None:
    files = [FileInfo(f"{size}", size, datetime.now(UTC), "e") for size in range(6)]
    began = time.monotonic_ns()
    table = run(code, files, isolate=isolate, store=Frozen(files), pace=Pace(0.02, 0.1, 3))
    times = sorted(int(result["n"]) for _, result in results(table) if result)
    assert times[0] - began >= 0.1e9
    # A worker of three makes every third call; the sixth comes not before five times that.
    assert times[-1] - began >= 0.4e9


@pytest.mark.long
@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_calls_of_groups_that_are_repeated_keep_their_pace(run: Runner, tmp_path: Path, isolate: bool) -> None:
    code = (
        "import time, volstream\n@volstream.function(batch_size=2)\ndef f(files):\n"
        f"    with open({str(tmp_path / 'calls')!r}, 'a') as log: log.write(f'{{time.monotonic_ns()}} ')\n"
        "    if len(files) > 1: raise ValueError\n    return [None]"
    )
    files = [FileInfo(name, 0, datetime.now(UTC), "e") for name in "abcd"]
    run(code, files, isolate=isolate, store=Frozen(files), pace=Pace(0.1))
    calls = [int(at) for at in (tmp_path / "calls").read_text().split()]
    assert len(calls) == 6
    assert calls[-1] - calls[0] >= 0.45e9  # the first may have come late


@pytest.mark.long
def test_a_group_whose_repeated_calls_wait_for_their_turns_has_not_timed_out(run: Runner) -> None:
    code = f"{BATCH}    if len(files) > 1: raise ValueError\n    return [None]"
    files = [FileInfo(name, 0, datetime.now(UTC), "e") for name in "abc"]
    assert failed(run(code, files, isolate=True, store=Frozen(files), timeout_seconds=0.1, pace=Pace(1.3))) == {}


def test_the_function_is_not_called_for_a_process_that_was_killed(run: Runner, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        started = psutil.Process(process.pid).create_time()
        process.kill()
    code = f"def f(file):\n    open({str(tmp_path / 'called')!r}, 'w').close()"
    files = [FileInfo("a", 1, datetime.now(UTC), "e")]
    with pytest.raises(ProcessLookupError, match="has ended"):
        run(code, files, store=Frozen(files), owner=f"{socket.gethostname()}/{process.pid}/{started:.2f}/x")
    assert not (tmp_path / "called").exists()
    run(code, files, store=Frozen(files), owner=new_owner())
    assert (tmp_path / "called").exists()


def test_calls_that_come_too_late_do_not_make_up_for_it() -> None:
    turns = CallSchedule(0.05)
    time.sleep(0.2)
    began = time.monotonic()
    for _ in range(3):
        turns.wait()
    assert time.monotonic() - began >= 0.1


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


def test_a_row_that_a_generator_changes_for_its_next_one_stays_what_it_was(run: Runner, store: MemoryStore) -> None:
    code = "def f(file):\n    row = {}\n    for row['n'] in range(3):\n        yield row"
    assert [row["n"] for _, row in results(run(code, [store.put("a", b"")])) if row] == [0, 1, 2]


def test_files_come_in_groups_of_the_declared_size(run: Runner, store: MemoryStore) -> None:
    code = (
        "import volstream\n@volstream.function(returns='n BIGINT', batch_size=2)\n"
        "def f(files, *, plus):\n    return [{'n': len(files) + int(plus)} for file in files]"
    )
    table = run(code, [store.put(name, b"") for name in "abcde"], arguments={"plus": "10"})
    assert [row and row["n"] for _, row in results(table)] == [12, 12, 12, 12, 11]


def test_a_group_that_fails_is_called_again_file_by_file(run: Runner, store: MemoryStore) -> None:
    code = f"{BATCH}    if 'b' in [file.name for file in files]: 1 / 0\n    return [{{'n': len(files)}} for file in files]"
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


def test_nothing_is_fetched_for_a_function_that_reads_nothing(run: Runner, store: MemoryStore, slow: Callable[..., Slow]) -> None:
    files = [store.put(f"{number:02}", b"x") for number in range(10)]
    remote = slow(files)
    run("def f(file): return {'n': file.size}", files, store=remote)
    assert remote.opened == []


@pytest.mark.parametrize("budget", [300, 350])
def test_as_much_is_prefetched_as_fits_the_budget(
    run: Runner, store: MemoryStore, slow: Callable[..., Slow], budget: int
) -> None:
    files = [store.put(f"{number:02}", b"x" * 100) for number in range(12)]
    remote = slow(files)
    # The first alone. Of each other file: those done, itself, and two ahead of it: what is fetched, read or not, fits the budget.
    fetched = [1, *range(4, 13), 12, 12]
    code = f"""
import time
from tests.unit.functions import test_calls
def f(file):
    file.read_bytes()
    until = time.monotonic() + 10
    while len(opened := test_calls._slow_store.opened) < {fetched}[int(file.relative_path)] and time.monotonic() < until:
        time.sleep(0.001)
    return {{"n": len(opened)}}
"""
    table = run(code, files, store=remote, ahead_bytes=budget)
    assert failed(table) == {}
    assert [row["n"] for _, row in results(table) if row] == fetched


def test_standard_output_that_a_function_closed_is_open_for_the_next_one() -> None:
    """Otherwise the next socket of the process, such as Spark's, takes its place, and gets what a library prints."""
    program = (
        "import os, sys\n"
        "from volstream.functions.printing import Capture\n"
        "with Capture(100).during():\n"
        "    os.close(0), os.close(1)\n"
        "for descriptor in (0, 1):\n"
        "    assert os.fstat(descriptor).st_rdev == os.stat(os.devnull).st_rdev\n"
        "    assert os.get_inheritable(descriptor)\n"
        "assert os.open(os.devnull, os.O_RDONLY) > 2\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

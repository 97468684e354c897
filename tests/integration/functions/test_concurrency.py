"""Functions with several calls in flight: coroutines on an event loop, plain functions in threads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from tests.running import EVERYWHERE, IN_FLIGHT, Runner, failed, results
from volstream.base.model.paths import FileInfo
from volstream.base.model.work import FailureKind
from volstream.errors import InvalidValueError
from volstream.functions.rejection import RetryLater
from volstream.functions.signature import function

#: How functions of each kind begin, with ``wait`` for a barrier of so many calls.
COROUTINE = """
import asyncio
barrier = asyncio.Barrier({n})
async def f(file):
    async def wait():
        await barrier.wait()
"""
THREADS = """
import threading, volstream
barrier = threading.Barrier({n})
@volstream.function(concurrency={n})
def f(file):
    def wait():
        barrier.wait()
"""


def put(store: MemoryStore, count: int) -> list[FileInfo]:
    return [store.put(f"{at:03}.txt", b"x" * at) for at in range(count)]


def printed(table: pa.Table) -> dict[str, list[str]]:
    """Lines by the files of their call."""
    entries = [json.loads(entry) for entry in table["printed"].to_pylist() if entry is not None]
    return {" ".join(entry["files"]): [line[2] for line in entry["lines"]] for entry in entries}


@pytest.mark.parametrize("code", [COROUTINE + "    await wait()\n", THREADS + "    wait()\n"], ids=["coroutine", "threads"])
def test_so_many_calls_are_in_flight(run: Runner, store: MemoryStore, code: str) -> None:
    table = run(code.format(n=8) + "    return {'n': file.size}", put(store, 24))
    assert sorted(results(table)) == [(f"{at:03}.txt", {"n": at}) for at in range(24)]


def test_a_coroutine_function_has_32_calls_in_flight_unless_it_or_the_job_says_otherwise(run: Runner, store: MemoryStore) -> None:
    files = put(store, 64)

    def maximum(decorator: str, count: int, **options: Any) -> int:
        anew = f"{IN_FLIGHT.format(decorator)}\n# {options}"  # a module stays as it is while its text does
        return max(int(result["n"]) for _, result in results(run(anew, files[:count], **options)) if result)

    assert maximum("", 64) == 32
    assert maximum("@volstream.function(concurrency=5)", 20) == 5
    assert maximum("@volstream.function(concurrency=5)", 20, concurrency=3) == 3
    assert maximum("", 8, measures=True) == 1


@pytest.mark.parametrize(
    "code",
    [
        "import asyncio\nlast = asyncio.Event()\nasync def f(file):\n"
        "    if file.size == 0: await last.wait()\n    if file.size == 39: last.set()\n    return {'n': file.size}",
        "import threading, volstream\nlast = threading.Event()\n@volstream.function(concurrency=2)\ndef f(file):\n"
        "    if file.size == 0: last.wait()\n    if file.size == 39: last.set()\n    return {'n': file.size}",
    ],
    ids=["coroutine", "threads"],
)
def test_a_slow_file_holds_up_none_of_the_others(run: Runner, store: MemoryStore, code: str) -> None:
    table = run(code, put(store, 40), concurrency=2)
    order = [path for path, _ in results(table)]
    assert len(order) == 40
    assert order[-2:] in (["039.txt", "000.txt"], ["000.txt", "039.txt"])


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import asyncio\nasync def f(file):\n    if file.size == 3: await asyncio.sleep(600)", "ran longer than 300ms."),
        ("def f(file):\n    while file.size == 3: pass", "ran longer than 300ms."),
        pytest.param(
            "import threading\ndef f(file):\n    if file.size == 3: threading.Event().wait()",
            "could not be interrupted",
            marks=pytest.mark.long,
        ),
        (
            "import time\ndef f(file):\n    while file.size == 3:\n        try: time.sleep(0.01)\n        except BaseException: pass",
            "could not be interrupted",
        ),
    ],
    ids=["coroutine", "busy", "blocked", "swallows"],
)
def test_only_the_file_that_takes_too_long_fails(run: Runner, store: MemoryStore, code: str, said: str) -> None:
    code += "\n    return {'n': file.size}"
    table = run(code, put(store, 60), concurrency=4, timeout_seconds=0.3)
    [(path, (kind, message))] = failed(table).items()
    assert (path, kind) == ("003.txt", FailureKind.TIMED_OUT)
    assert said in message
    assert len(results(table)) == 60


_PROFILED = """
import sys, threading
from contextlib import suppress
from volstream.functions.concurrency import TimeLimitError, limit_of, time_limit

def late():
    with suppress(TimeLimitError), time_limit(600):
        limit_of(threading.get_ident()).interrupt()

thread = threading.Thread(target=late)
thread.start()
thread.join()
sys.setprofile(lambda *_: None)
(lambda: None)()
"""


def test_after_an_interruption_code_can_be_profiled_and_debugged() -> None:
    # CPython 3.11 looks for an error that was cancelled before each instruction, and a traced call never gets past that.
    subprocess.run([sys.executable, "-c", _PROFILED], timeout=20, check=True)


@pytest.mark.long
def test_an_interruption_that_comes_too_late_does_not_hit_the_next_file(run: Runner, store: MemoryStore) -> None:
    code = "import time\ndef f(file):\n    time.sleep(0.11 if file.size % 2 else 0.0)\n    return {'n': file.size}"
    table = run(code, put(store, 120), concurrency=4, timeout_seconds=0.1)
    assert {int(path[:3]) % 2 for path in failed(table)} <= {1}
    assert len(results(table)) == 120


@pytest.mark.parametrize(
    "code", [COROUTINE + "    print('of', file.size)\n    await wait()\n", THREADS + "    print('of', file.size)\n    wait()\n"]
)
def test_what_calls_print_is_kept_with_their_file(run: Runner, store: MemoryStore, code: str) -> None:
    table = run(code.format(n=4) + "    print('after', file.size)\n    return {'n': 1}", put(store, 16))
    assert printed(table) == {f"{at:03}.txt": [f"of {at}", f"after {at}"] for at in range(16)}


@pytest.mark.parametrize("isolate", EVERYWHERE)
@pytest.mark.parametrize(
    "code",
    [
        "async def f(file):\n    for n in range(file.size):\n        yield {'n': n}",
        "import volstream\n@volstream.function(batch_size=3)\nasync def f(files):\n"
        "    return [[{'n': n} for n in range(file.size)] for file in files]",
        "import asyncio\nclass f:\n    def __init__(self): self.step = 0\n"
        "    async def setup(self):\n        await asyncio.sleep(0)\n        self.step = 1\n"
        "    async def __call__(self, file): return [{'n': n * self.step} for n in range(file.size)]",
        "import volstream\n@volstream.function(concurrency=3)\nclass f:\n"
        "    def __call__(self, file): return ({'n': n} for n in range(file.size))",
    ],
    ids=["generator", "several files", "class", "class in threads"],
)
def test_functions_of_every_form_can_have_calls_in_flight(run: Runner, store: MemoryStore, code: str, isolate: bool) -> None:
    table = run(code, put(store, 7), isolate=isolate)
    assert failed(table) == {}
    assert sorted((path, row["n"]) for path, row in results(table) if row) == [
        (f"{at:03}.txt", n) for at in range(7) for n in range(at)
    ]


@pytest.mark.parametrize("start", ["async def f(file):", "import volstream\n@volstream.function(concurrency=2)\ndef f(file):"])
def test_a_failure_is_the_functions_own(run: Runner, store: MemoryStore, start: str) -> None:
    table = run(f"{start}\n    raise TimeoutError('of the model')", put(store, 3), timeout_seconds=60)
    assert set(failed(table).values()) == {(FailureKind.RAISED, "TimeoutError: of the model")}
    trace = table["error_traceback"].to_pylist()[0]
    assert trace.splitlines()[1].endswith("in f")
    assert "volstream/functions" not in trace


@pytest.mark.parametrize(
    "body",
    [
        "asyncio.get_running_loop().stop()",
        "asyncio.ensure_future(ends())",
        "asyncio.current_task().cancel()",
        "raise SystemExit(3)",
    ],
    ids=["stop", "task", "cancel", "exit"],
)
def test_a_coroutine_that_ends_more_than_itself_harms_no_other(run: Runner, store: MemoryStore, body: str) -> None:
    code = (
        "import asyncio\nasync def ends(): raise SystemExit(3)\nasync def f(file):\n"
        f"    if file.size == 3: {body}\n    await asyncio.sleep(0.01)\n    return {{'n': file.size}}"
    )
    table = run(code, put(store, 70), timeout_seconds=30)
    assert set(failed(table)) <= {"003.txt"}
    assert len(results(table)) == 70


def test_a_set_up_that_fails_is_the_failure_of_each_file(run: Runner, store: MemoryStore) -> None:
    code = "class f:\n    async def setup(self): raise OSError('no model')\n    async def __call__(self, file): pass"
    assert set(failed(run(code, put(store, 2))).values()) == {(FailureKind.SET_UP, "OSError: no model")}


def test_a_number_of_calls_below_one_is_rejected() -> None:
    with pytest.raises(InvalidValueError, match="concurrency=1 or more"):
        function(concurrency=0)


def test_a_declared_function_stays_as_it_is() -> None:
    def plain(file: object) -> None: ...

    declared: Callable[[object], None] = function(concurrency=4)(plain)
    assert declared is plain


@pytest.mark.parametrize("isolate", EVERYWHERE)
def test_a_function_of_several_files_asks_for_all_of_them_at_once(run: Runner, store: MemoryStore, isolate: bool) -> None:
    code = (
        "import volstream\ncalls = []\n@volstream.function(batch_size=4)\ndef f(files):\n"
        "    calls.append(files)\n    raise volstream.RetryLater(f'call {len(calls)}', after=7)"
    )
    table = run(code, put(store, 4), isolate=isolate)
    assert set(failed(table).values()) == {(FailureKind.RETRY_LATER, "call 1")}
    assert table["retry_after"].to_pylist() == [7.0] * 4


@pytest.mark.parametrize("after", [0, -1, float("nan"), float("inf")])
def test_later_is_a_number_of_seconds(after: float) -> None:
    with pytest.raises(InvalidValueError, match="cannot be called again"):
        RetryLater("busy", after)


@pytest.mark.long
@pytest.mark.parametrize("isolate", EVERYWHERE)
@pytest.mark.parametrize("after", ["float('nan')", "-1e300", "'soon'", "None", "property(lambda error: 1 / 0)"])
def test_one_file_that_asks_for_no_number_of_seconds_harms_no_other(
    run: Runner, store: MemoryStore, after: str, isolate: bool
) -> None:
    code = (
        f"import volstream\nclass Busy(volstream.RetryLater):\n    after = {after}\n"
        "    def __init__(self, why): Exception.__init__(self, why)\n"
        "def f(file):\n    if file.relative_path == '000.txt': raise Busy('busy')\n    return {'n': 1}"
    )
    table = run(code, put(store, 2), isolate=isolate)
    assert failed(table) == {"000.txt": (FailureKind.RAISED, "Busy: busy")}
    assert results(table) == [("000.txt", None), ("001.txt", {"n": 1})]


def test_later_needs_no_call_of_its_init_and_no_reason_that_can_be_shown(run: Runner, store: MemoryStore) -> None:
    code = (
        "import volstream\nclass Busy(volstream.RetryLater):\n    def __init__(self): pass\n"
        "    def __str__(self): raise ValueError\n"
        "def f(file): raise Busy()"
    )
    table = run(code, put(store, 1))
    assert set(failed(table).values()) == {(FailureKind.RETRY_LATER, "Busy (its message cannot be shown)")}
    assert table["retry_after"].to_pylist() == [60.0]

"""Functions in child processes, and their memory limit: an executor's pass with real processes, without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import psutil
import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from tests.running import BATCH, Frozen, Runner, failed, results
from tests.waiting import eventually
from volstream.base.model.work import FailureKind
from volstream.base.processes import is_alive, name_of_start

MIB = 1 << 20


@pytest.mark.parametrize(
    ("death", "message"),
    [
        ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
        pytest.param("import os; os._exit(0)", "ended with exit status 0", marks=pytest.mark.long),
        pytest.param("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL", marks=pytest.mark.long),
        pytest.param("import os; os._exit(7)", "ended with exit status 7", marks=pytest.mark.long),
    ],
)
def test_a_function_that_crashes_its_process_fails_only_its_file(
    isolated: Callable[..., pa.Table], death: str, message: str
) -> None:
    table = isolated(f"def f(file):\n    if file.name == 'b':\n        {death}\n    return {{'n': 1}}", "abc")
    ((path, (kind, text)),) = failed(table).items()
    assert (path, kind) == ("b", FailureKind.WORKER_DIED)
    assert message in text
    assert [path for path, row in results(table) if row] == ["a", "c"]


def test_code_that_never_returns_to_python_is_killed(isolated: Callable[..., pa.Table]) -> None:
    code = "import signal\ndef f(file):\n    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n    signal.pause()"
    assert failed(isolated(code, "a", timeout_seconds=0.1)) == {
        "a": (FailureKind.TIMED_OUT, "The function ran longer than 100ms and was killed.")
    }


def test_an_interruptible_child_is_interrupted_and_kept(isolated: Callable[..., pa.Table]) -> None:
    code = """
import os, threading
def f(file):
    if file.name == "b":
        threading.Event().wait(60)
    return {"n": os.getpid()}
"""
    table = isolated(code, "abc", timeout_seconds=1.5)
    assert failed(table)["b"][0] is FailureKind.TIMED_OUT
    (_, first), _, (_, last) = results(table)
    assert first == last
    assert first is not None


def test_output_of_an_isolated_function_does_not_corrupt_its_results(
    isolated: Callable[..., pa.Table], capfd: pytest.CaptureFixture[str]
) -> None:
    code = "import os\ndef f(file):\n    print('x' * 100_000)\n    os.write(1, b'raw')\n    os.system('echo shell')\n    return {'n': 1}"
    assert results(isolated(code, "ab")) == [("a", {"n": 1}), ("b", {"n": 1})]
    assert capfd.readouterr().out == ""


def test_values_of_classes_known_only_to_the_child_are_returned(isolated: Callable[..., pa.Table]) -> None:
    code = """
from dataclasses import dataclass
from enum import StrEnum
class Colour(StrEnum):
    RED = "red"
@dataclass
class Row:
    s: str
def f(file):
    return Row(Colour.RED)
"""
    assert results(isolated(code, "a", "s STRING")) == [("a", {"s": "red"})]


def test_a_wrong_result_of_an_isolated_function_fails_only_its_file(isolated: Callable[..., pa.Table]) -> None:
    table = isolated("def f(file): return {'n': lambda: 1} if file.name == 'a' else {'n': 2}", "ab")
    assert failed(table)["a"][0] is FailureKind.WRONG_RESULT
    assert results(table)[1] == ("b", {"n": 2})


def test_an_isolated_function_that_cannot_be_imported_fails_each_file(isolated: Callable[..., pa.Table]) -> None:
    table = isolated("import os\nos._exit(4)\ndef f(file): pass", "ab")
    assert {path: kind for path, (kind, _) in failed(table).items()} == dict.fromkeys("ab", FailureKind.WORKER_DIED)


def test_all_types_are_returned_alike_with_and_without_isolation(
    run: Runner, store: MemoryStore, isolated: Callable[..., pa.Table]
) -> None:
    returns = (
        "a ARRAY<INT>, m MAP<STRING, DOUBLE>, s STRUCT<x: INT, y: STRING>, t TIMESTAMP, u TIMESTAMP_NTZ, d DATE, "
        "e DECIMAL(5, 2), b BINARY, g FLOAT, h BOOLEAN, n STRING"
    )
    code = """
from datetime import date, datetime, timezone
from decimal import Decimal
def f(file):
    return {
        "a": [1, None], "m": {"k": 1.5}, "s": {"x": 1, "y": None}, "t": datetime(2024, 1, 2, 3, tzinfo=timezone.utc),
        "u": datetime(2024, 1, 2, 3), "d": date(2024, 1, 2), "e": Decimal("1.25"), "b": b"\\0\\xff", "g": 0.1, "h": True,
    }
"""
    here = run(code, [store.put("a", b"")], returns)
    assert failed(here) == {}
    assert isolated(code, "a", returns)["result"].equals(here["result"])


def test_a_file_that_kills_its_child_is_identified_within_its_group(isolated: Callable[..., pa.Table]) -> None:
    code = (
        f"import os\n{BATCH}    if any(file.name == 'c' for file in files): os._exit(3)\n"
        "    return [{'n': len(files)} for file in files]"
    )
    table = isolated(code, "abcd")
    assert list(failed(table)) == ["c"]
    assert [row and row["n"] for _, row in results(table)] == [1, 1, None, 1]


def test_the_last_words_of_a_child_are_kept(isolated: Callable[..., pa.Table]) -> None:
    code = "import os, sys\ndef f(file):\n    os.write(2, b'x' * 100_000 + b'the plate is bent')\n    os.abort()"
    table = isolated(code, "a")
    trace = table["error_traceback"][0].as_py()
    assert "the plate is bent" in trace
    assert "Aborted" in trace
    assert len(trace) < 10_000


@pytest.mark.parametrize("isolate", [False, True])
def test_a_function_that_exceeds_its_memory_fails_only_its_file(run: Runner, store: MemoryStore, isolate: bool) -> None:
    files = [store.put(name, b"") for name in "abc"]
    code = f"def f(file):\n    if file.name == 'b': bytearray({1024 * MIB})\n    return {{'n': 1}}"
    table = run(code, files, isolate=isolate, memory_bytes=300 * MIB, store=Frozen(files))
    assert failed(table) == {
        "b": (
            FailureKind.OUT_OF_MEMORY,
            "The function needs more than 300.0 MiB of memory (option --memory, setting function_memory).",
        )
    }
    assert [row for _, row in results(table) if row] == [{"n": 1}] * 2


def test_a_function_that_retains_memory_does_not_fail_later_files(run: Runner, store: MemoryStore) -> None:
    files = [store.put(name, b"") for name in "abcd"]
    code = f"kept = []\ndef f(file):\n    kept.append(bytearray({100 * MIB}))\n    return {{'n': len(kept)}}"
    table = run(code, files, memory_bytes=250 * MIB, store=Frozen(files))
    assert failed(table) == {}
    # A third does not fit beside two others: it runs in a child that starts empty.
    assert [row and row["n"] for _, row in results(table)][:3] == [1, 2, 1]


def test_a_child_never_outlives_its_worker() -> None:
    reads, writes = os.pipe()  # held open here: the child does not learn of the end by its pipe
    worker = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "volstream.functions.serving", str(os.getpid()), *sys.argv[1:]],
                         pass_fds=[int(one) for one in sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(60)
"""
    words = [sys.executable, "-c", worker, str(reads), str(writes)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=(reads, writes), text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        started = name_of_start(child)
        eventually(lambda: "volstream.functions.serving" in " ".join(psutil.Process(child).cmdline()))
        process.kill()
    try:
        eventually(lambda: not is_alive(child, started))
    finally:
        os.close(reads)
        os.close(writes)

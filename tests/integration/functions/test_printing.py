"""Output and logs of a function are returned with the outcomes, within bounds and attributed to their file."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from tests.running import BATCH, Runner, failed, results
from volstream.base.model.work import FailureKind
from volstream.functions.printing import PRINTED_LAST, Capture, TruncatedLog
from volstream.functions.rows import Bounds

#: Prints in each way that there is.
TALKATIVE = """
import logging, sys, warnings
print("imported")
def f(file):
    print("one", file.name)
    sys.stderr.write("two\\n")
    logging.getLogger("mine").warning("three of %s", file.size)
    logging.info("not shown, as in any program")
    sys.stdout.buffer.write(b"f\\xffve\\n")
    print("no end", end="")
    return {"n": 1}
"""


@contextmanager
def nobody_set_logging_up() -> Iterator[None]:
    """Logging as in a worker; pytest installs its own handlers while a test runs."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


def printed(table: pa.Table) -> list[dict[str, Any]]:
    return [json.loads(text) for text in table["printed"].to_pylist() if text is not None]


def texts(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(stream, text) for _, stream, text in entry["lines"]]


def test_prints_logs_and_warnings_are_kept_with_the_file(
    run: Runner, store: MemoryStore, capfd: pytest.CaptureFixture[str]
) -> None:
    with nobody_set_logging_up():
        table = run(TALKATIVE, [store.put("a/b", b"12")])
    set_up, call = printed(table)
    assert (set_up["files"], texts(set_up)) == ([], [("stdout", "imported")])
    assert (call["files"], call["failed"], call["dropped"]) == (["a/b"], False, 0)
    assert texts(call) == [
        ("stdout", "one b"),
        ("stderr", "two"),
        ("log", "WARNING mine: three of 2"),
        ("stdout", "f\\xffve"),
        ("stdout", "no end"),
    ]
    assert results(table)[0] == ("a/b", {"n": 1})
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_output_rows_belong_to_no_file(run: Runner, store: MemoryStore) -> None:
    table = run("def f(file): print('x')", [store.put("a", b"")])
    of_no_file = table.filter(pa.compute.is_null(table["path"]))
    assert of_no_file.num_rows == 1
    assert set(of_no_file.drop_columns("printed").to_pylist()[0].values()) == {None}


def test_a_function_may_configure_logging_itself(run: Runner, store: MemoryStore) -> None:
    code = """
import logging, sys
mine = logging.getLogger("own")
mine.setLevel("INFO")
mine.addHandler(logging.StreamHandler(sys.stdout))
def f(file): mine.info("hello")
"""
    for _ in range(2):  # the module is imported once, and its handler writes to what it found then
        (entry,) = printed(run(code, [store.put("a", b"")]))
        assert texts(entry) == [("stdout", "hello")]


def test_the_last_lines_are_kept_and_dropped_ones_counted(run: Runner, store: MemoryStore) -> None:
    code = "def f(file):\n    for n in range(1000): print(f'line {n:04}')\n    print('y' * 1_000_000)"
    (entry,) = printed(run(code, [store.put("a", b"")], bounds=Bounds(log_file_bytes=5000)))
    assert entry["lines"][-1][2].startswith("yyyy")
    assert sum(len(text) for _, _, text in entry["lines"]) <= 5000
    assert entry["dropped"] + len(entry["lines"]) == 1001


def test_a_progress_bar_is_kept_in_its_final_state() -> None:
    capture = Capture(1000)
    with capture.during():
        for done in range(0, 101, 10):
            sys.stderr.write(f"\r{done}%")
        sys.stderr.write("\ndone\r\n")
    (found,) = capture.take(["a"])
    assert [line.text for line in found.lines] == ["100%", "done"]


def test_lines_from_several_threads_do_not_mix() -> None:
    capture = Capture(1_000_000)

    def talk(name: str) -> None:
        for _ in range(500):
            sys.stdout.write(f"<{name}")
            sys.stdout.write(f"{name}>\n")

    with capture.during():
        threads = [threading.Thread(target=talk, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    (found,) = capture.take(["a"])
    assert sorted(line.text for line in found.lines) == sorted([f"<{name}{name}>" for name in "abc"] * 500)


def test_a_batch_keeps_its_newest_output_and_that_of_failed_files_longest() -> None:
    kept = TruncatedLog(100)
    for number in range(20):
        kept.add(f"{number:010}", failed=number in (3, 4))
    assert kept.entries() == [f"{number:010}" for number in (3, 4, *range(12, 20))]
    assert json.loads(kept.encoded()[0]) == {"lost": 10}


def test_a_failure_shows_the_last_lines_printed(run: Runner, store: MemoryStore) -> None:
    code = "def f(file):\n    for n in range(100): print('step', n)\n    raise ValueError('no good')"
    table = run(code, [store.put("a", b"")])
    trace = table["error_traceback"][0].as_py()
    assert trace.startswith("Traceback")
    assert trace.endswith(f"{PRINTED_LAST}\n" + "\n".join(f"[stdout] step {n}" for n in range(90, 100)))
    assert printed(table)[0]["failed"]


def test_a_failing_setup_shows_its_output(run: Runner, store: MemoryStore) -> None:
    code = "class f:\n    def __init__(self): print('loading'); raise OSError('none')\n    def __call__(self, file): pass"
    table = run(code, [store.put("a", b"")])
    assert failed(table) == {"a": (FailureKind.SET_UP, "OSError: none")}
    assert table["error_traceback"][0].as_py().endswith("[stdout] loading")
    assert [entry["files"] for entry in printed(table)] == [[]]


def test_output_of_a_group_is_kept_with_all_of_its_files(run: Runner, store: MemoryStore) -> None:
    body = "    print(len(files))\n    if len(files) > 1: raise ValueError\n    return [{'n': 1}]"
    table = run(BATCH + body, [store.put(name, b"") for name in "ab"])
    assert [(entry["files"], texts(entry)) for entry in printed(table)] == [
        (["a", "b"], [("stdout", "2")]),
        (["a"], [("stdout", "1")]),
        (["b"], [("stdout", "1")]),
    ]


def test_output_of_a_child_process_is_returned(isolated: Callable[..., pa.Table]) -> None:
    table = isolated(TALKATIVE, ["a", "b"])
    assert [entry["files"] for entry in printed(table)] == [[], ["a"], ["b"]]
    assert texts(printed(table)[1])[0] == ("stdout", "one a")


@pytest.mark.parametrize(
    ("deed", "kind", "seconds"),
    [
        ("os.kill(os.getpid(), 9)", FailureKind.WORKER_DIED, None),
        # The other files have that time, too, on whatever machine.
        pytest.param(
            "signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)", FailureKind.TIMED_OUT, 3.0, marks=pytest.mark.long
        ),
    ],
)
def test_output_of_a_child_process_outlives_it(
    isolated: Callable[..., pa.Table], deed: str, kind: FailureKind, seconds: float | None
) -> None:
    code = f"""
import os, signal, time
def f(file):
    print("page 1 of", file.name)
    if file.name == "b":
        print("x" * 3_000_000)
        print("page 2")
        {deed}
    return {{"n": 1}}
"""
    table = isolated(code, ["a", "b", "c"], timeout_seconds=seconds)
    assert {path: found for path, (found, _) in failed(table).items()} == {"b": kind}
    entry = next(one for one in printed(table) if one["files"] == ["b"])
    assert entry["failed"]
    assert ("stderr", "page 2") in texts(entry)
    # Of this call alone.
    assert not any("of a" in text for _, text in texts(entry))


def test_two_workers_in_one_process_do_not_capture_each_others_output(run: Runner, store: MemoryStore) -> None:
    one, other = Capture(100), Capture(100)
    with one.during():
        sys.stdout.write("a")
        with other.during():
            sys.stdout.write("b")
        sys.stdout.write("c")
    assert [[line.text for line in each.take(["x"])[0].lines] for each in (one, other)] == [["ac"], ["b"]]


def test_bad_format_arguments_in_a_log_call_are_not_an_error(run: Runner, store: MemoryStore) -> None:
    code = "import logging\ndef f(file):\n    logging.warning('%d', 'x')\n    return {'n': 1}"
    with nobody_set_logging_up():
        table = run(code, [store.put("a", b"")])
    assert failed(table) == {}
    assert any("Logging error" in text for _, text in texts(printed(table)[0]))


@pytest.mark.parametrize("deed", ["sys.stdout.close()", "os.close(2)", "os.dup2(os.pipe()[1], 2)"])
def test_closing_its_output_does_not_affect_later_functions(isolated: Callable[..., pa.Table], deed: str) -> None:
    code = (
        f"import os, sys\ndef f(file):\n    print(file.name, flush=True)\n    if file.name == 'a': {deed}\n    return {{'n': 1}}"
    )
    table = isolated(code, ["a", "b"])
    assert [row for _, row in results(table) if row] == [{"n": 1}] * 2
    assert [entry["lines"][0][2] for entry in printed(table)] == ["a", "b"]

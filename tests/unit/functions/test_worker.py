"""A job's function on an executor: the pass over a partition, without Spark."""

from __future__ import annotations

import builtins
import dataclasses
import json
import subprocess
import sys
import threading
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.memory import MemoryStore
from tests.running import Frozen, Runner, failed, outcomes, planned, results
from volstream.base.model.work import FailureKind
from volstream.errors import StorageDeniedError, StorageError, StorageThrottledError
from volstream.files.storage.local import LocalStore
from volstream.functions import worker
from volstream.functions.file import File
from volstream.functions.schema import PROVENANCE, from_ddl
from volstream.jobs.batches.staging import RowsTarget, Task


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return {'n': 1}", [{"n": 1}]),
        ("return None", [None]),
        ("return []", [None]),
        ("return [{'n': 1}, {'n': 2}]", [{"n": 1}, {"n": 2}]),
        ("return ({'n': n} for n in range(2))", [{"n": 0}, {"n": 1}]),
        ("yield {'n': 1}; yield Row(2)", [{"n": 1}, {"n": 2}]),
        ("return Row(3)", [{"n": 3}]),
        ("return (Row(3), Row(4))", [{"n": 3}, {"n": 4}]),
        ("return {}", [{"n": None}]),
        ("return {'n': None}", [{"n": None}]),
    ],
)
def test_what_a_function_returns_becomes_rows(run: Runner, store: MemoryStore, body: str, expected: list[object]) -> None:
    file = store.put("a", b"x")
    code = f"from dataclasses import dataclass\n@dataclass\nclass Row:\n    n: int\ndef f(file):\n    {body}\n"
    table = run(code, [file])
    assert table["result"].to_pylist() == expected
    assert table["rows"].to_pylist() == [0 if expected == [None] else len(expected), *[None] * (len(expected) - 1)]
    assert table["error_kind"].null_count == len(expected)
    assert set(zip(table["path"].to_pylist(), table["file_version"].to_pylist(), strict=True)) == {("a", file.etag)}
    assert set(table["commit_version"].to_pylist()) == {7}


def test_a_function_sees_the_file_and_its_arguments(run: Runner, store: MemoryStore) -> None:
    file = store.put("d/ü #1.txt", "héllo".encode())
    code = """
def f(file, *, greeting):
    with file.open() as content:
        assert content.seek(0, 2) == file.size
    path = file.local_path()
    assert path.read_bytes() == file.read_bytes()
    return {"s": "|".join([greeting, file.name, file.relative_path, file.url.rpartition("/")[2], file.etag, file.read_text()])}
"""
    table = run(code, [file], "s STRING", arguments={"greeting": "hi"})
    assert table["result"].to_pylist() == [{"s": f"hi|ü #1.txt|d/ü #1.txt|%C3%BC%20%231.txt|{file.etag}|héllo"}]


@pytest.mark.parametrize(
    ("name", "copied"),
    [("a.pdf", "a.pdf"), ("in/" + "名" * 100 + ".pdf", "名" * 83 + ".pdf"), ("a." + "x" * 300, "." + "x" * 254), ("in/..", "_")],
)
def test_a_copy_has_a_name_that_a_disk_can_hold(store: MemoryStore, name: str, copied: str) -> None:
    file = File(store, store.put(name, b"content"))
    assert file.local_path().name == copied
    assert file.local_path().read_bytes() == b"content"
    file.close()


def test_copies_of_a_file_are_removed_when_the_function_returns(run: Runner, store: MemoryStore) -> None:
    file = store.put("a", b"x")
    table = run("def f(file):\n    return {'s': str(file.local_path())}", [file], "s STRING")
    assert not Path(table["result"][0]["s"].as_py()).exists()


def test_parts_of_a_file_end_where_it_ends(run: Runner, store: MemoryStore) -> None:
    code = (
        "def f(file):\n    parts = [file.read_range(*at).decode() for at in ((0, 2), (3, 9), (5, 1), (2, 0))]\n"
        "    return {'s': repr([parts, dict(file.metadata), dict(file.tags), file.storage_class])}"
    )
    rows = results(run(code, [store.put("a", b"01234")], "s STRING"))
    assert rows == [("a", {"s": "[['01', '34', '', ''], {}, {}, None]"})]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("read_range(-1, 5)", "ValueError: read_range(-1, 5): neither can be negative."),
        ("read_range(0, -5)", "ValueError: read_range(0, -5): neither can be negative."),
        ("presigned_url(0)", "ValueError: presigned_url(0): give from 1 to 604800 seconds."),
        ("presigned_url()", "InvalidValueError: a is in memory, so it has no presigned URL."),
    ],
)
def test_what_cannot_be_asked_of_a_file_fails_it(run: Runner, store: MemoryStore, call: str, message: str) -> None:
    assert failed(run(f"def f(file):\n    file.{call}", [store.put("a", b"x")])) == {"a": (FailureKind.RAISED, message)}


def test_one_bad_file_never_stops_the_others(run: Runner, store: MemoryStore) -> None:
    files = [store.put(f"{number}", b"") for number in range(5)]
    table = run(
        "def f(file):\n    if file.name in '13':\n        raise ValueError(f'not {file.name}')\n    return {'n': int(file.name)}",
        files,
    )
    assert results(table) == [("0", {"n": 0}), ("1", None), ("2", {"n": 2}), ("3", None), ("4", {"n": 4})]
    assert failed(table) == {"1": (FailureKind.RAISED, "ValueError: not 1"), "3": (FailureKind.RAISED, "ValueError: not 3")}
    trace = table["error_traceback"][1].as_py()
    assert "code.py" in trace
    assert "raise ValueError" in trace
    assert "runtime.py" not in trace


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("import sys\ndef f(file): sys.exit(3)", FailureKind.RAISED, "SystemExit: 3"),
        ("def f(file): raise KeyboardInterrupt", FailureKind.RAISED, "KeyboardInterrupt"),
        ("import asyncio\ndef f(file): raise asyncio.CancelledError", FailureKind.RAISED, "CancelledError"),
        ("def f(file):\n    yield {'n': 1}\n    raise KeyError('late')", FailureKind.RAISED, "KeyError: 'late'"),
        ("def f(file, other): pass", FailureKind.RAISED, "missing 1 required positional argument"),
        ("def f(file): return f(file)", FailureKind.RAISED, "RecursionError"),
        ("def f(file): raise ValueError('half \\udcff')", FailureKind.RAISED, "half \\udcff"),
        ("class E(Exception):\n    def __str__(self): 1 / 0\ndef f(file): raise E", FailureKind.RAISED, "E (its message"),
        ("def f(file): return 'text'", FailureKind.WRONG_RESULT, "returned a value of type str"),
        ("def f(file): return 5", FailureKind.WRONG_RESULT, "returned a value of type int"),
        ("def f(file): return [{'n': 1}, 5]", FailureKind.WRONG_RESULT, "returned a value of type int instead of a row"),
        (
            "def f(file): return {'n': 'many'}",
            FailureKind.WRONG_RESULT,
            "Column 'n' of row 0 cannot be BIGINT: 'many' (it is of type str).",
        ),
        ("def f(file): return [{'n': 1}, {'n': 1 << 70}]", FailureKind.WRONG_RESULT, "Column 'n' of row 1"),
        ("def f(file): return {'n': 1, 'm': 2}", FailureKind.WRONG_RESULT, "an undeclared column 'm'"),
        (
            "import pydantic\nclass M(pydantic.BaseModel, extra='allow'):\n    n: int\ndef f(file) -> M: return M(n=1, zz=2)",
            FailureKind.WRONG_RESULT,
            "an undeclared column 'zz'",
        ),
        ("def f(file): return {'n': 1, 7: 2}", FailureKind.WRONG_RESULT, "an undeclared column '7'"),
        ("def f(file): return {'n': object()}", FailureKind.WRONG_RESULT, "Column 'n' of row 0"),
    ],
)
def test_an_error_in_a_function_is_a_failure_of_its_file(
    run: Runner, store: MemoryStore, code: str, kind: FailureKind, message: str
) -> None:
    file = store.put("a", b"x")
    found = failed(run(code, [file]))
    assert found["a"][0] is kind
    assert message in found["a"][1]


def test_a_decimal_with_more_digits_than_any_type_fails_its_file_and_not_the_worker(run: Runner, store: MemoryStore) -> None:
    """PyArrow would read beyond its table of powers, and the process would end."""
    code = "from decimal import Decimal\ndef f(file): return {'n': [Decimal('1e-99999999' if file.name == 'b' else '1.50')]}"
    table = run(code, [store.put("a", b""), store.put("b", b"")], "n ARRAY<DECIMAL(10,2)>")
    assert failed(table)["b"][0] is FailureKind.WRONG_RESULT
    assert "at most 38 digits after the point" in failed(table)["b"][1]
    assert dict(results(table))["a"] == {"n": [Decimal("1.50")]}


def test_a_wrong_value_is_found_among_valid_ones(run: Runner, store: MemoryStore) -> None:
    files = [store.put(f"{number:02}", b"") for number in range(20)]
    table = run("def f(file): return {'n': 'x' if file.name == '11' else 1}", files)
    assert list(failed(table)) == ["11"]
    assert [path for path, row in results(table) if row == {"n": 1}] == [f"{n:02}" for n in range(20) if n != 11]


def test_a_function_that_cannot_be_imported_is_reported_with_each_file(run: Runner, store: MemoryStore) -> None:
    files = [store.put("a", b""), store.put("b", b"")]
    table = run("import not_installed_anywhere\ndef f(file): pass", files)
    assert {path: kind for path, (kind, _) in failed(table).items()} == dict.fromkeys("ab", FailureKind.SET_UP)
    assert "Install not_installed_anywhere" in failed(table)["a"][1]


def test_an_import_inside_the_function_finds_neighbouring_modules(run: Runner, store: MemoryStore, tmp_path: Path) -> None:
    (tmp_path / "beside_runtime.py").write_text("N = 8")
    file = store.put("a", b"")
    code = "def f(file):\n    import beside_runtime\n    return {'n': beside_runtime.N}"
    assert results(run(code, [file])) == [("a", {"n": 8})]
    assert results(run(code, [file], isolate=True, store=Frozen([file]))) == [("a", {"n": 8})]


def test_a_function_that_runs_too_long_is_interrupted(run: Runner, store: MemoryStore) -> None:
    files = [store.put("slow", b""), store.put("fast", b"")]
    code = "import threading\ndef f(file):\n    if file.name == 'slow':\n        threading.Event().wait(60)\n    return {'n': 1}"
    table = run(code, files, timeout_seconds=0.2)
    assert failed(table) == {"slow": (FailureKind.TIMED_OUT, "The function ran longer than 200ms.")}
    assert results(table)[1] == ("fast", {"n": 1})


def test_a_function_that_catches_everything_is_interrupted_too(run: Runner, store: MemoryStore) -> None:
    file = store.put("a", b"")
    code = "import threading\ndef f(file):\n    try:\n        threading.Event().wait(60)\n    except Exception:\n        return {'n': 1}"
    assert failed(run(code, [file], timeout_seconds=0.2))["a"][0] is FailureKind.TIMED_OUT


def test_a_time_limit_does_not_outlive_the_function(run: Runner, store: MemoryStore) -> None:
    import signal

    before = signal.getsignal(signal.SIGALRM)
    run("def f(file): return {'n': 1}", [store.put("a", b"")], timeout_seconds=30)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_without_a_main_thread_there_is_no_time_limit_and_no_error(run: Runner, store: MemoryStore) -> None:
    work = run.work("def f(file): return {'n': 1}", timeout_seconds=30)
    file = store.put("a", b"")
    found: list[pa.Table] = []
    thread = threading.Thread(target=lambda: found.append(outcomes(work, [file])))
    thread.start()
    thread.join()
    assert results(found[0]) == [("a", {"n": 1})]


def test_a_file_that_vanished_or_changed_yields_no_result(run: Runner, store: MemoryStore) -> None:
    vanished, changed, kept = store.put("vanished", b"1"), store.put("changed", b"1"), store.put("kept", b"1")
    store.delete("vanished")
    store.put("changed", b"2")
    table = run("def f(file): return {'n': len(file.read_bytes())}", [vanished, changed, kept])
    assert {path: kind for path, (kind, _) in failed(table).items()} == {
        "vanished": FailureKind.VANISHED,
        "changed": FailureKind.CHANGED,
    }
    assert results(table)[2] == ("kept", {"n": 1})


@pytest.mark.parametrize("heads", [False, True])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StorageError("The disk hiccupped."), FailureKind.UNREADABLE),
        (StorageDeniedError("Not yours."), FailureKind.DENIED),
        (StorageThrottledError("Slow down."), FailureKind.STORE),
    ],
)
def test_an_unreadable_file_says_whether_the_error_is_transient(
    run: Runner, store: MemoryStore, error: StorageError, kind: FailureKind, heads: bool
) -> None:
    file = store.put("a", b"")
    table = run("def f(file): return {'n': len(file.read_bytes())}", [file], store=Frozen([file], error, heads=heads))
    assert failed(table) == {"a": (kind, str(error))}


def test_records_are_passed_on_before_the_partition_ends(run: Runner, store: MemoryStore, tmp_path: Path) -> None:
    files = [store.put(f"{number:04}", b"") for number in range(6)]
    work = run.work("def f(file): return [{'n': n} for n in range(900)]")
    target = RowsTarget(str(tmp_path), pa.schema([*from_ddl("n BIGINT"), *PROVENANCE]), "_file_path", "b")
    replies = [batch["rows"].drop_null().to_pylist() for batch in Task(work, target)([planned(files)])]
    # Files are never split: three files pass the limit of 2,000 together.
    assert replies == [[900] * 3, [900] * 3, []]


def test_a_partition_without_files_yields_nothing(run: Runner) -> None:
    assert list(worker.outcomes(run.work("def f(file): pass"), [])) == []


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("import no_such_module", FailureKind.CODE),
        ("from beside import nothing", FailureKind.CODE),
        ("import broken", FailureKind.CODE),
        ("compile('1 +', file.name, 'exec')", FailureKind.RAISED),
        ("import json; json.loads('{')", FailureKind.RAISED),
    ],
)
def test_errors_of_the_code_are_distinguished_from_errors_of_a_file(
    run: Runner, store: MemoryStore, body: str, kind: FailureKind
) -> None:
    (run.folder / "beside.py").write_text("")
    (run.folder / "broken.py").write_text("")
    work = run.work(f"def f(file):\n    {body}\n")
    (run.folder / "broken.py").write_text("def (:\n")
    # The code as it travels is what it was; another file beside it, which the function finds, is broken.
    work = dataclasses.replace(work, source=dataclasses.replace(work.source, files={"code.py": work.source.files["code.py"]}))
    assert failed(outcomes(work, [store.put("a.py", b"")]))["a.py"][0] is kind


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("n: int\n    score: float", "It declares a column score DOUBLE, which is new."),
        ("n: str", "It declares the column n as STRING, which was BIGINT."),
        ("n: int", None),
        ("", None),
    ],
)
def test_columns_missing_from_the_result_are_detected_before_any_file_is_touched(
    run: Runner, store: MemoryStore, fields: str, said: str | None
) -> None:
    code = f"""
from dataclasses import dataclass
@dataclass
class Row:
    {fields or "pass"}
def f(file) -> Row:
    print("called")
"""
    table = run(code, [store.put("a", b"")], declared=True)
    if said is None:
        assert failed(table) == {}
    else:
        kind, message = failed(table)["a"]
        assert (kind, said in message) == (FailureKind.SET_UP, True), message
        assert table["printed"].null_count == table.num_rows
    # Where the user says what the columns are, the function's annotation is not asked.
    assert failed(run(code, [store.put("a", b"")])) == {}


def test_nothing_that_arrow_imports_late_is_left_to_a_worker_with_limited_memory() -> None:
    code = "import sys, volstream.functions.worker; sys.exit('pyarrow.compute' not in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_function_replaces_in_its_process_ends_no_run(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "dumps", json.dumps)  # these come back after the test
    monkeypatch.setattr(builtins, "open", open)
    (tmp_path / "volume").mkdir()
    for number in range(2):
        (tmp_path / "volume" / f"{number}.txt").write_text("1")
    store = LocalStore(str(tmp_path / "volume"))
    files = [info for number in range(2) if (info := store.head(f"{number}.txt"))]
    code = (
        "import builtins, io, json\n"
        "def f(file):\n"
        "    json.dumps, builtins.open = (lambda *given, **named: 'fake'), (lambda *given, **named: io.StringIO('fake'))\n"
        "    print('hello')\n"
        "    file.count('tokens', 1)\n"
        "    return {'n': int(file.read_text())}\n"
    )
    for _ in range(2):
        made = run(code, files, memory_bytes=8 << 30, store=store)
        assert [result for _, result in results(made)] == [{"n": 1}] * 2
        assert [json.loads(one) for one in made["counted"].to_pylist() if one] == [{"tokens": 1}] * 2
        printed = [json.loads(one) for one in made["printed"].to_pylist() if one]
        assert "hello" in str(printed)

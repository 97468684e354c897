"""Functions in environments, in which volstream is not installed: an executor's pass with real processes, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.environments import environment
from tests.memory import MemoryStore
from tests.running import BATCH, IN_FLIGHT, Runner, failed, outcomes, results
from volstream.base.model.work import FailureKind
from volstream.errors import FunctionLoadError
from volstream.functions.declared import declared_by
from volstream.functions.finding import find
from volstream.functions.pickled import archive_of, source_of
from volstream.functions.processes import Environment
from volstream.functions.trial import try_function

#: Runs source text over files with these contents.
Apart = Callable[..., pa.Table]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = environment(tmp_path_factory.mktemp("own") / "venv", clasher="VERSION = '7'")
    return Environment(str(folder), str(folder / "bin" / "python"))


@pytest.fixture
def apart(run: Runner, store: MemoryStore, own: Environment) -> Apart:
    def call(code: str, names: Sequence[str], returns: str = "n BIGINT", **options: Any) -> pa.Table:
        files = [store.put(name, name.encode()) for name in names]
        work = run.work(code, returns, **options)
        return outcomes(replace(work, source=replace(work.source, environment=own)), files)

    return call


def test_a_function_has_the_packages_of_its_environment_and_none_of_volstreams(apart: Apart) -> None:
    code = """
import importlib.util
import clasher
def f(file):
    ours = ("sqlalchemy", "click", "pandas", "pyspark.sql", "psutil")
    return {"s": clasher.VERSION, "n": sum(importlib.util.find_spec(name.partition(".")[0]) is not None for name in ours)}
"""
    # Of PySpark there is the folder with its part that unpickles functions.
    assert results(apart(code, "a", "s STRING, n BIGINT")) == [("a", {"s": "7", "n": 1})]


def test_the_variables_of_volstreams_process_do_not_lead_to_its_packages(
    apart: Apart, own: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/of/volstream")
    code = """
import os, subprocess, sys
def f(file):
    shown = subprocess.run(["python", "-c", "import sys; print(sys.prefix, '/of/volstream' in sys.path)"], capture_output=True)
    return {"s": shown.stdout.decode().strip()}
"""
    prefix = str(Path(own.python).parents[1])
    assert results(apart(code, "a", "s STRING")) == [("a", {"s": f"{prefix} False"})]


def test_contents_come_from_the_store_of_the_parent(apart: Apart) -> None:
    code = """
import io
def f(file):
    with file.open() as opened:
        opened.seek(1)
        rest = opened.read()
        opened.seek(-1, io.SEEK_END)
        last = opened.read(1)
    return {"s": f"{file.read_text()} {rest} {last} {file.local_path().read_bytes()} {file.url} {file.tags}"}
"""
    [(_, row)] = results(apart(code, ["abc"], "s STRING"))
    assert row is not None
    assert row["s"].startswith("abc b'bc' b'c' b'abc' memory://")


def test_a_file_that_vanished_is_reported_as_such(run: Runner, store: MemoryStore, own: Environment) -> None:
    code = "def f(file):\n    try:\n        file.read_bytes()\n    except FileNotFoundError:\n        return {'n': 1}"
    work = run.work(code)
    gone = store.put("a", b"")._replace(relative_path="b")
    table = outcomes(replace(work, source=replace(work.source, environment=own)), [gone])
    assert failed(table)["b"][0] is FailureKind.VANISHED


def test_contents_are_fetched_ahead_in_several_threads(apart: Apart) -> None:
    names = [f"{number:02}" for number in range(40)]
    assert len(results(apart("def f(file): return {'n': int(file.read_text())}", names))) == 40


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("import os; os._exit(3)", FailureKind.WORKER_DIED, "ended with exit status 3"),
        pytest.param(
            "import ctypes; ctypes.string_at(0)", FailureKind.WORKER_DIED, "was killed by SIGSEGV", marks=pytest.mark.long
        ),
        pytest.param("while True: pass", FailureKind.TIMED_OUT, "ran longer than 1s", marks=pytest.mark.long),
        pytest.param(
            "import volstream; raise volstream.RetryLater('busy', after=5)",
            FailureKind.RETRY_LATER,
            "busy",
            marks=pytest.mark.long,
        ),
        ("raise ValueError('odd')", FailureKind.RAISED, "ValueError: odd"),
        ("import missing", FailureKind.CODE, "No module named 'missing'"),
    ],
)
def test_what_happens_to_a_call_happens_to_its_file_only(apart: Apart, body: str, kind: FailureKind, message: str) -> None:
    code = f"def f(file):\n    if file.name == 'b':\n        {body}\n    return {{'n': 1}}"
    table = apart(code, "abc", timeout_seconds=1.0)
    [(path, (found, text))] = failed(table).items()
    assert (path, found) == ("b", kind)
    assert message in text
    assert [path for path, row in results(table) if row] == ["a", "c"]


def test_a_package_that_the_environment_lacks_is_named_with_advice(apart: Apart, own: Environment) -> None:
    kind, message = failed(apart("import missing_one\ndef f(file): ...", "a"))["a"]
    assert kind is FailureKind.SET_UP
    assert f"Add missing_one to {own.name}" in message


def test_an_interpreter_that_is_not_on_the_host_or_does_not_run_is_not_a_files_fault(
    run: Runner, store: MemoryStore, tmp_path: Path
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    broken.chmod(0o755)
    for python, why in ((tmp_path / "none", "Every worker must see the home"), (broken, "exit status 1: no such library")):
        work = run.work("def f(file): ...")
        source = replace(work.source, environment=Environment("it", str(python)))
        kind, message = failed(outcomes(replace(work, source=source), [store.put("a", b"")]))["a"]
        assert kind is FailureKind.SET_UP
        assert why in message


def test_output_and_counts_come_back(apart: Apart) -> None:
    code = """
import logging, sys
def f(file):
    print("printed")
    logging.warning("logged")
    file.count("tokens", 3)
    return {"n": 1}
"""
    table = apart(code, "a")
    said = str(table["printed"].to_pylist())
    assert "printed" in said
    assert "logged" in said
    assert table["counted"][0].as_py() == '{"tokens": 3.0}'


def test_coroutines_generators_groups_and_arrow_rows_work_as_elsewhere(apart: Apart) -> None:
    assert results(apart("async def f(file): return {'n': file.size}", ["abc"])) == [("abc", {"n": 3})]
    assert results(apart("def f(file):\n    yield {'n': 1}\n    yield {'n': 2}", "a")) == [("a", {"n": 1}), ("a", {"n": 2})]
    assert results(apart(f"{BATCH}    return [{{'n': len(files)}}] * len(files)", "ab"))[0] == ("a", {"n": 2})
    arrow = "import pyarrow as pa\ndef f(file): return pa.table({'n': pa.array(range(3), pa.int64())})"
    assert [row and row["n"] for _, row in results(apart(arrow, "a"))] == [0, 1, 2]


def test_a_class_is_set_up_once_and_closed(apart: Apart, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
class f:
    async def setup(self):
        self.calls = 0
    def __call__(self, file):
        self.calls += 1
        return {{"n": self.calls}}
    def close(self):
        Path({str(tmp_path / "closed")!r}).write_text(str(self.calls))
"""
    assert [row and row["n"] for _, row in results(apart(code, "abc"))] == [1, 2, 3]
    assert (tmp_path / "closed").read_text() == "3"


def test_columns_that_a_function_declares_are_found_in_its_environment(tmp_path: Path, own: Environment) -> None:
    file = tmp_path / "code.py"
    file.write_text(
        "import clasher, dataclasses, volstream\n"
        "@dataclasses.dataclass\nclass Row:\n    label: str\n"
        "def annotated(file) -> Row: ...\n"
        "@volstream.function(returns='n INT, m MAP<STRING, DOUBLE>')\ndef decorated(file): ...\n"
        "def needs(file, language): ...\n"
    )

    def declared(name: str) -> pa.Schema | None:
        return declared_by(replace(find(f"{file}:{name}"), environment=own), {}, columns=True)

    assert declared("annotated") == pa.schema([("label", pa.string())])
    assert declared("decorated") == pa.schema([("n", pa.int32()), ("m", pa.map_(pa.string(), pa.float64()))])
    with pytest.raises(FunctionLoadError, match="missing a required argument: 'language'"):
        declared("needs")


def test_a_column_that_a_function_newly_declares_stops_it(apart: Apart) -> None:
    code = "import volstream\n@volstream.function(returns='n BIGINT, more STRING')\ndef f(file): return {'n': 1}"
    kind, message = failed(apart(code, "a", declared=True))["a"]
    assert kind is FailureKind.SET_UP
    assert "It declares a column more STRING, which is new." in message


def test_a_function_without_a_file_runs_in_an_environment(run: Runner, store: MemoryStore, own: Environment) -> None:
    factor = 3

    def f(file: Any) -> dict[str, Any]:
        import clasher  # type: ignore[import-not-found]  # of the environment

        return {"n": factor * int(clasher.VERSION)}

    work = replace(run.work("def f(file): ..."), source=replace(source_of(archive_of(f)), environment=own))
    assert results(outcomes(work, [store.put("a", b"")])) == [("a", {"n": 21})]


def test_a_trial_runs_in_the_environment(tmp_path: Path, own: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").write_text("text")
    code = tmp_path / "code.py"
    code.write_text("import clasher\ndef f(file):\n    print('tried')\n    return {'v': clasher.VERSION, 'n': file.size}")
    found = try_function(f"{code}:f", [str(tmp_path / "a")], None, {}, None, environment=own)
    assert [outcome.rows for outcome in found.outcomes] == [[{"v": "7", "n": 4}]]
    assert found.inferred is not None
    assert found.inferred.ddl == "v STRING, n BIGINT"
    assert capsys.readouterr().err == "tried\n"


def test_functions_that_wait_have_many_calls_in_flight(apart: Apart) -> None:
    names = [f"{number:02}" for number in range(24)]
    for decorator, options in (
        ("", {}),
        ("@volstream.function(concurrency=5)", {}),
        ("@volstream.function(concurrency=5)", {"concurrency": 8}),
    ):
        table = apart(IN_FLIGHT.format(decorator), names, **options)
        assert failed(table) == {}
        found = max(row["n"] for _, row in results(table) if row)
        assert found == {"": 24}.get(decorator, options.get("concurrency", 5))


def test_a_class_with_many_calls_in_flight_is_set_up_once_and_closed(apart: Apart, tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
class f:
    def __init__(self):
        self.calls = 0
        with open({str(tmp_path / "set up")!r}, "a") as file:
            file.write("x")
    async def __call__(self, file):
        self.calls += 1
        return {{"n": self.calls}}
    async def close(self):
        Path({str(tmp_path / "closed")!r}).write_text(str(self.calls))
"""
    table = apart(code, "abc")
    assert sorted(row["n"] for _, row in results(table) if row) == [1, 2, 3]
    assert (tmp_path / "set up").read_text() == "x"
    assert (tmp_path / "closed").read_text() == "3"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("import os; os._exit(3)", FailureKind.WORKER_DIED, "ended with exit status 3"),
        pytest.param("await asyncio.sleep(60)", FailureKind.TIMED_OUT, "ran longer than 2s", marks=pytest.mark.long),
        pytest.param(
            "import ctypes; ctypes.PyDLL(None).sleep(60)", FailureKind.TIMED_OUT, "ran longer than 2s", marks=pytest.mark.long
        ),
        ("import volstream; raise volstream.RetryLater('busy', after=5)", FailureKind.RETRY_LATER, "busy"),
    ],
)
def test_a_call_in_flight_harms_no_other(apart: Apart, body: str, kind: FailureKind, message: str) -> None:
    code = f"""
import asyncio
async def f(file):
    print("for", file.name)
    if file.name == "c":
        {body}
    await asyncio.sleep(0.1)
    return {{"n": 1}}
"""
    table = apart(code, "abcdef", timeout_seconds=2.0)
    [(path, (found, text))] = failed(table).items()
    assert (path, found) == ("c", kind)
    assert message in text
    assert sorted(path for path, row in results(table) if row) == ["a", "b", "d", "e", "f"]
    assert "for b" in str(table["printed"].to_pylist())

"""The child process of an isolated function: what it imports, and what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.running import failed
from volstream.functions.child import ChildWorker
from volstream.functions.outcomes import FileOutcome, FileTask
from volstream.model.work import FailureKind

KILLED = """
import os, signal, tempfile
def f(file, *, told):
    with open(told, "w") as out:
        out.write(tempfile.mkdtemp())
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_file_in_the_current_folder_does_not_shadow_a_module_of_the_child(
    isolated: Callable[..., pa.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "pickle.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(here)
    assert isolated("def f(file):\n    return {'n': 1}", ["a"])["result"].to_pylist() == [{"n": 1}]


def test_temporary_files_of_a_killed_child_are_removed(isolated: Callable[..., pa.Table], tmp_path: Path) -> None:
    told = tmp_path / "told"
    table = isolated(KILLED, ["a"], arguments={"told": str(told)})
    assert failed(table)["a"][0] is FailureKind.WORKER_DIED
    assert not Path(told.read_text()).exists()


def test_what_a_child_prints_in_many_calls_does_not_gather_on_the_disk(
    isolated: Callable[..., pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    call = ChildWorker.call

    def measured(worker: ChildWorker, group: Sequence[FileTask]) -> list[FileOutcome]:
        found = call(worker, group)
        assert worker._errors is not None
        sizes.append(os.fstat(worker._errors.fileno()).st_size)
        return found

    monkeypatch.setattr(ChildWorker, "call", measured)
    isolated("def f(file):\n    print('x' * 100_000)\n    return {'n': 1}", list("abcdef"))
    assert len(sizes) == 6
    assert max(sizes) < 200_000


def test_the_last_output_of_a_child_that_has_served_before_is_that_of_its_last_call(
    isolated: Callable[..., pa.Table],
) -> None:
    code = """
import os
def f(file):
    print("at", file.relative_path)
    if file.relative_path == "c":
        os._exit(3)
    return {"n": 1}
"""
    table = isolated(code, ["a", "b", "c"])
    told = dict(zip(table["path"].to_pylist(), table["error_traceback"].to_pylist(), strict=True))
    assert told["c"] == "at c\n"

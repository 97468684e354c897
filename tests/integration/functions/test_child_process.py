"""The child process of an isolated function: what it imports, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.running import failed
from volstream.base.model.work import FailureKind

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

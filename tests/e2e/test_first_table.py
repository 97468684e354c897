"""``volstream.run`` as its users call it: in a notebook, from standard input, in a program; and what remains when they end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.e2e.homes import Home, patiently

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_table.ipynb"

PROGRAM = """
import volstream
import helper

def measure(file):
    return {"n": helper.size(file.read_text())}

volstream.run(measure, "files", into="sizes", on_change=True).orderBy("_file_path").show()
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.path = tmp_path / "data" / "volstream"
    yield made
    made.run("engine", "stop", "--now")


def texts(cell: Any, kind: str) -> str:
    """Returns what a cell printed on standard error, or the HTML that it shows."""
    if kind == "stderr":
        return "".join(one["text"] for one in cell["outputs"] if one.get("name") == "stderr")
    return "".join(one["data"].get("text/html", "") for one in cell["outputs"] if "data" in one)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_notebook_shows_its_table_and_its_job_goes_on_without_it(home: Home) -> None:
    environment = {key: value for key, value in home.environment().items() if key != "VOLSTREAM_HOME"} | {
        "XDG_DATA_HOME": str(home.path.parent)
    }
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    client = nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(home.folder)}})
    client.execute(env=environment)

    _, first, second, third, last = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert "<td>fox.txt</td><td>4</td><td>quick</td>" in texts(first, "html")
    assert "Inferred columns from 2 files: words BIGINT, longest STRING." in texts(first, "stderr")
    assert "1 file processed, 0 failed, 1 removed." in texts(second, "stderr")
    assert "dog.txt" not in texts(second, "html")
    assert "The code has changed" in texts(third, "stderr")
    assert "<td>cat.txt</td><td>6</td><td>windowsill</td><td>the</td>" in texts(last, "html")

    (home.folder / "notes" / "new.txt").write_text("from a shell")
    home.ok("refresh", "notes")
    home.ok("run-job", "words")
    assert ("new.txt", "from") in home.pairs("words", "first")
    described = home.ok("describe", "job", "words")
    assert "because the function has no file" in described
    assert 'return {"words": len(words), "longest": max(words, key=len), "first": words[0]}' in described


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_daemon_goes_on_with_a_function_that_came_from_standard_input(home: Home) -> None:
    (home.folder / "files").mkdir()
    (home.folder / "files" / "a").write_text("a")
    helper = home.folder / "helper.py"
    helper.write_text("def size(text): return len(text)\n")

    def called(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=home.folder,
            env=home.environment(),
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        )

    assert "|         a|  1|" in called("-", stdin=PROGRAM).stdout
    (home.folder / "program.py").write_text(PROGRAM)
    assert "No file has changed." in called("program.py").stderr
    helper.unlink()
    with home.daemon():
        (home.folder / "files" / "b").write_text("bb")
        patiently(lambda: home.rows("SELECT n FROM sizes ORDER BY n") == [{"n": 1}, {"n": 2}], timeout=60)

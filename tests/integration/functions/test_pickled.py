"""Functions that no file has: what is kept of them, what identifies them, and what is refused."""

from __future__ import annotations

import functools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.edits import DIFFERENT
from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.functions.pickled import MAX_BYTES, archive_of, function_attributes, source_of
from volstream.functions.signature import batch_size_of

PROGRAM = """
from __future__ import annotations
import sys
from dataclasses import dataclass
from pathlib import Path
import helper
import volstream
from volstream.functions.pickled import archive_of

FACTOR = {factor}

@dataclass
class Row:
    n: int

def doubled(n):
    return {body}

def f(files: list[volstream.File]) -> list[Row]:
    return [Row(doubled(helper.size(file)) * FACTOR) for file in files]

Path(sys.argv[1]).write_bytes(archive_of(f))
"""


def made_by(folder: Path, factor: int = 2, body: str = "2 * n", name: str = "program.py") -> bytes:
    """Returns what another process makes of a function of its program."""
    (folder / name).write_text(PROGRAM.format(factor=factor, body=body))
    (folder / "helper.py").write_text("def size(file):\n    return len(file)\n")
    subprocess.run([sys.executable, name, "archive"], cwd=folder, check=True)
    return (folder / "archive").read_bytes()


def test_a_function_of_a_program_runs_elsewhere_with_what_it_uses(tmp_path: Path) -> None:
    source = source_of(made_by(tmp_path))
    (tmp_path / "helper.py").unlink()
    f = source.load()
    with source.importable():
        assert [row.n for row in f(["abc"])] == [12]
    assert source.text is not None
    assert source.text.startswith("def f(files: list[volstream.File])")


def test_a_function_of_several_files_is_one_where_its_annotations_do_not_resolve(tmp_path: Path) -> None:
    assert batch_size_of(source_of(made_by(tmp_path)).load()) == 64


def test_the_same_program_gives_the_same_identity_and_any_change_another_one(tmp_path: Path) -> None:
    first = source_of(made_by(tmp_path)).fingerprint
    assert source_of(made_by(tmp_path, name="other.py")).fingerprint == first
    changed = {
        "a variable": source_of(made_by(tmp_path, factor=3)).fingerprint,
        "a function that it calls": source_of(made_by(tmp_path, body="n + n")).fingerprint,
    }
    assert len({first, *changed.values()}) == 3


@pytest.fixture(scope="module")
def looked_at() -> dict[str, dict[str, list[list[str]]]]:
    """The fingerprints of edited programs, and what their functions return, by the seed of hashes."""
    found = {}
    for seed in ("1", "4711"):
        command = [sys.executable, "-m", "tests.edits"]
        done = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True)
        found[seed] = json.loads(done.stdout)
    return found


def test_each_change_of_behaviour_changes_the_identity_and_nothing_else_does(
    looked_at: dict[str, dict[str, list[list[str]]]],
) -> None:
    one, other = looked_at.values()
    assert len(DIFFERENT) > 120
    for name, ((before, does), (after, then)) in one.items():
        assert (does == then) == (name not in DIFFERENT), name  # of the programs, not of volstream
        assert (before == after) == (name not in DIFFERENT), name
        assert [fingerprint for fingerprint, _ in other[name]] == [before, after], name


def test_a_module_that_only_a_called_function_imports_travels_too(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from volstream.functions.pickled import archive_of

class Base:
    def size(self, file):
        import lazy.inner
        return lazy.inner.size(file)

class Sizes(Base):
    pass

def f(file):
    return {"n": Sizes().size(file)}

Path("archive").write_bytes(archive_of(f))
"""
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "lazy").mkdir()
    (tmp_path / "lazy" / "__init__.py").write_text("")
    found = []
    for times in (2, 3):
        (tmp_path / "lazy" / "inner.py").write_text(f"def size(file):\n    return {times} * len(file)\n")
        subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=True)
        found.append(source_of((tmp_path / "archive").read_bytes()))
    assert found[0].fingerprint != found[1].fingerprint
    shutil.rmtree(tmp_path / "lazy")
    f = found[1].load()
    with found[1].importable():
        assert f("abc") == {"n": 9}


def test_a_closure_takes_its_variables_with_it() -> None:
    def scaled(by: int) -> Callable[[str], dict[str, int]]:
        return lambda file: {"n": len(file) * by}

    three, four = (source_of(archive_of(scaled(by))) for by in (3, 4))
    assert pickle.loads(three.pickled)("ab") == {"n": 6}
    assert three.fingerprint != four.fingerprint


def test_a_class_is_kept_with_its_methods() -> None:
    class Count:
        def __init__(self, by: str = "1") -> None:
            self.by = int(by)

        def __call__(self, file: str) -> dict[str, int]:
            return {"n": len(file) * self.by}

    assert pickle.loads(source_of(archive_of(Count)).pickled)("2")("ab") == {"n": 4}


def test_a_cached_function_that_is_used_travels_too() -> None:
    @functools.lru_cache(maxsize=3)
    def cached(n: int) -> int:
        return 2 * n

    loaded = pickle.loads(source_of(archive_of(lambda file: cached(len(file)))).pickled)
    assert loaded("ab") == 4
    assert loaded.__closure__[0].cell_contents.cache_parameters()["maxsize"] == 3


def test_a_class_of_this_process_stays_as_it_is() -> None:
    class Count:
        def __call__(self, file: str) -> dict[str, int]:
            return {"n": MAX_BYTES}

    before = Count.__call__
    assert source_of(archive_of(Count)).load() is Count
    assert Count.__call__ is before


def test_what_cannot_be_sent_is_named_by_its_variable() -> None:
    lock = threading.Lock()

    def inner(file: Any) -> None:
        with lock:
            pass

    def outer(file: Any) -> None:
        inner(file)

    with pytest.raises(InvalidValueError, match="inner uses the variable 'lock', a lock, which cannot be sent") as caught:
        archive_of(inner)
    assert "Create lock inside the function" in caught.value.remedy
    with pytest.raises(InvalidValueError, match=r"outer uses the variable 'lock' \(in inner\), a lock"):
        archive_of(outer)


@pytest.mark.parametrize("mode", ["r", "rb", "w"])
def test_an_open_file_is_not_sent(tmp_path: Path, mode: str) -> None:
    with (tmp_path / "labels.txt").open("w"), (tmp_path / "labels.txt").open(mode) as labels:

        def f(file: Any) -> dict[str, object]:
            return {"label": labels.readline()}

        with pytest.raises(InvalidValueError, match=r"f uses the variable 'labels', .*, which cannot be sent"):
            archive_of(f)


def test_a_function_that_takes_too_much_with_it_names_the_variable() -> None:
    import random

    model = random.Random(1).randbytes(MAX_BYTES + 1)

    def f(file: Any) -> dict[str, int]:
        return {"n": len(model)}

    with pytest.raises(InvalidValueError, match=r"most of it in the variable 'model'; the limit is 1.0 MiB"):
        archive_of(f)


def test_a_function_of_another_python_is_refused_before_it_is_unpickled() -> None:
    packed = BytesIO(archive_of(lambda file: None))
    with zipfile.ZipFile(packed) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content["about.json"] = json.dumps({**json.loads(content["about.json"]), "python": "3.9"}).encode()
    content["function.pickle"] = b"not a pickle"
    other = BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        for name, one in content.items():
            archive.writestr(name, one)
    source = source_of(other.getvalue())
    with pytest.raises(FunctionLoadError, match=r"lambda was created with Python 3.9 and cannot be run with Python 3"):
        source.load()
    assert source.unfit is not None
    assert source_of(packed.getvalue()).unfit is None


def test_a_broken_archive_is_volstreams_error() -> None:
    with pytest.raises(FunctionLoadError, match="in the catalog cannot be read"):
        source_of(b"nonsense")


def test_a_function_of_a_module_is_kept_by_its_file() -> None:
    assert function_attributes(made_by) == {"function": f"{__file__}:made_by", "pickled": None}


def test_a_function_inside_of_another_is_kept_by_its_name() -> None:
    def inner(file: Any) -> None: ...

    given = function_attributes(inner)
    assert given["function"] == "inner"
    assert given["pickled"] is not None

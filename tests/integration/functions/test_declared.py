"""What functions declare, also those that end the process which imports them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.functions.declared import declared_apart, declared_by
from volstream.functions.finding import find
from volstream.functions.source import FunctionSource

FUNCTION = """
from dataclasses import dataclass

@dataclass
class Words:
    words: int

def f(file) -> Words:
    return Words(1)
"""


def written(folder: Path, code: str) -> FunctionSource:
    (folder / "mine.py").write_text(code)
    return find(f"{folder / 'mine.py'}:f")


def test_a_process_of_its_own_finds_what_this_one_does(tmp_path: Path) -> None:
    source = written(tmp_path, FUNCTION)
    assert declared_apart(source, {}, columns=True) == declared_by(source, {}, columns=True) == pa.schema({"words": "int64"})
    assert declared_apart(source, {}, columns=False) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os._exit(0)", "mine cannot be imported: its process ended with exit status 0"),
        ("import os; os.kill(os.getpid(), 9)", "mine cannot be imported: its process was killed by SIGKILL"),
        ("import sys; sys.exit(3)", "cannot be imported: SystemExit: 3"),
        ("1 / 0", r"cannot be imported: ZeroDivisionError: .*line 1 of"),
        pytest.param("while True: pass", "mine was not imported within", marks=pytest.mark.long),
        ("def f(): pass", r"f\(\) cannot be called with a file"),
    ],
)
def test_a_function_that_ends_or_holds_up_its_process_is_told(tmp_path: Path, code: str, reason: str) -> None:
    seconds = 3.0 if "while" in code else 60.0
    with pytest.raises(FunctionLoadError, match=reason):
        declared_apart(written(tmp_path, code), {}, columns=True, max_seconds=seconds)


def test_what_is_no_declaration_is_told_with_its_remedy(tmp_path: Path) -> None:
    source = written(tmp_path, FUNCTION.replace("words: int", "words: complex"))
    with pytest.raises(InvalidValueError) as here:
        declared_by(source, {}, columns=True)
    with pytest.raises(InvalidValueError) as apart:
        declared_apart(source, {}, columns=True)
    assert str(apart.value) == str(here.value)

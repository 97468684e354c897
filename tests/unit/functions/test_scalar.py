from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from volstream.base.model.names import Name
from volstream.errors import InvalidValueError
from volstream.functions.sql import call_of, new_function


def test_a_call_travels_as_source_to_hosts_without_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "beside_scalar.py").write_text("def add(n):\n    return n + 1\n")
    (folder / "f.py").write_text("def f(n):\n    import beside_scalar\n    return beside_scalar.add(n)\n")
    function = new_function(Name("public", "f"), f"{folder}/f.py:f", "int", None)
    call = call_of(function)
    assert call(1) == 2
    travelled = pickle.dumps(call)
    shutil.rmtree(folder)
    assert pickle.loads(travelled)(2) == 3


@pytest.mark.parametrize(
    ("written", "kept"), [("varchar", "STRING"), ("decimal(5, 2)", "DECIMAL(5,2)"), ("struct<a: int>", "STRUCT<a: INT>")]
)
def test_a_type_is_stored_as_spark_spells_it(tmp_path: Path, written: str, kept: str) -> None:
    (tmp_path / "f.py").write_text("def f(n): ...\n")
    assert new_function(Name("public", "f"), f"{tmp_path}/f.py:f", written, None).returns == kept


@pytest.mark.parametrize("written", ["", "INT, b INT", "nonsense", "INT) --"])
def test_invalid_types_are_rejected(tmp_path: Path, written: str) -> None:
    (tmp_path / "f.py").write_text("def f(n): ...\n")
    with pytest.raises(InvalidValueError, match="is not a SQL type"):
        new_function(Name("public", "f"), f"{tmp_path}/f.py:f", written, None)

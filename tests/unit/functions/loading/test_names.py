# ruff: noqa: RUF001  # letters that look alike
"""The author of a file chooses its columns' names, and can neither make the table unreadable nor stop the job by them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from tests.loading import Files
from volstream.base.model.names import RESERVED_COLUMNS, folded
from volstream.functions.loading.columns import RESERVED, place
from volstream.functions.loading.options import RESCUED
from volstream.functions.schema import PROVENANCE, PROVENANCE_OF_SETS, checked, from_ddl

ODD = ["k\0", "\0", "\x01", "a\x1fb", "\x7f", "a b", "a\nb", "a,b", "a=b", "(a)", "a{b}"]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *(("ID", "id"), ("ıd", "id"), ("İd", "id"), ("ſtatus", "status"), ("_metadataK", "_metadatak"), ("µ", "μ"), ("ς", "σ")),
        *(("straße", "straße"), ("STRASSE", "strasse"), ("ÄÖ", "äö"), ("ŉ", "ŉ"), ("ﬁ", "ﬁ"), ("\U00010400", "\U00010428")),
    ],
)
def test_names_are_compared_as_java_does(name: str, key: str) -> None:
    assert folded(name) == folded(folded(name)) == key


@pytest.mark.parametrize("odd", ODD)
def test_characters_that_no_name_can_have_are_replaced_everywhere(files: Files, odd: str) -> None:
    wanted = "".join(
        "_" if character in " ,;{}()=" or ord(character) < 32 or ord(character) == 127 else character for character in odd
    )
    contents = {
        "a.json": json.dumps({"id": 1, odd: 2}),
        f"{odd.replace('=', '%3D').replace(chr(0), '%00')}=2/a.json": '{"id": 1}',
    }
    for name, content in contents.items():
        assert {*from_ddl(files.columns((name, content))).names} == {"id", wanted}
    nested = pa.table({"s": [{odd: 2}]})
    [row] = files.rows("a.parquet", nested)
    assert json.loads(row["s"]) == {odd: 2}


@pytest.mark.parametrize("table", ["id BIGINT, status BIGINT", "ıd BIGINT, µ BIGINT"])
def test_names_that_java_takes_for_equal_are_one_column(table: str) -> None:
    names = ["ıd", "ſtatus", "id", "μ", "_fıle_path", "_GROUP_KEY", "_metadata"]
    placed = place(names, from_ddl(table))
    taken = [*placed.by_name.values(), *placed.new, *placed.stray]
    assert sorted(taken) == [*range(len(names))]
    columns = [*from_ddl(table).names, *placed.new.values()]
    assert len({*map(folded, columns)}) == len(columns)
    assert not {*map(folded, placed.new.values())} & RESERVED
    checked(pa.schema([pa.field(name, pa.int64()) for name in columns]))


def test_one_list_of_reserved_names_serves_files_and_results() -> None:
    assert {*PROVENANCE.names, *PROVENANCE_OF_SETS.names, RESCUED, *RESERVED_COLUMNS} == RESERVED
    assert {*map(folded, RESERVED)} == RESERVED


def test_fields_that_java_takes_for_equal_make_a_struct_a_text(files: Files) -> None:
    [row] = files.rows("a.parquet", pa.table({"s": pa.array([{"i": 1, "ı": 2}])}))
    assert json.loads(row["s"]) == {"i": 1, "ı": 2}
    [row] = files.rows("a.json", '{"s": {"i": 1, "ı": 2}}')
    assert json.loads(row["s"]) == {"i": 1, "ı": 2}

"""Files in the rows that a function returns."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from volstream.files.storage.local import LocalStore
from volstream.functions.output import FILE, OutputFile, OutputTarget, OutputWriter, problem_of
from volstream.functions.rows import NotRowsError
from volstream.functions.schema import from_ddl, from_declaration, to_ddl, types_of


@pytest.fixture
def target(tmp_path: Path) -> OutputTarget:
    return OutputTarget("out", "up/", LocalStore(str(tmp_path)), ".volstream-outputs/j/b/a")


def written(columns: str, target: OutputTarget | None, *rows: Mapping[str, Any]) -> tuple[Any, Any]:
    outputs = OutputWriter(from_ddl(columns), target).begin()
    return [outputs.stored(row) for row in rows], outputs.staged


def test_file_is_a_type_of_columns() -> None:
    schema = from_ddl("a FILE, b ARRAY<file>, c STRUCT<d: FILE>, e INT")
    assert schema.field("a").type == FILE
    assert schema.field("b").type == pa.list_(FILE)
    assert from_ddl(to_ddl(schema)) == schema
    assert from_declaration(pa.schema([("a", FILE)])).field("a").type == FILE
    assert types_of("x", [{"a": OutputFile("b", b"")}]) == {"a": FILE}


@pytest.mark.parametrize("how", ["bytes", "path", "stream", "slow stream"])
def test_content_is_written_whatever_it_is_given_as(target: OutputTarget, tmp_path: Path, how: str) -> None:
    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            del size
            return super().read(1)

    (tmp_path / "data").write_bytes(b"1234")
    data: Any = {"bytes": b"1234", "path": tmp_path / "data", "stream": io.BytesIO(b"1234"), "slow stream": Slow(b"1234")}
    ([row], [staged]) = written("a FILE", target, {"a": OutputFile("x.png", data[how])})
    assert (tmp_path / staged.staged).read_bytes() == b"1234"
    assert staged.staged.startswith(".volstream-outputs/j/b/a/")
    assert row == {
        "a": {"volume": "out", "relative_path": "up/x.png", "size": 4, "etag": staged.etag, "content_type": "image/png"}
    }


def test_files_are_found_in_lists_maps_and_structs_and_other_values_stay(target: OutputTarget) -> None:
    made = [OutputFile(f"{number}", b"") for number in range(3)]
    row = {"n": 1, "a": [made[0], None], "b": {"k": made[1]}, "c": {"d": made[2], "e": "f"}, "g": None}
    columns = "n INT, a ARRAY<FILE>, b MAP<STRING, FILE>, c STRUCT<d: FILE, e: STRING>, g FILE"
    ([stored], staged) = written(columns, target, row)
    assert [output.path for output in staged] == ["up/0", "up/1", "up/2"]
    assert stored["a"][1] is None
    assert stored["c"]["e"] == "f"
    pa.Table.from_pylist([stored], from_ddl(columns))


def test_a_file_that_several_rows_name_is_written_once(target: OutputTarget) -> None:
    made = OutputFile("x", b"1")
    rows, staged = written("a FILE", target, {"a": made}, {"a": made})
    assert rows[0] == rows[1]
    assert len(staged) == 1
    with pytest.raises(NotRowsError, match="two outputs with the path 'up/x'"):
        written("a FILE", target, {"a": made}, {"a": OutputFile("x", b"1")})


def closed() -> io.BytesIO:
    file = io.BytesIO(b"1")
    file.close()
    return file


@pytest.mark.parametrize(
    ("value", "target_is", "message"),
    [
        ("text", True, "has a str; give volstream.OutputFile"),
        (OutputFile("x", 1), True, "is a int; give bytes, a path or a binary file"),  # type: ignore[arg-type]
        (OutputFile("x", b""), False, "its job has no target volume"),
        (OutputFile("x", "some text"), True, "'up/x' cannot be read: No such file or directory. Text is the path of a file; for"),
        (OutputFile("x", "long " * 2000), True, "cannot be read: File name too long. Text is"),
        (OutputFile("x", "nul\0"), True, "cannot be read: embedded null byte. Text is"),
        (OutputFile("x", Path("/nowhere")), True, "cannot be read: No such file or directory.$"),
        (OutputFile("x", "/"), True, "cannot be read: Is a directory"),
        (OutputFile("x", closed()), True, "cannot be read: I/O operation on closed file"),
        (OutputFile("x", io.StringIO("text")), True, "cannot be read: it gives text, not bytes"),  # type: ignore[arg-type]
        (OutputFile("x", io.StringIO("")), True, "cannot be read: it gives text, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_written_is_said(target: OutputTarget, value: Any, target_is: bool, message: str) -> None:
    with pytest.raises(NotRowsError, match=message):
        written("a FILE", target if target_is else None, {"a": value})


def test_nothing_is_written_without_a_store() -> None:
    ([row], staged) = written("a FILE", OutputTarget(), {"a": OutputFile("x", io.BytesIO(b"12345"))})
    assert (row["a"]["size"], row["a"]["etag"], staged) == (5, None, [])


@pytest.mark.parametrize("path", ["a", "a b/ü", ".hidden", "a" * 255, "Screenshot at 9.41\u202fAM", "a\u00a0b", "👩\u200d🔬.png"])
def test_paths_that_are_allowed(path: str) -> None:
    assert problem_of(path) is None


@pytest.mark.parametrize(
    "path",
    [
        1,
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "a/../b",
        "\udcff",
        "a\0",
        "a\tb",
        "a\u2028b",
        "a" * 256,
        "é" * 128,
        "a/" * 500 + "b",
        ".volstream-outputs/a",
    ],
)
def test_paths_that_are_not(path: object) -> None:
    assert problem_of(path) is not None

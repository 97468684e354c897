"""Rows of csv files: headers, quotes, NULLs, broken rows, encodings, compression."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.loading import Files
from volstream.functions.loading.loader import Loader
from volstream.functions.rejection import FileRejectedError

TEXT, BARE = "a STRING, b STRING", "_c0 STRING, _c1 STRING"


def test_an_empty_value_is_null_and_a_quoted_one_is_empty_text(files: Files) -> None:
    assert files.rows("x.csv", 'a,b\n,""\n', TEXT) == [{"a": None, "b": ""}]


def test_quoted_values_may_have_line_ends_delimiters_and_doubled_quotes(files: Files) -> None:
    assert files.rows("x.csv", 'a,b\r\n"1\n2","x,""y"""\r\n', TEXT) == [{"a": "1\n2", "b": 'x,"y"'}]


def test_a_backslash_is_an_ordinary_character(files: Files) -> None:
    assert files.rows("x.csv", "a,b\nC:\\new,\\\n", TEXT) == [{"a": "C:\\new", "b": "\\"}]


def test_a_byte_order_mark_belongs_to_no_name(files: Files) -> None:
    assert files.rows("x.csv", "\ufeffa,b\n1,2\n") == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_a_byte_order_mark_belongs_to_no_value_in_any_encoding(files: Files, encoding: str) -> None:
    mark = "" if encoding == "utf-16" else "\ufeff"
    content = f"{mark}é,b\n1,2\n".encode(encoding)
    assert files.rows("x.csv", content, encoding=encoding) == [{"é": 1, "b": 2}]
    assert files.rows("x.csv", content, encoding=encoding, header="false") == [{"_c0": "é", "_c1": "b"}, {"_c0": "1", "_c1": "2"}]


def test_zeros_after_the_last_member_of_a_gzip_file_are_padding(files: Files) -> None:
    content = gzip.compress(b"a,b\n1,2\n") + gzip.compress(b"3,4\n")
    assert files.rows("x.csv.gz", content + bytes(512)) == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    for broken in (content[:-12], content + b"x", content[:12] + bytes(8) + content[20:]):
        with pytest.raises(FileRejectedError, match=r"cannot be decompressed \(gzip\)"):
            files.rows("x.csv.gz", broken, "a INT")


def test_empty_lines_are_no_rows_before_the_header_or_after_it(files: Files) -> None:
    assert files.rows("x.csv", "\n\r\na,b\n\n1,2\n\n\n3,4") == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize("content", ["", "\ufeff", "\n\n", "a,b", "a,b\n", "a,b\n\n \n"])
def test_a_file_without_rows_has_none(files: Files, content: str) -> None:
    assert files.rows("x.csv", content, TEXT) == []


def test_repeated_and_empty_names_of_a_header_get_their_position(files: Files) -> None:
    assert files.rows("x.csv", "a,A,,a\n1,2,3,4\n") == [{"a": 1, "A1": 2, "_c2": 3, "a3": 4}]


def test_a_repeated_name_takes_none_that_is_in_the_header(files: Files) -> None:
    assert files.rows("x.csv", "a,a2,a\n1,2,3\n") == [{"a": 1, "a2": 2, "a2_2": 3}]
    assert files.rows("x.csv", "a,A,a1\n1,2,3\n") == [{"a": 1, "A1_2": 2, "a1": 3}]


def test_what_a_long_row_has_beyond_is_rescued_beside_a_column_of_that_name(files: Files) -> None:
    rows = files.rows("x.csv", "_c1\nx,y\n", "_c1 INT", skip_rows="0")
    assert rows == [{"_c1": None, "_rescued_data": '{"_c1_2":"y","_c1":"x"}'}]


def test_without_a_header_columns_are_called_by_their_positions(files: Files) -> None:
    assert files.rows("x.csv", "1;x\n2;y", header="false", delimiter=";") == [{"_c0": 1, "_c1": "x"}, {"_c0": 2, "_c1": "y"}]


def test_tabs_separate_the_values_of_tsv_files(files: Files) -> None:
    assert files.rows("x.tsv", "a\tb\n1\t2,3\n") == [{"a": 1, "b": "2,3"}]
    assert files.rows("x.csv", "a\tb\n1\t2\n", delimiter="tab") == [{"a": 1, "b": 2}]


def test_a_short_row_lacks_its_last_values_and_what_a_long_one_has_beyond_is_rescued(files: Files) -> None:
    found = files.rows("x.csv", 'a,b\n1,2\n3\n4,5,"6, x",,8\n', "a INT, b INT")
    assert found == [{"a": 1, "b": 2}, {"a": 3, "b": None}, {"a": 4, "b": 5, "_rescued_data": '{"_c2":"6, x","_c4":"8"}'}]


def test_a_value_longer_than_the_csv_modules_limit_is_read(files: Files) -> None:
    (row,) = files.rows("x.csv", f"a,b\n1,{'x' * 300_000}\n")
    assert len(row["b"]) == 300_000


def test_text_in_another_encoding_needs_its_name(files: Files) -> None:
    content = "name\nMüller\n".encode("latin-1")
    with pytest.raises(FileRejectedError, match=r"not utf-8 text .*encoding=latin-1"):
        files.rows("x.csv", content, "name STRING")
    assert files.rows("x.csv", content, encoding="latin-1") == [{"name": "Müller"}]
    assert files.rows("x.csv", "name\nMüller\n".encode("utf-16"), encoding="utf-16") == [{"name": "Müller"}]


def test_wrong_bytes_far_behind_the_header_are_found(files: Files) -> None:
    content = b"a,b\n" + b"1,2\n" * 500_000 + b"\xff,1\n"
    with pytest.raises(FileRejectedError, match="not utf-8 text"):
        files.rows("x.csv", content, TEXT)


@pytest.mark.parametrize(
    ("name", "line"),
    [("x.csv.zst", b"1," + b"0" * 100_000 + b"\n"), pytest.param("x.json.zst", b" " * 100_000 + b"\n", marks=pytest.mark.long)],
)
def test_a_small_file_does_not_stand_for_any_number_of_rows(files: Files, name: str, line: bytes) -> None:
    content = pa.compress(line * 3000, codec="zstd", asbytes=True)
    with pytest.raises(FileRejectedError, match=r"expands to .* or more\. The limit is 256\.0 MiB"):
        files.rows(name, content, BARE, header="false")
    assert len(files.rows(name, pa.compress(line * 3, codec="zstd", asbytes=True), BARE, header="false")) in (0, 3)


def test_short_rows_are_read_in_parts(files: Files) -> None:
    content = pa.compress(b"1,2\n" * 250_000, codec="zstd", asbytes=True)
    loader = Loader(f"{BARE}, _rescued_data STRING", header="false")
    assert [batch.num_rows for batch in loader(files.file("x.csv.zst", content))] == [100_000, 100_000, 50_000]


def test_a_quote_that_is_never_closed_is_told(files: Files) -> None:
    with pytest.raises(FileRejectedError, match="A quote in the file is never closed"):
        files.rows("x.csv", '"a,b\n1,2\n', TEXT)


@pytest.mark.parametrize("options", [{}, {"comment_prefix": "#"}, {"encoding": "utf-16"}, {"escape": "!"}])
@pytest.mark.parametrize("row", ['"3', '"3,4\n5,6\n', '3,"', '3,4,"\n', '"3,""'])
@pytest.mark.parametrize("columns", [TEXT, "a STRING"])
def test_a_file_that_ends_within_a_quoted_value_is_rejected(
    files: Files, options: dict[str, str], row: str, columns: str
) -> None:
    header = columns.replace(" STRING", "").replace(" ", "")
    content = f"{header}\n1\n{row}".encode(options.get("encoding", "utf-8"))
    with pytest.raises(FileRejectedError, match="A quote in the file is never closed"):
        files.rows("x.csv", content, columns, **options)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\r"])
@pytest.mark.parametrize("options", [{}, {"encoding": "utf-16"}, {"escape": "!", "null_values": "!N"}])
def test_the_last_value_is_null_if_it_is_empty_whether_or_not_its_line_ends(
    files: Files, options: dict[str, str], end: str
) -> None:
    for content in ('a,b\n"x",', 'a,b\n"x",,"x",'):
        encoded = f"{content}{end}".encode(options.get("encoding", "utf-8"))
        assert files.rows("x.csv", encoded, TEXT, new_columns="rescue", **options)[-1]["b"] is None
    [row] = files.rows("x.csv", f'a,b\n"x",,"x",{end}', TEXT, new_columns="rescue")
    assert row["_rescued_data"] == '{"_c2":"x"}'


def test_a_row_larger_than_what_is_read_at_once_is_told(files: Files) -> None:
    content = f"a,b\n1,{'x' * (33 << 20)}\n1,2\n"
    with pytest.raises(FileRejectedError, match=r"larger than 16\.0 MiB, or a quote is never closed"):
        files.rows("x.csv", content, TEXT)


@pytest.mark.parametrize("content", ["a,b\n1,2\n" + "," * 20_000 + "\n3,4\n", "," * 20_000 + "\n1,2\n"])
def test_a_row_of_nothing_but_delimiters_is_told(files: Files, content: str) -> None:
    with pytest.raises(FileRejectedError, match=r"has 20,001 values; the limit is 10,000"):
        files.rows("x.csv", content, "a INT, b INT")


@pytest.mark.long
def test_a_process_may_end_when_it_has_read_enough(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.csv.gz", "wb", 1) as file:
        file.write(b"a,b\n" + b"x" * (300 << 20))
    code = (
        "import sys\n"
        "from volstream.functions.file import File\n"
        "from volstream.functions.rejection import FileRejectedError\n"
        "from volstream.functions.loading.options import LoadOptions\n"
        "from volstream.functions.loading.loader import columns_of\n"
        "from volstream.files.storage import normalise_location, open_store\n"
        "store = open_store(normalise_location(sys.argv[1]))\n"
        "try:\n    columns_of([File(store, store.head('a.csv.gz'))], LoadOptions.of({}))\n"
        "except FileRejectedError as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "A row of the file is larger than" in ended.stdout


@pytest.mark.parametrize(
    "content", ["id,code,note\n1,5,x\n2,A7\n", "id,code,note\n2,A7\n1,5,x\n", "id,code,note\n1,5,x\n2,A7,y,\n"]
)
def test_a_sample_has_the_rows_with_other_numbers_of_values_too(files: Files, content: str) -> None:
    assert files.columns(("x.csv", content)) == "id BIGINT, code STRING, note STRING"


def test_a_sample_has_the_columns_of_the_header_even_if_no_row_has_them_all(files: Files) -> None:
    content = "id,name,score,note\n1,Ann,5\n2,Bob,7,ok,\n4,Di\n"
    assert files.columns(("x.csv", content)) == "id BIGINT, name STRING, score BIGINT, note STRING"
    assert files.columns(("x.csv", "id,name,note\n1,Ann\n2,Bob\n")) == "id BIGINT, name STRING, note STRING"


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("header", ["", "false"])
def test_rows_are_found_behind_any_number_of_empty_lines(files: Files, end: str, header: str) -> None:
    empty, options = end * (1_500_000 // len(end)), {"header": header} if header else {}
    begin = "" if header else f"a,b{end}"
    for content in (f"{empty}{begin}1,x{end}", f"{begin}{empty}1,x{end}", f"{empty}{begin}{empty}1,x{end}{empty}"):
        assert files.rows("x.csv", content, "a INT, b STRING", **options) == [{"a": 1, "b": "x"}]
    assert files.rows("x.csv", empty, "a INT, b STRING", **options) == []


def test_a_row_is_found_behind_blanks_that_are_larger_than_a_block(files: Files) -> None:
    for blank, count in (("\n", 34_000_000), (" " * 1000 + "\n", 1100)):
        content = f"a,b\n{blank * count}1,x\n"
        assert [row["a"] for row in files.rows("x.csv", content, "a INT, b STRING") if row["b"]] == [1]


def test_a_first_row_that_does_not_end_in_the_first_megabyte_is_rejected(files: Files) -> None:
    wide = ",".join(f"c{number}_{'x' * 200}" for number in range(6000))
    for content in (f"{wide}\n1\n", f"\n{wide}"):
        with pytest.raises(FileRejectedError, match="The first row of the file does not end within 1,048,576 characters"):
            files.rows("x.csv", content, "a INT", new_columns="rescue")


@pytest.mark.parametrize("header", ["true", "false"])
def test_the_first_row_may_have_a_long_value(files: Files, header: str) -> None:
    begin = "a,b\n" if header == "true" else ""
    rows = files.rows("x.csv", f"{begin}1,{'x' * 150_000}\n2,y\n", "a INT, b STRING", header=header)
    assert [(row["a"], len(row["b"])) for row in rows] == [(1, 150_000), (2, 1)]


@pytest.mark.parametrize("options", [{}, {"encoding": "utf-16-le"}, {"comment_prefix": "#"}])
def test_a_byte_order_mark_that_begins_a_row_is_text(files: Files, options: dict[str, str]) -> None:
    content = "\ufeff\ufeffx,1\n\ufeffy,2,3\n".encode(options.get("encoding", "utf-8"))
    rows = files.rows("x.csv", content, TEXT, header="false", new_columns="rescue", **options)
    assert [row["a"] for row in rows] == ["\ufeffx", "\ufeffy"]

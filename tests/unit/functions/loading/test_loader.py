"""A file's columns meet a table's: by name, in any case; new ones are told or rescued."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.loading import Files
from volstream.base.definitions.job import LOADER
from volstream.base.model.names import RESERVED_COLUMNS
from volstream.base.model.work import FailureKind
from volstream.errors import InvalidValueError
from volstream.functions.finding import find
from volstream.functions.loading.loader import Loader
from volstream.functions.rejection import FileRejectedError


def test_names_that_differ_only_in_case_are_one_column(files: Files) -> None:
    assert files.rows("x.csv", "ID,Name\n1,x\n", "id INT, name STRING") == [{"id": 1, "name": "x"}]
    assert files.rows("x.csv", "ID,id\n1,2\n", "id1 INT, ID INT") == [{"id1": 2, "ID": 1}]


def test_of_two_spellings_in_an_object_the_first_has_the_column_and_the_other_is_rescued(files: Files) -> None:
    assert files.rows("x.json", '{"ID":1,"id":2}\n{"Id":3}\n{"id":null,"ID":4}', "id INT") == [
        {"id": 1, "_rescued_data": '{"id":2}'},
        {"id": 3},
        {"id": 4},
    ]


def test_a_missing_column_is_null(files: Files) -> None:
    assert files.rows("x.csv", "b\n1\n", "a INT, b INT") == [{"a": None, "b": 1}]


def test_names_are_made_acceptable_to_delta(files: Files) -> None:
    assert files.columns(("x.csv", "First Name,a=b;c\nAnn,1\n")) == "`First_Name` STRING, a_b_c BIGINT"


def test_reserved_names_are_rescued(files: Files) -> None:
    assert files.rows("x.csv", "a,_file_path,_Batch_Id\n1,/x,\n") == [{"a": 1, "_rescued_data": '{"_file_path":"/x"}'}]


@pytest.mark.parametrize("name", sorted(RESERVED_COLUMNS))
def test_names_that_end_streams_are_rescued_however_they_come(files: Files, name: str) -> None:
    rescued = {"_rescued_data": f'{{"{name}":"x"}}'}
    assert files.rows("x.csv", f"a,{name.upper()}\n1,x\n", "a INT") == [{"a": 1, "_rescued_data": f'{{"{name.upper()}":"x"}}'}]
    assert files.rows("x.json", f'{{"a":1,"{name}":"x"}}\n', "a INT") == [{"a": 1, **rescued}]
    assert files.rows(f"{name}=x/x.csv", "a\n1\n", "a INT") == [{"a": 1, **rescued}]
    assert files.columns(("x.csv", f"a,{name}\n1,x\n")) == "a BIGINT"


@pytest.mark.parametrize("new_columns", ["add", "fail"])
def test_a_file_with_new_columns_names_them_all_with_types_that_hold_all_its_values(files: Files, new_columns: str) -> None:
    lines = ['{"a":1}'] * 6000 + ['{"a":1,"n":1,"s":"x"}', '{"N":2.5,"nothing":null}'] + ['{"a":2}'] * 6000 + ['{"s":1}']
    with pytest.raises(FileRejectedError, match=r"columns that the table lacks: n DOUBLE, s STRING\.") as error:
        files.rows("x.json", "\n".join(lines), "a INT", new_columns=new_columns)
    assert (error.value.kind, error.value.new_columns) == (FailureKind.NEW_COLUMNS, "n DOUBLE, s STRING")


def test_new_columns_are_rescued_where_they_are_not_wanted(files: Files) -> None:
    assert files.rows("x.csv", "a,New\n1,x\n2,\n", "a INT", new_columns="rescue") == [
        {"a": 1, "_rescued_data": '{"New":"x"}'},
        {"a": 2},
    ]


def test_a_new_column_without_values_is_none_yet(files: Files) -> None:
    assert files.rows("x.csv", "a,empty\n1,\n", "a INT", new_columns="fail") == [{"a": 1}]


@pytest.mark.parametrize("name", ["_SUCCESS", "day=1/_committed_1.csv", "_temporary/0/x.csv", ".part.csv"])
def test_markers_of_other_programs_have_no_rows(files: Files, name: str) -> None:
    assert files.rows(name, "a\n1\n", "b INT") == []


def test_folders_of_partitions_are_columns_and_no_markers(files: Files) -> None:
    assert files.rows("_day=1/x.csv", "a\n1\n") == [{"a": 1, "_day": 1}]
    text = '{"a": 1, "day": "from the file"}'
    assert files.rows("day=2026-01-02/place=a%20b%2F/none=__HIVE_DEFAULT_PARTITION__/x.json", text) == [
        {"a": 1, "day": date(2026, 1, 2), "place": "a b/", "none": None}
    ]


def test_a_column_of_a_folder_has_its_type_where_files_show_columns_without_rows(files: Files) -> None:
    assert files.columns(("day=2026-01-02/x.parquet", pa.table({"n": [1]}))) == "n BIGINT, day DATE"


def test_types_are_not_inferred_unless_they_are_asked_for(files: Files) -> None:
    assert files.columns(("x.csv", "a,b\n1,2026-01-01\n"), infer_types="false") == "a STRING, b STRING"
    assert files.rows("x.json", '{"a": 1}', "a STRING", infer_types="false") == [{"a": "1"}]


def test_a_file_of_unknown_format_is_rejected_unless_the_job_has_one(files: Files) -> None:
    with pytest.raises(FileRejectedError, match="Unknown file format"):
        files.rows("x.txt", "a\n1\n", "a INT")
    assert files.rows("x.txt", "a\n1\n", format="csv") == [{"a": 1}]


def test_a_sample_of_files_has_the_columns_of_all_of_them(files: Files) -> None:
    sample = [
        ("a.csv", "id,n,empty\n1,1,\n"),
        ("b.json", '{"ID":2,"n":2.5,"more":{"x":1},"null":null}'),
        ("broken.parquet", "no"),
        ("readme.txt", "no rows"),
    ]
    assert files.columns(*sample) == "id BIGINT, n DOUBLE, empty STRING, more STRING"


def test_a_sample_of_which_nothing_can_be_read_is_an_error(files: Files) -> None:
    with pytest.raises(FileRejectedError, match="parquet"):
        files.columns(("broken.parquet", "no"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "xml"}, "format: 'xml' is not an allowed value. Give one of csv, json, parquet, avro, orc."),
        ({"delimiter": "::"}, "The delimiter cannot be '::'. Give one ASCII character, or tab."),
        ({"delimiter": '"'}, "The delimiter cannot be"),
        ({"header": "maybe"}, "header: 'maybe' is not true or false."),
        ({"encoding": "klingon"}, "There is no encoding 'klingon'"),
        ({"encoding": "a\0b"}, "There is no encoding 'a\\x00b'"),
        ({"encoding": "base64"}, "not an encoding of text"),
        ({"new_columns": "drop"}, "Give one of add, rescue, fail."),
        ({"color": "red"}, "There is no load option 'color'"),
    ],
)
def test_options_that_do_not_exist_or_have_no_such_value_are_errors(arguments: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidValueError) as error:
        Loader(**arguments)
    assert message in str(error.value)


def test_the_loader_needs_its_column_for_what_does_not_fit() -> None:
    with pytest.raises(InvalidValueError, match="need _rescued_data STRING"):
        Loader("a INT")


def test_the_loader_is_found_as_jobs_name_it_and_does_not_change_with_volstream() -> None:
    source = find(LOADER)
    assert source.load() is Loader
    assert (source.root, source.files) == (None, {})
    assert source.fingerprint == find("volstream.functions.loading.loader:chunks").fingerprint


def test_a_decimal_with_more_digits_than_any_type_is_rescued(files: Files) -> None:
    """PyArrow would read beyond its table of powers, and the process would end."""
    fine = "0." + "0" * 10_000_000 + "1"
    assert files.rows("x.json", '{"a":1e-99999999,"n":1}\n{"a":1.50}', "a DECIMAL(10,2), n INT") == [
        {"a": None, "n": 1, "_rescued_data": '{"a":1E-99999999}'},
        {"a": Decimal("1.50"), "n": None},
    ]
    assert files.rows("x.csv", f"a\n{fine}\n1.50\n", "a DECIMAL(10,2)") == [
        {"a": None, "_rescued_data": f'{{"a":"{fine}"}}'},
        {"a": Decimal("1.50")},
    ]


@pytest.mark.parametrize("content", ["3,c\n", "4,d\n5,e\n"], ids=["one line", "no header"])
def test_a_first_row_that_is_no_header_of_the_table_is_refused(files: Files, content: str) -> None:
    with pytest.raises(FileRejectedError, match="none of the columns id, n\\. Has the file no header"):
        files.rows("x.csv", content, "id BIGINT, n STRING")


def test_a_file_of_its_header_alone_has_no_rows(files: Files) -> None:
    assert files.rows("x.csv", "id,n\n", "id BIGINT, n STRING") == []


def test_bytes_that_are_no_text_are_refused_in_any_encoding(files: Files) -> None:
    with pytest.raises(FileRejectedError, match="not text but a PDF"):
        files.rows("x.csv", b"%PDF-1.7\n1\n", "id BIGINT", encoding="latin-1")


def test_names_and_values_of_folders_are_unescaped_as_spark_writes_them(files: Files) -> None:
    assert files.rows("my%20col=a%2Fb/x.csv", "a\n1\n") == [{"a": 1, "my_col": "a/b"}]
    assert files.rows("p=%FF/x.csv", "a\n1\n") == [{"a": 1, "p": "%FF"}]

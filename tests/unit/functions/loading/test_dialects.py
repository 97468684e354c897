"""Dialects of csv files: lines that are no rows, words for NULL, quotes and escapes, numbers and times written in other ways."""

from __future__ import annotations

import codecs
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

from tests.loading import Files
from volstream.base.definitions import LoadKeys
from volstream.errors import InvalidValueError
from volstream.functions.loading.options import LoadOptions
from volstream.functions.rejection import FileRejectedError

TWO = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_lines_before_the_header_comments_and_a_footer_are_no_rows(files: Files) -> None:
    content = "Report; of March\n\na,b\n1,x\n# checked\n2,y\nTotal,2\n\n"
    assert files.rows("x.csv", content, skip_rows="2", comment_prefix="#", skip_footer="1") == TWO
    assert files.rows("x.csv", content.replace("\n", "\r\n"), skip_rows="2", comment_prefix="#", skip_footer="1") == TWO
    assert files.rows("x.csv", content.replace("\n", "\r"), skip_rows="2", comment_prefix="#", skip_footer="1") == TWO
    encoded = content.encode("utf-16")
    assert files.rows("x.csv", encoded, encoding="utf-16", skip_rows="2", comment_prefix="#", skip_footer="1") == TWO


def test_a_line_that_looks_like_a_comment_inside_of_quotes_is_part_of_its_value(files: Files) -> None:
    content = '# by hand\na,b\n1,"x\n# y"\n2,5" disk\n#3,z\n4,"""\n#"\n'
    rows = files.rows("x.csv", content, comment_prefix="#")
    assert rows == [{"a": 1, "b": "x\n# y"}, {"a": 2, "b": '5" disk'}, {"a": 4, "b": '"\n#'}]
    with pytest.raises(FileRejectedError, match="quote in the file is never closed"):
        files.rows("x.csv", '#\na,b\n1,"x\n', "a INT", comment_prefix="#")


@pytest.mark.parametrize(
    "preamble", ["# exported 2026\n", "// exported, by Ann, 2026\n", "Sales report\n\nof March\n", "Sales,,,\n,,,\n"]
)
def test_a_first_line_that_is_no_header_rejects_the_file_and_says_what_to_skip(files: Files, preamble: str) -> None:
    content = f"{preamble}a,b,c,d\n1,x,2,y\n3,z,4,w\n"
    lines = preamble.count("\n")
    with pytest.raises(FileRejectedError, match=rf"first row of the file.*skip_rows={lines}\)"):
        files.rows("x.csv", content)
    assert len(files.rows("x.csv", content, skip_rows=str(lines))) == 2
    assert len(files.rows("x.csv", content, skip_rows="0")) > 2


@pytest.mark.parametrize(("delimiter", "name"), [(";", "x.csv"), ("|", "x.csv"), ("\t", "x.csv"), (",", "x.tsv")])
def test_a_file_with_another_delimiter_is_not_one_column(files: Files, delimiter: str, name: str) -> None:
    content = "a;b;c\n1,5;x;2\n2,5;y;3\n".replace(";", delimiter)
    with pytest.raises(FileRejectedError, match=r"seem to be separated by .*name the delimiter"):
        files.rows(name, content.replace(",5", ""))
    if delimiter != ",":
        with pytest.raises(FileRejectedError, match=r"seem to be separated by"):
            files.rows(name, content)
        assert files.rows(name, content, delimiter=delimiter, decimal=",")[0] == {"a": 1.5, "b": "x", "c": 2}
    assert len(files.rows(name, content.replace(",5", ""), delimiter="~")[0]) == 1


def test_a_comment_above_a_single_column_is_no_header(files: Files) -> None:
    with pytest.raises(FileRejectedError, match=r"'# exported 2026'.*comment_prefix=#"):
        files.rows("x.csv", "# exported 2026\nname\nAnn\n")
    assert files.rows("x.csv", "# exported 2026\nname\nAnn\n", comment_prefix="#") == [{"name": "Ann"}]


@pytest.mark.parametrize("content", ["#id,b\n1,2\n", "a\n1\n2\n", "a; b\nno\nyes; it is\n", "id,\n1,x\n", "a,b\n1,2,3\n1,2,3\n"])
def test_a_header_that_is_a_little_odd_is_one(files: Files, content: str) -> None:
    assert files.rows("x.csv", content)


def test_excels_first_line_names_the_delimiter(files: Files) -> None:
    assert files.rows("x.csv", "sep=;\r\na;b\r\n1;x\r\n2;y\r\n") == TWO
    assert files.rows("x.csv", '\ufeff"sep=|"\na|b\n1|x\n2|y\n') == TWO


def test_words_for_null_are_null_unless_they_are_quoted(files: Files) -> None:
    rows = files.rows("x.csv", 'a,b\nNA,"NA"\n1,NULL\n2,N\n', null_values="NA,NULL")
    assert rows == [{"a": None, "b": "NA"}, {"a": 1, "b": None}, {"a": 2, "b": "N"}]


def test_a_backslash_escapes_but_not_the_null_of_databases(files: Files) -> None:
    content = 'a|b\n\\N|x\\|y\n1|\\N\n2|"\\"q\\" |\\N|"\n3|\\\\N\n'
    rows = files.rows("x.csv", content, delimiter="|", escape="\\", null_values="\\N")
    assert rows == [{"a": None, "b": "x|y"}, {"a": 1, "b": None}, {"a": 2, "b": '"q" |N|'}, {"a": 3, "b": "\\N"}]


@pytest.mark.parametrize(
    ("content", "said", "rows"),
    [
        ('p\n"A"\n"C:\\\\"\n"sum"\n', {"skip_footer": "1"}, ["A", "C:\\"]),
        ('p\n"C:\\\\"\n#c\nx\n', {"comment_prefix": "#"}, ["C:\\", "x"]),
        ('p\n"a\\"b\n#c"\nx\n', {"comment_prefix": "#"}, ['a"b\n#c', "x"]),
        ("p\nx\\\n#y\nz\n", {"comment_prefix": "#"}, ["x\n#y", "z"]),
        ("p\nx\\\\\n#y\nz\n", {"comment_prefix": "#"}, ["x\\", "z"]),
    ],
)
def test_escaped_escapes_and_line_ends_do_not_confuse_comments_and_footers(
    files: Files, content: str, said: dict[str, str], rows: list[str]
) -> None:
    assert [row["p"] for row in files.rows("x.csv", content, "p STRING", escape="\\", **said)] == rows


def test_a_quote_as_the_escape_is_a_doubled_one(files: Files) -> None:
    assert files.rows("x.csv", 'a,b\n"1","x"""\n', escape='"') == [{"a": 1, "b": 'x"'}]


def test_other_quotes_or_none(files: Files) -> None:
    assert files.rows("x.csv", "a,b\n1,'x,y'\n", quote="'") == [{"a": 1, "b": "x,y"}]
    assert files.rows("x.csv", 'a,b\n1,"x\n', quote="none") == [{"a": 1, "b": '"x'}]


def test_a_decimal_comma_makes_numbers_and_a_point_then_none(files: Files) -> None:
    content = "a;b;c\n1,5;2;1.5\n-,25;3;2\n"
    assert files.columns(("x.csv", content), delimiter=";", decimal=",") == "a DOUBLE, b BIGINT, c STRING"
    rows = files.rows("x.csv", content, "a DECIMAL(4,2), b INT, c DOUBLE", delimiter=";", decimal=",")
    assert [(float(row["a"]), row["b"], row["c"], row.get("_rescued_data")) for row in rows] == [
        (1.5, 2, None, '{"c":"1.5"}'),
        (-0.25, 3, 2.0, None),
    ]


def test_dates_and_times_are_read_by_their_formats_only(files: Files) -> None:
    said = {"date_format": "%d.%m.%Y", "timestamp_format": "%d.%m.%Y %H:%M"}
    content = "d,t,s\n1.3.2026,1.3.2026 14:05,2026-03-01\n31.12.2026,31.12.2026 00:00,31.2.2026\n"
    assert files.columns(("x.csv", content), **said) == "d DATE, t TIMESTAMP, s STRING"
    rows = files.rows("x.csv", content, "d DATE, t TIMESTAMP, s DATE", **said)
    assert rows == [
        {"d": date(2026, 3, 1), "t": datetime(2026, 3, 1, 14, 5, tzinfo=UTC), "s": None, "_rescued_data": '{"s":"2026-03-01"}'},
        {"d": date(2026, 12, 31), "t": datetime(2026, 12, 31, tzinfo=UTC), "s": None, "_rescued_data": '{"s":"31.2.2026"}'},
    ]
    [row] = files.rows("x.csv", "t\n2026/03/01 01:00 +0200\n", "t TIMESTAMP", timestamp_format="%Y/%m/%d %H:%M %z")
    assert row == {"t": datetime(2026, 2, 28, 23, tzinfo=UTC)}


NO_HEADERS = ["0.0,1", "1", ",5,", "2026-03-02T10:00:00Z,1e3", "02139,+49 151,-1.5E+3", "31/12/2026 10:30,5 %"]


@pytest.mark.parametrize("row", NO_HEADERS)
@pytest.mark.parametrize("rows", [1, 3])
def test_a_first_row_of_numbers_and_times_alone_is_no_header(files: Files, row: str, rows: int) -> None:
    content = f"{row}\n" * rows
    for columns in (None, "a INT"):
        with pytest.raises(FileRejectedError, match=r"seems to be no header: .*--no-header.*skip_rows=0"):
            files.rows("x.csv", content, columns, new_columns="rescue")
    assert len(files.rows("x.csv", content, header="false")) == rows
    files.columns(("x.csv", content), skip_rows="0")


@pytest.mark.parametrize(
    "row", ["country,2019,2020", "2019,note", "_1,_2", "#,1", "1st,2nd", "12 e,5", "é1,2", "Z,1", "0,1", ",0,1"]
)
def test_a_first_row_with_a_name_is_a_header(files: Files, row: str) -> None:
    assert len(files.rows("x.csv", f"{row}\n1,2\n")) == 1


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changes:
        changes.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
@pytest.mark.parametrize(("zone", "hour"), [("UTC", 1), ("gmt", 1), ("EST", None)])
def test_a_time_with_the_name_of_a_zone_is_read_only_if_the_name_tells_an_offset(
    files: Files, zone: str, hour: int | None
) -> None:
    content, said = f"t\n2026-03-01 01:00 {zone}\n", {"timestamp_format": "%Y-%m-%d %H:%M %Z"}
    [row] = files.rows("x.csv", content, "t TIMESTAMP", **said)
    assert row["t"] == (None if hour is None else datetime(2026, 3, 1, hour, tzinfo=UTC))
    assert files.rows("x.csv", content, "t TIMESTAMP_NTZ", **said)[0]["_rescued_data"] == f'{{"t":"2026-03-01 01:00 {zone}"}}'


@pytest.mark.parametrize(
    "said",
    [
        {"date_format": "dd.MM.yyyy"},
        {"date_format": "%d.%m."},
        {"quote": "''"},
        {"escape": ""},
        {"comment_prefix": "\n"},
        {"skip_rows": "-1"},
    ],
)
def test_options_that_cannot_be_are_errors(said: dict[str, str]) -> None:
    [(name, value)] = said.items()
    if value:
        with pytest.raises(InvalidValueError, match=name):
            LoadOptions.of(said)


def test_options_are_read_back_as_they_were_said() -> None:
    with pytest.raises(InvalidValueError, match="null_values: 'a,b' has a comma"):
        LoadKeys(null_values=("NA", "a,b"))
    for said in ({"delimiter": "'", "quote": "'"}, {"delimiter": "|", "escape": "|"}, {"delimiter": "\0"}):
        with pytest.raises(InvalidValueError, match="delimiter"):
            LoadOptions.of(said)
    said = {"null_values": "\\N,NA", "skip_rows": "0", "quote": "none", "escape": "\\", "delimiter": "\t"}
    assert LoadOptions.of(LoadOptions.of(said).arguments()) == LoadOptions.of(said)


@pytest.mark.parametrize("content", ["name;amount (EUR, net)\nAnn;12,5\nBob;3,0\n", "id\tname, first\n1\tAnn, A\n2\tBob, B\n"])
def test_another_delimiter_is_noticed_beside_one_comma(files: Files, content: str) -> None:
    with pytest.raises(FileRejectedError, match="seem to be separated by"):
        files.rows("x.csv", content)


def test_two_columns_with_a_semicolon_in_some_values_stay(files: Files) -> None:
    assert files.rows("x.csv", "a,b\n1;2,3\n4,5;6\n") == [{"a": "1;2", "b": "3"}, {"a": "4", "b": "5;6"}]


def test_text_in_utf_16_says_so(files: Files) -> None:
    for name, content in (("x.csv", "a,b\n1,2\n"), ("x.json", '{"a": 1}')):
        for encoding in ("utf-16", "utf-16-be"):
            data = content.encode(encoding) if encoding == "utf-16" else codecs.BOM_UTF16_BE + content.encode(encoding)
            with pytest.raises(FileRejectedError, match="encoding=utf-16"):
                files.rows(name, data)
            assert files.rows(name, data, encoding="utf-16")[0]["a"] == 1


DAY = date(2026, 3, 1)


@pytest.mark.parametrize(
    ("path", "columns", "rows"),
    [
        ("x.csv", "x INT, y STRING", [{"x": 1, "y": "2"}, {"x": 3, "y": "4"}]),
        (
            "day=2026-03-01/x.csv",
            "x INT, day DATE, y STRING, z STRING",
            [{"x": 1, "day": DAY, "y": "2", "z": None}, {"x": 3, "day": DAY, "y": "4", "z": None}],
        ),
        ("x.csv", "x INT", [{"x": 1, "_rescued_data": '{"_c1":"2"}'}, {"x": 3, "_rescued_data": '{"_c1":"4"}'}]),
        ("x.csv", "_c0 INT, _c1 INT", [{"_c0": 1, "_c1": 2}, {"_c0": 3, "_c1": 4}]),
    ],
)
def test_values_without_a_header_are_those_of_the_columns_in_their_order(
    files: Files, path: str, columns: str, rows: list[dict[str, object]]
) -> None:
    found = files.rows(path, "1,2\n3,4\n", columns, header="false", new_columns="rescue")
    assert found == rows


@pytest.mark.parametrize(
    "said", [{"comment_prefix": "#"}, {"skip_rows": "0", "comment_prefix": "#"}, {"null_values": "\\N", "escape": "\\"}]
)
def test_a_row_of_blanks_is_a_row_wherever_it_stands(files: Files, said: dict[str, str]) -> None:
    content = "a\tb\n\t\n1\t2\n\t\n"
    rows = [{"a": None, "b": None}, {"a": 1, "b": 2}, {"a": None, "b": None}]
    assert files.rows("x.tsv", content) == files.rows("x.tsv", content, **said) == rows


def test_rows_of_nulls_before_a_footer_are_rows_and_empty_lines_after_it_are_none(files: Files) -> None:
    rows = files.rows("x.tsv", "a\tb\n1\t2\n\t\nTotal\t3\n\n\n", skip_footer="1")
    assert rows == [{"a": 1, "b": 2}, {"a": None, "b": None}]
    assert files.rows("x.csv", "a\nx\n\\N\n", null_values="\\N", escape="\\", skip_footer="0") == [{"a": "x"}, {"a": None}]


@pytest.mark.parametrize(
    ("format_", "text", "day"),
    [
        ("%Y-%j", "2024-366", date(2024, 12, 31)),
        ("%Y-%j", "2026-1", date(2026, 1, 1)),
        ("%Y-%j", "2026-366", None),
        ("%G-%V-%u", "2026-53-7", date(2027, 1, 3)),
        ("%G-%V-%u", "2025-53-1", None),
    ],
)
def test_days_that_a_year_lacks_are_rescued(files: Files, format_: str, text: str, day: date | None) -> None:
    [row] = files.rows("x.csv", f"d\n{text}\n", "d DATE", date_format=format_)
    assert row["d"] == day


@pytest.mark.parametrize(
    ("option", "column", "format_", "text", "value"),
    [
        ("date_format", "DATE", "%d.%m.%Y %H:%M", "31.12.2026 10:00", None),
        ("date_format", "DATE", "%d.%m.%Y %H:%M", "31.12.2026 00:00", date(2026, 12, 31)),
        ("date_format", "DATE", "%Y%m%d", "20261231", date(2026, 12, 31)),
        ("date_format", "DATE", "%Y%m%d", "202611", None),
        ("date_format", "DATE", "%d%b%Y", "1jan2026", date(2026, 1, 1)),
        ("timestamp_format", "TIMESTAMP", "%m/%d/%Y %H:%M %p", "12/31/2026 1:00 PM", None),
        ("timestamp_format", "TIMESTAMP", "%m/%d/%Y %I:%M %p", "12/31/2026 1:00 PM", datetime(2026, 12, 31, 13, tzinfo=UTC)),
        ("timestamp_format", "TIMESTAMP", "%Y%m%dT%H%M%S", "20261231T130501", datetime(2026, 12, 31, 13, 5, 1, tzinfo=UTC)),
        ("timestamp_format", "TIMESTAMP", "%Y%m%dT%H%M%S", "20261231T13051", None),
    ],
)
def test_what_a_format_would_cut_or_take_for_another_time_is_rescued(
    files: Files, option: str, column: str, format_: str, text: str, value: date | None
) -> None:
    [row] = files.rows("x.csv", f"d\n{text}\n", f"d {column}", **{option: format_})
    assert row["d"] == value
    assert ("_rescued_data" in row) == (value is None)


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_row_counts_for_the_types_whether_or_not_its_line_ends(files: Files, end: str) -> None:
    assert files.columns(("x.csv", f"id,price\n1,10\n2,9.99{end}")).startswith("id BIGINT, price DOUBLE")
    assert files.columns(("x.csv", f"a\n1\nx{end}")).startswith("a STRING")

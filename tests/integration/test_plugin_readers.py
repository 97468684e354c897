"""Formats that plug-ins read: the readers in examples/, found by their metadata without an installation; and what is wrong with others."""

from __future__ import annotations

import io
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from tests.loading import Files
from tests.memory import MemoryStore
from tests.plugins import SAMPLE, pretend_installed
from tests.running import store
from volstream.base import plugins
from volstream.base.definitions import FileFormat
from volstream.errors import InvalidValueError
from volstream.functions.loading.options import LoadOptions
from volstream.functions.rejection import FileRejectedError

__all__ = ["store"]

_ODD = """
import pyarrow as pa

def read(content, options):
    yield pa.RecordBatch.from_pydict({"a": ["1"], "b": [2.5]})
    yield pa.RecordBatch.from_pydict({"c": ["x"]})
    if options:
        raise ZeroDivisionError
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> Iterator[Files]:
    (tmp_path / "odd_reader.py").write_text(_ODD)
    pretend_installed(tmp_path, "acme-odd", {"volstream.readers": {"odd": "odd_reader:read", "csv": "odd_reader:read"}})
    monkeypatch.syspath_prepend(tmp_path)
    for folder in (SAMPLE.parent / "readers").glob("*/pyproject.toml"):
        project = tomllib.loads(folder.read_text())["project"]
        pretend_installed(tmp_path, project["name"], project["entry-points"])
        monkeypatch.syspath_prepend(folder.parent)
    plugins._point.cache_clear()
    yield Files(store)
    plugins._point.cache_clear()


def sheet(rows: Sequence[Sequence[object]]) -> str:
    def cell(value: object) -> str:
        match value:
            case bool():
                return f'<c t="b"><v>{int(value)}</v></c>'
            case date():
                days = (datetime(value.year, value.month, value.day) - datetime(1899, 12, 30)).days
                hours = value.hour if isinstance(value, datetime) else 0
                return f'<c s="{2 if hours else 1}"><v>{days + hours / 24}</v></c>'
            case int() | float():
                return f"<c><v>{value}</v></c>"
            case _:
                return f'<c t="inlineStr"><is><t>{escape(str(value))}</t></is></c>' if value is not None else "<c/>"

    lines = "".join(f"<row>{''.join(map(cell, row))}</row>" for row in rows)
    return f'<worksheet xmlns="{_MAIN}"><sheetData>{lines}</sheetData></worksheet>'


_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def workbook(**sheets: Sequence[Sequence[object]]) -> bytes:
    """A file of Excel."""
    numbered = list(enumerate(sheets.items(), start=1))
    listed = "".join(f'<sheet name="{name}" sheetId="{at}" r:id="r{at}"/>' for at, (name, _) in numbered)
    related = "".join(f'<Relationship Id="r{at}" Type="{_OFFICE}/worksheet" Target="worksheets/{at}.xml"/>' for at, _ in numbered)
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r" '
            f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{related}'
            f'<Relationship Id="s" Type="{_OFFICE}/styles" Target="styles.xml"/></Relationships>',
            "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/><xf numFmtId="22"/></cellXfs></styleSheet>',
            **{f"xl/worksheets/{at}.xml": sheet(rows) for at, (_, rows) in numbered},
        }.items():
            archive.writestr(name, content)
    return target.getvalue()


SALES: Sequence[Sequence[object]] = [
    ["Report", None, None, None, None, None],
    ["id", "amount", "day", "at", "ok", "code"],
    [1, 2.5, date(2026, 3, 1), datetime(2026, 3, 1, 6), True, 7],
    [None, None, None, None, None, None],
    [2, None, date(2026, 3, 2), datetime(2026, 3, 2, 12), False, "x"],
]


def test_a_sheet_of_excel_is_rows_with_the_types_of_its_cells(files: Files) -> None:
    content = workbook(Notes=[["a"], ["b"]], Sales=SALES)
    options = {"reader_options": '{"sheet": "Sales", "skip": "1"}'}
    assert (
        files.columns(("x.xlsx", content), **options)
        == "id BIGINT, amount DOUBLE, day DATE, at TIMESTAMP, ok BOOLEAN, code STRING"
    )
    assert files.rows("x.xlsx", content, **options) == [
        {"id": 1, "amount": 2.5, "day": date(2026, 3, 1), "at": datetime(2026, 3, 1, 6, tzinfo=UTC), "ok": True, "code": "7"},
        {"id": 2, "amount": None, "day": date(2026, 3, 2), "at": datetime(2026, 3, 2, 12, tzinfo=UTC), "ok": False, "code": "x"},
    ]
    assert files.rows("x.xlsx", content) == [{"a": "b"}]
    for name, broken, reason in (
        ("x.xlsx", b"no workbook", "cannot be read as xlsx"),
        ("x.xlsx", content, "there is no sheet 'Sold', but Notes, Sales"),
    ):
        with pytest.raises(FileRejectedError, match=reason):
            files.rows(name, broken, "a INT", reader_options="sheet=Sold")


def test_elements_of_xml_are_rows_whose_children_and_attributes_are_columns(files: Files) -> None:
    content = """<?xml version="1.0"?>
        <o:orders xmlns:o="urn:o"><o:order id="1"><o:total> 2.5 </o:total><by><name>Ann</name></by><tag>a</tag><tag>b</tag></o:order>
        <o:page><o:order id="2"><by/></o:order></o:page></o:orders>"""
    assert files.rows("x.xml", content, reader_options="row=order") == [
        {"id": 1, "total": 2.5, "by": '{"name": "Ann"}', "tag": '["a", "b"]'},
        {"id": 2, "total": None, "by": None, "tag": None},
    ]
    columns = "id INT, by STRUCT<name: STRING>, tag ARRAY<STRING>, total DECIMAL(5,2)"
    assert files.rows("x.xml.gz", content, columns, reader_options="row=order")[0]["by"] == {"name": "Ann"}
    with pytest.raises(FileRejectedError, match="it has the option row"):
        files.rows("x.xml", content, "a INT")
    with pytest.raises(FileRejectedError, match="cannot be read as xml: unclosed token"):
        files.rows("x.xml", content[:-9], "a INT", reader_options="row=order")


def test_fields_of_fixed_width_are_columns_in_the_notation_of_the_job(files: Files) -> None:
    content = "ORDERS\n001Ann  --  1,5020260301\n002Bob  --     \n\n"
    options = {
        "reader_options": '{"fields": "id:3,name:5,:2,amount:6,day:8", "skip": "1"}',
        "decimal": ",",
        "date_format": "%Y%m%d",
    }
    assert files.rows("x.fwf", content, **options) == [
        {"id": "001", "name": "Ann", "amount": 1.5, "day": date(2026, 3, 1)},
        {"id": "002", "name": "Bob", "amount": None, "day": None},
    ]
    with pytest.raises(FileRejectedError, match="line 2 goes on after its last field"):
        files.rows("x.fwf", content, "id INT", reader_options='{"fields": "id:3", "skip": "1"}')


def test_batches_of_a_reader_may_differ_and_volstreams_own_formats_stay(files: Files) -> None:
    assert files.rows("x.odd", "?", "a BIGINT, b DOUBLE, c STRING") == [
        {"a": 1, "b": 2.5, "c": None},
        {"a": None, "b": None, "c": "x"},
    ]
    assert files.rows("x.csv", "a\n5\n") == [{"a": 5}]


def test_a_reader_that_does_not_work_or_is_missing_is_named(files: Files) -> None:
    with pytest.raises(ZeroDivisionError):
        files.rows("x.odd", "?", "a INT, b DOUBLE, c STRING", reader_options="fail=yes")
    with pytest.raises(InvalidValueError, match=r"Did you mean 'odd'\? Give one of csv"):
        LoadOptions.of({"format": "oddd"})
    with pytest.raises(FileRejectedError, match="Unknown file format"):
        files.rows("x.pigeons", "?", "a INT")
    assert FileFormat("pigeons").is_plugin, "the catalog may name a format that is not installed here"

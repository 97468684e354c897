"""Whatever names and messages are, pages show them as text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from starlette.requests import Request

from volstream.errors import CatalogError, InvalidValueError, NotFoundError, StreamBusyError
from volstream.ops.inspection.tables import OutputFile
from volstream.server.console.http import Query, block, number, page_answer, stacked, status_of, url, value, when

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</title><script>alert(1)</script>",
    '" onmouseover="alert(1)',
    "${x}{{ 7 * 7 }}",
    "\x1b[31mred",
    "\u202egnp.exe",
    "a\nb\rc\0",
    "x" * 1000,
    "\udcff",
]


def shown(message: str) -> str:
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
    values = {"title": message, "message": message, "remedy": ""}
    return bytes(page_answer(request, "error.html", values).body).decode()


@pytest.mark.parametrize("text", HOSTILE)
def test_text_cannot_become_html_nor_mislead(text: str) -> None:
    page = shown(text)
    assert (text.isprintable() and not set(text) & set('<"')) or text not in page
    assert "<img src=x" not in page
    assert "<script>" not in page
    assert "49" not in page
    assert all(character.isprintable() or character == "\n" for character in page)


def test_control_and_direction_characters_are_shown() -> None:
    assert "\\x1b[31mred" in shown("\x1b[31mred")
    assert "\\u202egnp.exe" in shown("\u202egnp.exe")


def test_a_traceback_keeps_its_lines_and_nothing_else() -> None:
    assert str(block("a <b>\n\tc\x1b")) == "a &lt;b&gt;\n\tc\\x1b"


def test_a_value_keeps_its_lines() -> None:
    assert str(value("a\nb")) == '<span class="lines">a\nb</span>'
    assert value("a\\nb") == "a\\nb"


@pytest.mark.parametrize("text", HOSTILE[:-1])
def test_names_and_paths_travel_in_urls(text: str) -> None:
    made = url("volumes", text, "files", path=text)
    assert made.startswith("/volumes/")
    assert made.count("/") == 3
    assert made.isascii()
    assert not set(made) & set("<>\" '\n")


def test_a_query_leaves_out_what_is_not_there() -> None:
    assert url("jobs", "a", group=None, after="") == "/jobs/a"
    assert url() == "/"


def test_times_are_exact_for_programs_and_readable_without_scripts() -> None:
    made = str(when(datetime(2026, 3, 1, 12, 5, 7, tzinfo=UTC)))
    assert made == '<time datetime="2026-03-01T12:05:07Z" title="2026-03-01 12:05:07 UTC">2026-03-01 12:05 UTC</time>'
    assert str(when(None, "<never>")) == "&lt;never&gt;"


def test_numbers_are_short() -> None:
    assert [number(one) for one in (None, 0, 1234567, 12.345, 0.012345)] == ["—", "0", "1&#8239;234&#8239;567", "12.3", "0.012"]


def test_numbers_of_a_chart_are_stacked_up_to_the_highest_place() -> None:
    bars = stacked({"ok": [1, 0, 2], "bad": [3, 0, 0]})
    assert [tuple(bar) for bar in bars] == [("ok", 0, 0.75, 0.25, 1), ("bad", 0, 0, 0.75, 3), ("ok", 2, 0.5, 0.5, 2)]
    assert stacked({"ok": [], "bad": []}) == stacked({"ok": [0]}) == []


@pytest.mark.parametrize("given", ["0", "501", "-1", "x", "9" * 30, "9" * 5000, "²"])
def test_a_page_of_a_table_is_never_unbounded(given: str) -> None:
    with pytest.raises(InvalidValueError):
        _ = Query({"limit": [given]}).limit
    assert Query({}).limit == 50
    assert Query({"limit": ["500"]}).limit == 500


def test_the_last_of_several_values_counts() -> None:
    query = Query({"path": ["a", "", "b"], "empty": [""]})
    assert (query.text("path"), query.texts("path"), query.text("empty")) == ("b", ["a", "b"], None)


def test_a_file_of_a_row_is_a_link_with_its_picture_and_size() -> None:
    file = {"volume": "v", "relative_path": "a b/<x>.png", "size": 2048, "etag": "e", "content_type": None}
    shown = value(OutputFile(file))
    assert 'href="/volumes/v/files?path=a+b%2F%3Cx%3E.png"' in shown
    assert 'src="/volumes/v/content?path=a+b%2F%3Cx%3E.png"' in shown
    assert "a b/&lt;x&gt;.png" in shown
    assert "2.0 KiB" in shown
    assert "<img" not in value(OutputFile({**file, "size": 1 << 30}))
    assert "<img" not in value(OutputFile({**file, "relative_path": "a.pdf"}))
    assert value([OutputFile(file), OutputFile(file)]).count("<img") == 2


def test_errors_have_the_status_that_programs_expect() -> None:
    errors = (NotFoundError(""), InvalidValueError(""), StreamBusyError(""), CatalogError(""), KeyError(""))
    assert [status_of(error) for error in errors] == [404, 400, 409, 503, 500]


@pytest.mark.parametrize(("moment", "shown"), [(datetime.min, "0001-01-01 00:00:00"), (datetime.max, "9999-12-31 23:59:59")])
def test_a_time_without_a_zone_is_shown_as_it_is(moment: datetime, shown: str) -> None:
    assert value(moment) == shown
    assert "<time" in value(moment.replace(tzinfo=UTC))

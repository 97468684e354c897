"""Messages as rows, without a broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volstream.ingest.sources.kafka import COLUMNS, json_text, new_messages, rows

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class EscapedText:
    """A message."""

    said: bytes | None
    at: int = 0
    time: tuple[int, int] = (1, 0)

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return self.said

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return self.time

    def headers(self) -> None:
        return None


@settings(max_examples=settings().max_examples // 2)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists
    )
)
def test_whatever_json_can_say_is_kept_letter_by_letter(value: object) -> None:
    text = f" {json.dumps(value)}\n"
    assert json_text(text.encode()) == text


@given(st.binary())
def test_no_bytes_are_lost(value: bytes) -> None:
    row = rows([EscapedText(value)], "json", "t", 0, NOW).to_pylist()[0]
    assert row["payload"] == value if row["event"] is None else row["event"].encode() == value


@pytest.mark.parametrize(
    "value", [b"", b"{", b"{} {}", b"NaN", b"[Infinity]", b"'a'", b"\xef\xbb\xbf{}", b'"\n"', b'"\xff"', b"[" * 100_000]
)
def test_what_is_not_json_in_utf_8_is_no_text(value: bytes) -> None:
    assert json_text(value) is None


@pytest.mark.parametrize("value", [b"1e999", b"9" * 10_000, b'"\\u0000"', b'{"a":1,"a":2}', b"[" * 500 + b"]" * 500])
def test_what_json_allows_is_text_even_if_no_type_can_hold_it(value: bytes) -> None:
    assert json_text(value) == value.decode()


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ((1, 0), datetime(1970, 1, 1, tzinfo=UTC)),
        ((2, 253_402_300_799_999), datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
        ((1, 253_402_300_800_000), None),
        ((0, 1), None),
        ((1, -1), None),
        ((1, 2**63 - 1), None),
    ],
)
def test_times_that_spark_cannot_show_are_null(time: tuple[int, int], said: datetime | None) -> None:
    assert rows([EscapedText(b"", time=time)], "bytes", "t", 0, NOW)["timestamp"].to_pylist() == [said]


def test_rows_have_the_columns_of_the_table_and_the_order_of_the_messages() -> None:
    found = rows([EscapedText(b"1", 5), EscapedText(None, 9)], "json", "t", 3, NOW)
    assert found.column_names == ["__operation", *COLUMNS.names]
    assert [(row["offset"], row["event"], row["payload"], row["partition"]) for row in found.to_pylist()] == [
        (5, "1", None, 3),
        (9, None, None, 3),
    ]


def test_messages_that_come_again_are_left_out() -> None:
    said = [EscapedText(b"", at) for at in (3, 4, 5, 4, 5, 9)]
    assert [message.offset() for message in new_messages(said, 4)] == [4, 5, 9]
    assert new_messages(said, 10) == []

"""Values at the ends of each type, and names that something on their way might take for something else.

One corpus for all ways in and out: :func:`rows` has the values of all types side by side, a column each, and
:func:`written` writes a value such that two texts are equal if the values are, -0.0 and NaN included.
"""

from __future__ import annotations

import base64
import math
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from itertools import zip_longest
from typing import Any

import pyarrow as pa

_INF = float("inf")
_EXACT = Context(prec=100)

#: A character of each plane of Unicode and the ends of some, but halves of pairs, which no UTF-8 has.
PLANES = ["\x01", "\x7f", "\x80", "\ud7ff", "\ue000", "\ufeff", "\ufffd", "\ufffe", "\uffff"] + [
    chr(plane << 16 | low) for plane in range(1, 17) for low in (0, 0xB7, 0xFFFE, 0xFFFF)
]

TEXTS = [
    "",
    " ",
    " both ends ",
    "a\0b",
    "\0",
    "line\nline\r\nline\rline\x0bline\x0cline\x85line\u2028line\u2029end",
    "\n",
    "\r",
    "\t",
    "\u0301",  # a combining mark of nothing
    unicodedata.normalize("NFC", "Ångström"),
    unicodedata.normalize("NFD", "Ångström"),
    "\u202eright to left\u202c\u2066isolated\u2069",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "İ\u0131ßẞ\u212ak\u017f",
    "x" * 100_000,
    "野" * 33 + "\U00020bb7",
    *["NULL", "null", "None", "NaN", "nan", "\\N", "-", "N/A", "true", "FALSE", "inf", "-Infinity"],
    *["0", "007", "-0", "1e5", "9007199254740993", "1_000", "0x1F", "١٢٣", "1.10", "+1"],
    *["2026-01-01", "2026-01-01T00:00:00Z", "9999-12-31", "00:00", "1 day"],
    *["'", '"', "''", '"a","b"', "`", "\\", "\\'", "\\n", "\\u0041", "a,b;c|d", "-- x", "/* x */", "; DROP TABLE t", "?", "%s"],
    *["${env:HOME}", "${spark.app.name}", "$1", "{}", "[1]", '{"a": 1}', "<b>&amp;</b>", "=1+1", "[bold]x[/bold]"],
    "".join(PLANES),
    *PLANES,
]

#: What a literal of SQL may be taken for, or end by, if it is written as it is.
HOSTILE = [
    *(f"a{chr(code)}b" for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)),
    *("zzz\nVOLSTREAM READS\n.txt", "\nVOLSTREAM READS\n", "\nVOLSTREAM READS\nx'\nVOLSTREAM READS\nx", "\\\n", "\\\\"),
    *TEXTS,
]

TIMES = [
    datetime(1, 1, 1),
    datetime(1, 1, 1, 0, 0, 0, 1),
    datetime(1582, 10, 4, 23, 59, 59, 999_999),
    datetime(1582, 10, 10, 12),  # never was, in the calendar of its time
    datetime(1582, 10, 15),
    datetime(1677, 9, 21, 0, 12, 43, 145_224),  # the first of nanoseconds, and the one before
    datetime(1677, 9, 21, 0, 12, 43, 145_223),
    datetime(1893, 3, 31, 23, 30),
    datetime(1899, 12, 31, 23, 59, 59, 999_999),
    datetime(1900, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2024, 2, 29, 12, 0, 0, 1),
    datetime(2026, 3, 29, 1),  # Europe leaves out an hour, and repeats one
    datetime(2026, 3, 29, 2, 30),
    datetime(2026, 10, 25, 0, 30),
    datetime(2026, 10, 25, 1, 30),
    datetime(2038, 1, 19, 3, 14, 8),
    datetime(2262, 4, 11, 23, 47, 16, 854_775),
    datetime(2262, 4, 11, 23, 47, 16, 854_776),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]


def _ends(bits: int) -> list[int]:
    return [-(1 << (bits - 1)), -(1 << (bits - 1)) + 1, -1, 0, 1, (1 << (bits - 1)) - 2, (1 << (bits - 1)) - 1]


_NINES = "9" * 38
_DOUBLES = [-0.0, 0.0, float("nan"), _INF, -_INF, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
_DOUBLES += [0.1, 0.1 + 0.2, 1 / 3, 2.0**53, 2.0**53 + 2, 123456789.125, 1e16, 1e22, 1e23, 12345678.9, 1e-7]
#: All of them are exact in 32 bits.
_FLOATS = [-0.0, 0.0, float("nan"), _INF, -_INF, 2.0**-149, -(2.0**-149), 2.0**-126, (2 - 2.0**-23) * 2.0**127, 0.5]
_FLOATS += [16777216.0, 16777218.0, 0.10000000149011612]

#: Columns by the way: name, type in SQL, type of Arrow, values.
COLUMNS: Sequence[tuple[str, str, pa.DataType, Sequence[Any]]] = [
    ("bool", "BOOLEAN", pa.bool_(), [True, False]),
    ("tiny", "TINYINT", pa.int8(), _ends(8)),
    ("small", "SMALLINT", pa.int16(), _ends(16)),
    ("int", "INT", pa.int32(), _ends(32)),
    ("big", "BIGINT", pa.int64(), [*_ends(64), 2**53 + 1]),
    ("float", "FLOAT", pa.float32(), _FLOATS),
    ("double", "DOUBLE", pa.float64(), _DOUBLES),
    ("dec0", "DECIMAL(38,0)", pa.decimal128(38, 0), [Decimal(_NINES), Decimal(f"-{_NINES}"), Decimal(0)]),
    (
        "dec19",
        "DECIMAL(38,19)",
        pa.decimal128(38, 19),
        [
            Decimal(f"{_NINES[:19]}.{_NINES[:19]}"),
            Decimal("-0.0000000000000000001"),
            Decimal("9007199254740993.0000000000000000000"),
        ],
    ),
    ("dec38", "DECIMAL(38,38)", pa.decimal128(38, 38), [Decimal(f"0.{_NINES}"), Decimal(f"-0.{_NINES}")]),
    ("day", "DATE", pa.date32(), [*dict.fromkeys(moment.date() for moment in TIMES)]),
    ("at", "TIMESTAMP", pa.timestamp("us", "UTC"), [moment.replace(tzinfo=UTC) for moment in TIMES]),
    ("local", "TIMESTAMP_NTZ", pa.timestamp("us"), TIMES),
    ("text", "STRING", pa.string(), TEXTS),
    ("raw", "BINARY", pa.binary(), [b"", b"\0", bytes(range(256)), b"\xff\xfe", b"\xed\xa0\x80", b"NULL", b"'\\"]),
    ("list", "ARRAY<STRING>", pa.list_(pa.string()), [[], [None], ["", None, "\U0010ffff", "a\0b"], ["NULL"], TEXTS[:12]]),
    ("doubles", "ARRAY<DOUBLE>", pa.list_(pa.float64()), [[-0.0, float("nan"), _INF, None, 5e-324], []]),
    ("times", "ARRAY<TIMESTAMP>", pa.list_(pa.timestamp("us", "UTC")), [[one.replace(tzinfo=UTC) for one in TIMES]]),
    (
        "struct",
        "STRUCT<n: BIGINT, d: DECIMAL(38,19), t: TIMESTAMP, s: STRING, b: BINARY>",
        pa.struct(
            [
                ("n", pa.int64()),
                ("d", pa.decimal128(38, 19)),
                ("t", pa.timestamp("us", "UTC")),
                ("s", pa.string()),
                ("b", pa.binary()),
            ]
        ),
        [
            {"n": 2**63 - 1, "d": Decimal("0.1000000000000000000"), "t": TIMES[-1].replace(tzinfo=UTC), "s": "\0", "b": b"\xff"},
            {"n": None, "d": None, "t": TIMES[0].replace(tzinfo=UTC), "s": "\U00020bb7", "b": b""},
            dict.fromkeys(("n", "d", "t", "s", "b")),
        ],
    ),
    (
        "map",
        "MAP<STRING, BIGINT>",
        pa.map_(pa.string(), pa.int64()),
        [{}, {"": 1, " ": None, "\U0010ffff": -(2**63), "a": 1, "A": 2}, {text: at for at, text in enumerate(TEXTS[:30])}],
    ),
    ("days", "MAP<DATE, DOUBLE>", pa.map_(pa.date32(), pa.float64()), [{date.min: -0.0, date.max: float("nan")}]),
]

#: Names of files: each is another file, and none may be taken for another.
FILES = [
    ".hidden",
    "_under",
    " both ends ",
    "-n",
    "--format=json",
    "%41",
    "A%2Fb",
    "a+b",
    "a#b",
    "a?b=c&d",
    "a\\b",
    "a\nb",
    "a\tb",
    "*",
    "[x]",
    "{a,b}",
    "~",
    "a:b",
    "a;b",
    "a=b",
    "it's",
    'a "b" `c`',
    "${env:HOME}",
    "$1",
    "NULL",
    "007",
    "day=2026-01-01/x",
    "ÅNGSTRÖM/x",
    unicodedata.normalize("NFC", "ä"),
    unicodedata.normalize("NFD", "ä"),
    "case",
    "CASE",
    "\u202etxt.exe",
    "\u2028",
    "\U0001f468\u200d\U0001f469",
    "\U00020bb7野",
    "\U0010fffe",
    "\uffff",
    "\x01",
    "x" * 255,
    "野" * 85,
    "/".join(["d" * 200] * 5),
]

#: Names of columns, fields, and tables that need quotes, or look like something else.
COLUMN_NAMES = [
    "select",
    "a.b",
    "a`b",
    "a'b",
    'a"b',
    "a\\b",
    "ü",
    "\U00020bb7",
    "\U0001f600",
    "1",
    "$x",
    "%s",
    "?",
    "-",
    "#",
    "a:b",
    "a/b",
]


def rows() -> list[dict[str, Any]]:
    """Returns rows with the values of all columns, a key ``k`` from 0 and, where a column has no more values, None.

    The last row is NULL in all columns.
    """
    longest = [*zip_longest(*(values for *_, values in COLUMNS)), [None] * len(COLUMNS)]
    names = [name for name, *_ in COLUMNS]
    return [{"k": at, **dict(zip(names, values, strict=True))} for at, values in enumerate(longest)]


def schema() -> pa.Schema:
    """Returns the columns of :func:`rows`, ``k`` first."""
    return pa.schema([("k", pa.int32()), *((name, kind) for name, _, kind, _ in COLUMNS)])


def ddl(*, key: bool = True) -> str:
    """Returns the columns of :func:`rows` in SQL."""
    own = ", ".join(f"`{name}` {kind}" for name, kind, *_ in COLUMNS)
    return f"k INT, {own}" if key else own


def table() -> pa.Table:
    """Returns :func:`rows` as Arrow has them."""
    return pa.Table.from_pylist([as_arrow(row) for row in rows()], schema=schema())


def as_arrow(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row with its maps as pairs, as PyArrow wants them."""
    maps = {name for name, _, kind, _ in COLUMNS if pa.types.is_map(kind)}
    return {name: [*value.items()] if name in maps and value is not None else value for name, value in row.items()}


def written(value: Any) -> str:
    """Returns a text of a value, in which all that differs differs; a map by its pairs, times in UTC."""
    match value:
        case Mapping():
            return f"{{{', '.join(sorted(f'{written(key)}: {written(one)}' for key, one in value.items()))}}}"
        case list():
            return f"[{', '.join(map(written, value))}]"
        case bytearray() | memoryview():
            return repr(bytes(value))
        case datetime() if value.tzinfo is not None:
            return f"at {(value.replace(tzinfo=None) - (value.utcoffset() or timedelta())).isoformat()}"
        case Decimal():
            return f"decimal {value.normalize(_EXACT) if value else 0:f}"
    return f"{type(value).__name__} {value!r}"


def in_json(value: Any) -> Any:
    """Returns a value as parsed JSON has it."""
    match value:
        case Mapping():
            return {key if isinstance(key, str) else key.isoformat(): in_json(one) for key, one in value.items()}
        case list():
            return [*map(in_json, value)]
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return str(value)
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def of_arrow(found: pa.Table) -> list[dict[str, Any]]:
    """Returns rows of Arrow by their key, with maps as dicts."""
    return sorted(found.to_pylist(maps_as_pydicts="strict"), key=lambda row: row["k"])


def differences(found: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]] | None = None) -> list[str]:
    """Returns what of the corpus is missing, or other than it was; empty if all came back."""
    said = []
    known = {row["k"]: row for row in found}
    for row in rows() if wanted is None else wanted:
        if row["k"] not in known:
            said.append(f"row {row['k']} is missing")
            continue
        for name, value in row.items():
            came = written(known[row["k"]].get(name))
            if came != written(value):
                said.append(f"{name} of row {row['k']}: {written(value):.120} came back as {came:.120}")
    if len(known) != len(found):
        said.append(f"{len(found)} rows of {len(known)} keys")
    return said

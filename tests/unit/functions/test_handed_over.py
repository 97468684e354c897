"""A row is what it was when the function handed it over, whatever the function fills anew for the next one."""

from __future__ import annotations

import array
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from volstream.functions.concurrency import awaited
from volstream.functions.output import FILE, OutputFile, OutputTarget, OutputWriter
from volstream.functions.returned import copy_rows, rows_of
from volstream.functions.rows import ArrowRows, Bounds, RowRequirements, row_of
from volstream.functions.schema import from_ddl
from volstream.functions.types import convert


@dataclass
class Pair:
    v: Any


class Reused:
    """A value that the function keeps and fills anew."""

    def __init__(
        self, make: Callable[[], Any], fill: Callable[[Any, int], object], kind: str, shown: Callable[[int], Any]
    ) -> None:
        self.make, self.fill, self.kind, self.shown = make, fill, kind, shown


def _first(kept: Any, number: int) -> None:
    kept[0] = number


KEPT = {
    "list": Reused(lambda: [0], _first, "ARRAY<BIGINT>", lambda n: [n]),
    "list of lists": Reused(lambda: [[0]], lambda kept, n: _first(kept[0], n), "ARRAY<ARRAY<BIGINT>>", lambda n: [[n]]),
    "tuple of lists": Reused(lambda: ([0],), lambda kept, n: _first(kept[0], n), "ARRAY<ARRAY<BIGINT>>", lambda n: [[n]]),
    "dict": Reused(dict, lambda kept, n: kept.update(k=n), "STRUCT<k: BIGINT>", lambda n: {"k": n}),
    "map": Reused(dict, lambda kept, n: kept.update(k=n), "MAP<STRING, BIGINT>", lambda n: [("k", n)]),
    "dataclass": Reused(lambda: Pair(0), lambda kept, n: setattr(kept, "v", n), "STRUCT<v: BIGINT>", lambda n: {"v": n}),
    "vector": Reused(lambda: np.zeros(1), _first, "ARRAY<DOUBLE>", lambda n: [float(n)]),
    "matrix": Reused(
        lambda: np.zeros((1, 1)), lambda kept, n: kept.__setitem__((0, 0), n), "ARRAY<ARRAY<DOUBLE>>", lambda n: [[float(n)]]
    ),
    "bytearray": Reused(lambda: bytearray(1), _first, "BINARY", lambda n: bytes([n])),
    "memoryview": Reused(lambda: memoryview(bytearray(1)), _first, "BINARY", lambda n: bytes([n])),
    "array": Reused(lambda: array.array("l", [0]), _first, "ARRAY<BIGINT>", lambda n: [n]),
    "list of a dict": Reused(
        lambda: [{"k": 0}], lambda kept, n: kept[0].update(k=n), "ARRAY<STRUCT<k: BIGINT>>", lambda n: [{"k": n}]
    ),
}


def stored(rows: Any, kind: str) -> list[Any]:
    columns = from_ddl(f"v {kind}")
    values: list[Any] = convert.array([row["v"] for row in rows], columns.field("v").type).to_pylist()
    return values


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("way", ["yields", "yields a dict", "returns", "coroutine", "asynchronous generator", "inferred"])
def test_what_is_filled_anew_does_not_change_what_was_handed_over(kept: Reused, way: str) -> None:
    value, row = kept.make(), dict[str, Any]()
    expected = RowRequirements(None if way == "inferred" else from_ddl(f"v {kept.kind}"), Bounds())

    def filled(number: int) -> dict[str, Any]:
        kept.fill(value, number)
        row["v"] = value
        return row

    async def waits(number: int) -> dict[str, Any]:
        return filled(number)

    async def later() -> Any:
        for number in range(3):
            yield filled(number)

    def taken(returned: Any) -> Any:
        return rows_of(returned, expected)[0]

    rows: list[Any] = []
    match way:
        case "yields" | "inferred":
            rows += taken({"v": filled(number)["v"]} for number in range(3))
        case "yields a dict":
            rows += taken(filled(number) for number in range(3))
        case "asynchronous generator":
            rows += taken(awaited(later(), copy_rows))
        case "coroutine":
            results = [awaited(waits(number), copy_rows) for number in range(3)]
            rows += [row for result in results for row in taken(result)]
        case "returns":
            for number in range(3):
                rows += taken(filled(number))
    assert stored(rows, kept.kind) == [kept.shown(number) for number in range(3)]


TABLES: dict[str, Callable[[np.ndarray], Any]] = {
    "frame": lambda kept: pd.DataFrame({"v": kept}, copy=False),
    "frame of a matrix": lambda kept: pd.DataFrame(kept.reshape(1, 1), columns=["v"], copy=False),
    "table": lambda kept: pa.table({"v": pa.array(kept)}),
    "batch": lambda kept: pa.RecordBatch.from_arrays([pa.array(kept)], ["v"]),
}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("columns", [None, "v BIGINT"])
def test_a_table_over_memory_of_the_function_is_copied(make: Callable[[np.ndarray], Any], columns: str | None) -> None:
    kept = np.zeros(1, "int64")
    expected = RowRequirements(None if columns is None else from_ddl(columns), Bounds())

    def tables() -> Iterator[Any]:
        for number in range(3):
            kept[0] = number
            yield make(kept)

    def returned(number: int) -> Any:
        kept[0] = number
        return make(kept)

    yielded, _ = rows_of(tables(), expected)
    assert isinstance(yielded, ArrowRows)
    assert yielded.to_pylist() == [{"v": number} for number in range(3)]
    each = [rows_of(returned(number), expected)[0] for number in range(3)]
    taken = [copy_rows(returned(number)) for number in range(3)]
    assert [rows.to_pylist() for rows in each if isinstance(rows, ArrowRows)] == [[{"v": number}] for number in range(3)]
    assert [rows_of(one, expected)[0].to_pylist() for one in taken] == [[{"v": number}] for number in range(3)]  # type: ignore[union-attr]


@pytest.mark.parametrize("form", ["bytearray", "memoryview", "file", "stream"])
def test_an_output_is_written_before_the_function_goes_on(tmp_path: Path, form: str) -> None:
    written: list[bytes] = []

    class Store:
        def put(self, path: str, content: io.BufferedIOBase, kind: str) -> tuple[int, str]:
            written.append(content.read())
            return len(written[-1]), "e"

    target = OutputTarget("v", store=Store(), folder="f")  # type: ignore[arg-type]
    outputs = OutputWriter(pa.schema([("o", FILE)]), target).begin()
    buffer, place, stream = bytearray(1), tmp_path / "frame", io.BytesIO()

    def frames() -> Iterator[dict[str, Any]]:
        for number in range(3):
            buffer[0] = 48 + number
            place.write_bytes(bytes(buffer))
            stream.seek(0)
            stream.write(bytes(buffer))
            stream.seek(0)
            forms = {"bytearray": buffer, "memoryview": memoryview(buffer), "file": str(place), "stream": stream}
            yield {"o": OutputFile(f"{number}.txt", data=forms[form])}  # type: ignore[arg-type]

    rows, _ = rows_of(frames(), RowRequirements(pa.schema([("o", FILE)]), Bounds()), outputs.stored)
    assert written == [b"0", b"1", b"2"]
    assert [row["o"]["relative_path"] for row in rows] == ["0.txt", "1.txt", "2.txt"]  # type: ignore[union-attr]


def test_an_output_that_is_filled_anew_is_another_output() -> None:
    outputs = OutputWriter(pa.schema([("o", FILE)]), OutputTarget()).begin()
    file = OutputFile("0.txt", data=b"")

    def files() -> Iterator[dict[str, Any]]:
        for number in range(3):
            file.relative_path, file.data = f"{number}.txt", b"x" * number
            yield {"o": file}
            yield {"o": file}

    rows, _ = rows_of(files(), RowRequirements(pa.schema([("o", FILE)]), Bounds()), outputs.stored)
    stored = [(row["o"]["relative_path"], row["o"]["size"]) for row in rows]  # type: ignore[union-attr]
    assert stored == [("0.txt", 0), ("0.txt", 0), ("1.txt", 1), ("1.txt", 1), ("2.txt", 2), ("2.txt", 2)]


def test_a_row_of_plain_values_is_a_row_of_its_own() -> None:
    kept = {"v": 1}
    row = row_of(kept)
    kept["v"] = 2
    assert row == {"v": 1}

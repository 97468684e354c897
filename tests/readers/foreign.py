"""Reads or writes a Delta table as another program would. Runs without volstream: it imports nothing of it.

``python foreign.py read deltalake|query|pandas|polars LOCATION`` prints a row per line, as JSON of texts that are the same for all.
``python foreign.py append deltalake|polars LOCATION FILE`` appends the rows of a Parquet file; ``delete deltalake LOCATION WHERE``
deletes rows.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any


def text(value: Any) -> Any:
    """Returns a value as JSON that tells all values apart, however a library represents them."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return "nan" if value != value else struct.pack(">d", value).hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC)
        return moment.strftime("%Y-%m-%dT%H:%M:%S.%f").rjust(26, "0")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {key: text(one) for key, one in value.items()}
    if isinstance(value, Iterable):
        found = [text(list(one) if isinstance(one, tuple) else one) for one in value]
        entries = [list(one.values()) if isinstance(one, dict) and set(one) == {"key", "value"} else one for one in found]
        return sorted(entries, key=str) if entries != found or all(isinstance(one, list) for one in found) else entries
    raise TypeError(f"{type(value)}: {value!r}")


def lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns rows as sorted lines."""
    return sorted(json.dumps({name: text(_entries(name, row[name])) for name in sorted(row)}) for row in rows)


def _entries(name: str, value: Any) -> Any:
    """Returns the entries of a map: polars represents the column ``m`` as a dictionary."""
    return [list(item) for item in value.items()] if name == "m" and isinstance(value, Mapping) else value


def read(library: str, location: str) -> list[dict[str, Any]]:
    """Returns the rows of a table."""
    if library == "polars":
        import polars

        return list(polars.scan_delta(location).collect().to_dicts())
    import deltalake
    import pyarrow

    table = deltalake.DeltaTable(location)
    if library == "query":
        found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t")
        whole = pyarrow.Table.from_batches(found.fetchall()) if hasattr(found, "fetchall") else found.read_all()
        return list(pyarrow.table(whole).to_pylist())
    rows = table.to_pyarrow_table()
    if library == "pandas":
        import pandas

        rows = pyarrow.Table.from_pandas(rows.to_pandas(types_mapper=pandas.ArrowDtype), preserve_index=False)
    return list(rows.to_pylist())


def append(library: str, location: str, file: str) -> None:
    """Appends rows."""
    if library == "polars":
        import polars

        polars.read_parquet(file).write_delta(location, mode="append")
        return
    import deltalake
    import pyarrow.parquet

    deltalake.write_deltalake(location, pyarrow.parquet.read_table(file), mode="append")


def main(command: str, library: str, location: str, *more: str) -> None:
    if command == "read":
        sys.stdout.write("\n".join(lines(read(library, location))))
    elif command == "append":
        append(library, location, *more)
    else:
        import deltalake

        deltalake.DeltaTable(location).delete(more[0])


if __name__ == "__main__":
    main(*sys.argv[1:])
    # deltalake's threads may abort the process while its libraries end: "terminate called without an active exception".
    sys.stdout.flush()
    os._exit(0)

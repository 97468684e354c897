"""The rows of an inventory report's files. Runs in a process of its own with little memory: whoever may write a report could give
it a few bytes that stand for gigabytes.

``python -m volstream.files.storage.report_rows FORMAT PATH [COLUMN ...]`` writes them to standard output as Arrow, and what is
wrong with the file to standard error.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv, orc

from volstream.errors import InvalidValueError

#: Rows of a file in memory, and bytes of CSV parsed at once.
_BATCH_ROWS, _BLOCK_BYTES = 10_000, 4 << 20

#: Memory besides what the process has at its start: some stripes of ORC have a quarter of this.
_MEMORY_BYTES = 1 << 30

#: Bytes of a key or an etag; providers allow a quarter of it.
_MAX_TEXT = 4096

_TIME = pa.timestamp("us", tz="UTC")

#: The columns read, with their types. Parquet and ORC spell them ``last_modified_date``, CSV ``LastModifiedDate``.
_TYPES: Mapping[str, pa.DataType] = {
    "key": pa.string(),
    "size": pa.int64(),
    "lastmodifieddate": _TIME,
    "etag": pa.string(),
    "islatest": pa.bool_(),
    "isdeletemarker": pa.bool_(),
}

#: Columns without which a report does not say which version of a file there is, by the providers' names.
_FIELDS = {"key": "Key", "size": "Size", "lastmodifieddate": "LastModifiedDate", "etag": "ETag"}

#: Exit codes: a field is missing; the file is not what it should be.
INCOMPLETE, BROKEN = 3, 4


def main(file_format: str, path: str, *columns: str) -> int:
    """Writes the rows of a file."""
    used, hard = _data_bytes(), resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = used + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    writer: pa.RecordBatchStreamWriter | None = None
    try:
        for rows in READERS[file_format](path, columns):
            if writer is None:
                writer = pa.ipc.new_stream(sys.stdout.buffer, rows.schema)
            for part in (rows.slice(at, _BATCH_ROWS) for at in range(0, max(1, rows.num_rows), _BATCH_ROWS)):
                _check_texts(part)
                writer.write_table(part)
    except InvalidValueError as error:
        sys.stderr.write(f"{error.message}\n{error.remedy}")
        return INCOMPLETE
    except MemoryError:
        sys.stderr.write("it expands to more than a report needs")
        return BROKEN
    except (pa.ArrowException, OSError) as error:
        sys.stderr.write(str(error))
        return BROKEN
    if writer is not None:
        writer.close()
    return 0


def _data_bytes() -> int:
    """Returns the bytes that the kernel counts against RLIMIT_DATA."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def _check_texts(rows: pa.Table) -> None:
    for name in ("key", "etag"):
        if (pc.max(pc.binary_length(rows[name])).as_py() or 0) > _MAX_TEXT:
            raise pa.ArrowInvalid(f"a value of {name} has more than {_MAX_TEXT} bytes")


def _csv(path: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    wanted = _wanted(columns)
    time = wanted["lastmodifieddate"]
    read = csv.ReadOptions(column_names=list(columns), block_size=_BLOCK_BYTES)
    convert = csv.ConvertOptions(
        include_columns=list(wanted.values()),
        column_types={column: _TYPES[field] for field, column in wanted.items()} | {time: pa.string()},
        null_values=["", "null"],
        strings_can_be_null=False,  # a key may be `null`
    )
    with pa.OSFile(path) as file, pa.CompressedInputStream(file, "gzip") as text:
        try:
            reader = csv.open_csv(text, read, csv.ParseOptions(), convert)
        except pa.ArrowInvalid as exc:
            if "Empty CSV" in str(exc):  # a part of the scan without objects
                return
            raise
        for batch in reader:
            rows = pa.Table.from_batches([batch])
            at = rows.column_names.index(time)
            yield _named(rows.set_column(at, time, _times(rows[time])), wanted)


def _times(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Parses times in UTC such as ``2026-01-31T12:00:00.000Z``, whatever is between the numbers; empty: NULL."""
    said = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), pc.utf8_slice_codeunits(texts, 0, 19))
    return pc.replace_substring_regex(said, r"^(.{10}).(..).(..).(..)$", r"\1 \2:\3:\4").cast(pa.timestamp("us"))


def _parquet(path: str, _: Sequence[str]) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        wanted = _wanted(file.schema_arrow.names)
        for batch in file.iter_batches(_BATCH_ROWS, columns=list(wanted.values())):
            yield _named(pa.Table.from_batches([batch]), wanted)


def _orc(path: str, _: Sequence[str]) -> Iterator[pa.Table]:
    file = orc.ORCFile(path)
    wanted = _wanted(file.schema.names)
    for stripe in range(file.nstripes):
        rows = pa.Table.from_batches([file.read_stripe(stripe, columns=list(wanted.values()))])
        for start in range(0, rows.num_rows, _BATCH_ROWS):
            yield _named(rows.slice(start, _BATCH_ROWS), wanted)


#: By the format that a manifest names.
READERS = {"CSV": _csv, "Parquet": _parquet, "ORC": _orc}


def _wanted(columns: Sequence[str]) -> Mapping[str, str]:
    """Returns the columns to read, by the keys of :data:`_TYPES`. Raises InvalidValueError if one of those needed is missing."""
    there = {column.replace("_", "").lower(): column for column in columns}
    missing = [name for field, name in _FIELDS.items() if field not in there]
    if missing:
        raise InvalidValueError(
            f"The report does not state {' and '.join(missing)} of the objects.",
            f"Add {' and '.join(missing)} to the optional fields of the inventory, and use a report written after that.",
        )
    return {field: there[field] for field in _TYPES if field in there}


def _named(rows: pa.Table, wanted: Mapping[str, str]) -> pa.Table:
    """Returns rows with the names and types of :data:`_TYPES`; times without a zone are UTC."""
    columns = {field: rows[column].cast(_TYPES[field], safe=False) for field, column in wanted.items()}
    return pa.table(columns)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

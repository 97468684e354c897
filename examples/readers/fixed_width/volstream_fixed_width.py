"""Rows of a text file whose lines have fields of fixed width."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import BinaryIO

import pyarrow as pa

#: Rows of a batch.
_ROWS = 10_000


def read(content: BinaryIO, options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yields the lines after the first ``skip`` ones, cut into ``fields``: names with widths in characters, ``id:5,:2,name:20``.

    A field without a name is left out; an empty one is NULL.

    Raises:
        ValueError: ``fields`` is missing or wrong, or a line is longer.
    """
    if unknown := options.keys() - {"fields", "skip", "encoding"}:
        raise ValueError(f"there is no option {min(unknown)!r}; give fields, skip or encoding")
    fields, at = [], 0
    for field in options.get("fields", "").split(","):
        name, colon, width = field.strip().rpartition(":")
        if not colon or not width.isdecimal():
            raise ValueError("the option fields needs names and widths, such as id:5,name:20")
        fields.append((name, at, at + int(width)))
        at += int(width)
    skip = int(options.get("skip", "0"))
    lines = enumerate(io.TextIOWrapper(content, options.get("encoding", "utf-8-sig")), start=1)
    rows = ((number, line.rstrip("\r\n")) for number, line in islice(lines, skip, None))
    while some := list(islice(rows, _ROWS)):
        long = next((number for number, line in some if line[at:].strip()), None)
        if long is not None:
            raise ValueError(f"line {long} goes on after its last field")
        filled = [line for _, line in some if line.strip()]
        named = {name: [line[begin:end].strip() or None for line in filled] for name, begin, end in fields if name}
        yield pa.RecordBatch.from_pydict(named, pa.schema([(name, pa.string()) for name in named]))

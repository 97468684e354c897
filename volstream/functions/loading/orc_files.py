"""Rows of ORC files, with the types that they have there."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.orc

from volstream.functions.loading.columns import ArrowColumn, Chunk
from volstream.functions.loading.content import Part, reading_as
from volstream.functions.loading.parquet_files import WIDTH, check_columns

#: Rows that are passed on at a time.
_ROWS = 10_000


def chunks(source: Part) -> Iterator[Chunk]:
    """Yields the rows of an ORC file, stripe by stripe; first a chunk without rows, which shows the columns.

    Raises:
        FileRejectedError: it is not such a file, or expands too far.
    """
    with reading_as("orc"):
        opened = pyarrow.orc.ORCFile(source.seekable())
        check_columns(len(opened.schema))
        # At least: the footer says no more.
        source.expansion.check(opened.nrows * len(opened.schema) * WIDTH)
        if not opened.nrows:
            return
        yield Chunk(0, [ArrowColumn(field.name, pa.array([], field.type)) for field in opened.schema])
        decoded = 0
        for number in range(opened.nstripes):
            stripe = opened.read_stripe(number)
            decoded += stripe.nbytes
            source.expansion.check(decoded)
            for part in (stripe.slice(at, _ROWS) for at in range(0, stripe.num_rows, _ROWS)):
                yield Chunk(part.num_rows, [ArrowColumn(*pair) for pair in zip(part.schema.names, part.columns, strict=True)])

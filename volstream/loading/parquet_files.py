"""Rows of parquet files, with the types that they have there."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from volstream.functions.file import File
from volstream.functions.rejection import FileRejectedError
from volstream.loading.columns import ArrowColumn, Chunk

#: Rows in memory at a time.
_ROWS = 10_000


def chunks(file: File) -> Iterator[Chunk]:
    """Yields the rows of a parquet file. Raises FileRejectedError: it is not such a file."""
    try:
        opened = pq.ParquetFile(file.open(), coerce_int96_timestamp_unit="us")
        for batch in opened.iter_batches(_ROWS, use_threads=False):
            columns = [ArrowColumn(*one) for one in zip(batch.schema.names, batch.columns, strict=True)]
            yield Chunk(batch.num_rows, columns)
    except pa.ArrowInvalid as error:
        raise FileRejectedError(f"The file cannot be read as parquet: {error}.") from None
    except OSError as error:
        if error.errno is not None:
            raise
        raise FileRejectedError(f"The file cannot be read as parquet: {error}.") from None

"""The content of a file to be loaded: decompressed, and decoded block by block."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from volstream.functions.file import File
from volstream.functions.rejection import FileRejectedError

#: Size of a row of a csv file, of a record of a json file, and of a block that is read at once.
MAX_RECORD_BYTES = 16 << 20

_BLOCK_BYTES = 1 << 20


def opened(file: File, compression: str | None) -> Any:
    """Returns the decompressed content as a binary file. Seekable if it is not compressed."""
    content = file.open()
    return content if compression is None else pa.CompressedInputStream(content, compression)


def texts(file: File, compression: str | None, encoding: str) -> Iterator[str]:
    """Yields the content as text, without a byte order mark.

    Raises:
        FileRejectedError: it is not in the encoding.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)()
    content, position = opened(file, compression), 0
    while True:
        block = content.read(_BLOCK_BYTES)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise not_encoded(encoding, f"near byte {position + error.start}") from None
        if text:
            yield text
        if not block:
            return
        position += len(block)


def not_encoded(encoding: str, where: str) -> FileRejectedError:
    """Returns the rejection of a file that is not in its encoding."""
    return FileRejectedError(
        f"The file is not {encoding} text ({where}). If it has another encoding, name it: encoding=latin-1, for example."
    )


@contextmanager
def decompressing(compression: str | None) -> Iterator[None]:
    """Turns errors of decompression in the block, which have no error number, into rejections of the file."""
    try:
        yield
    except OSError as error:
        if compression is None or error.errno is not None:
            raise
        raise FileRejectedError(f"The file cannot be decompressed ({compression}): {error}.") from None

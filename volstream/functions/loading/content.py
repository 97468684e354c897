"""The content of a file to be loaded: decompressed, and decoded block by block."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from volstream.base.model.units import format_size
from volstream.functions.file import File
from volstream.functions.rejection import FileRejectedError

#: Size of a row of a csv file, of a record of a json file, and of a block that is read at once.
MAX_RECORD_BYTES = 16 << 20

_BLOCK_BYTES = 1 << 20

#: A file that expands to more bytes than the first, and to more than its size times the second, is rejected.
_MAX_EXPANDED, _MAX_FACTOR = 256 << 20, 1000


def opened(file: File, compression: str | None) -> Any:
    """Returns the decompressed content as a binary file, which ends with a rejection if the file expands too far.

    Seekable if it is not compressed.
    """
    content = file.open()
    if compression is None:
        return content
    if compression == "gzip":  # zeros after the last member are no error, as they are for Arrow
        return _Expanding(gzip.GzipFile(fileobj=content), file.size)
    return _Expanding(pa.CompressedInputStream(content, compression), file.size)


#: How files begin that are no text, whatever their encoding.
_MAGIC = {
    b"\x1f\x8b": "compressed (gzip)",
    b"\x28\xb5\x2f\xfd": "compressed (zstd)",
    b"BZh9": "compressed (bzip2)",
    b"PK\x03\x04": "a zip file, such as one of Excel",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
}


def max_expanded_size(size: int) -> int:
    """Returns to how many bytes a file of ``size`` may expand."""
    return max(_MAX_EXPANDED, size * _MAX_FACTOR)


def check_expanded(size: int, expanded: int) -> None:
    """Raises FileRejectedError if a file of ``size`` expands too far."""
    if expanded > max_expanded_size(size):
        raise FileRejectedError(
            f"The file has {format_size(size)} and expands to {format_size(expanded)} or more. "
            f"The limit is {format_size(_MAX_EXPANDED)}, or {_MAX_FACTOR} times its size."
        )


class _Expanding(io.BufferedIOBase):
    """Decompressed content, of which no more is read than a file of ``size`` may expand to."""

    def __init__(self, content: Any, size: int) -> None:
        self._content = content
        self._size = size
        self._expanded = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        block: bytes = self._content.read(size)
        self._expanded += len(block)
        check_expanded(self._size, self._expanded)
        return block


def texts(file: File, compression: str | None, encoding: str) -> Iterator[str]:
    """Yields the content as text, without a byte order mark.

    Raises:
        FileRejectedError: it is not in the encoding.
    """
    decoder = codecs.getincrementaldecoder(encoding)()
    content, position, begun = opened(file, compression), 0, False
    while True:
        block = content.read(_BLOCK_BYTES)
        if not position and (kind := next((kind for magic, kind in _MAGIC.items() if block.startswith(magic)), None)):
            raise FileRejectedError(f"The file is not text but {kind}, although its name says otherwise.")
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise not_encoded(encoding, f"near byte {position + error.start}") from None
        if text:
            yield text if begun else text.removeprefix("\ufeff")
            begun = True
        if not block:
            return
        position += len(block)


def not_encoded(encoding: str, where: str) -> FileRejectedError:
    """Returns the rejection of a file that is not in its encoding."""
    return FileRejectedError(
        f"The file is not {encoding} text ({where}). If it has another encoding, name it: encoding=latin-1, for example."
    )


@contextmanager
def reading_as(format_: str) -> Iterator[None]:
    """Turns PyArrow's errors in the block into rejections of the file. Errors of the system have a number, and stay."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise FileRejectedError(f"The file cannot be read as {format_}: {error}.") from None


@contextmanager
def decompressing(compression: str | None) -> Iterator[None]:
    """Turns errors of decompression in the block, which have no error number, into rejections of the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        if compression is None or getattr(error, "errno", None) is not None:
            raise
        raise FileRejectedError(f"The file cannot be decompressed ({compression}): {error}.") from None

"""Records of Avro files, which contain their schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

import fastavro

from volstream.errors import InvalidValueError


def records(file: IO[bytes], what: str) -> Iterator[Any]:
    """Yields the records of a file.

    Args:
        what: what it is called in the error.

    Raises:
        InvalidValueError: it is not an Avro file.
    """
    try:
        yield from fastavro.reader(file)
    except Exception as error:  # noqa: BLE001  # it raises whatever its codecs and parsers raise
        raise InvalidValueError(
            f"The {what} is not an Avro file: {type(error).__name__}: {error}.",
            "It contains its schema, as Avro's DataFileWriter writes it.",
        ) from None

"""Previews of a volume's files: a picture, a PDF, or the beginning of a text. Recognized by content, limited
in size."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import BinaryIO

from volstream.base.model.names import Name
from volstream.base.model.paths import media_type, printable
from volstream.base.model.units import format_size
from volstream.changes.streams.sources import VolumeSource
from volstream.errors import InvalidValueError, NotFoundError, VolstreamError
from volstream.files.volumes.access import store_of
from volstream.home import Home

#: Maximum size of a previewed file, and number of bytes shown of a text.
_MAX_BYTES, _BEGINNING = 16 << 20, 4 << 10

#: Control characters that are valid in texts.
_IN_TEXTS = frozenset("\t\n\r\f")

PDF = "application/pdf"


def content(home: Home, volume: str, path: str) -> tuple[str, bytes]:
    """Returns the media type and the content of a picture or a PDF.

    Raises:
        NotFoundError: it is not in the volume's directory, or no longer in the store.
        InvalidValueError: it is neither, or too large.
    """
    size, file = _open(home, volume, path)
    with file:
        if size > _MAX_BYTES:
            raise InvalidValueError(f"The file is larger than {format_size(_MAX_BYTES)}.")
        data = file.read(_MAX_BYTES + 1)
    kind = _kind(data)
    if kind is None or len(data) > _MAX_BYTES:
        raise InvalidValueError(f"The file {printable(path)} is not a picture that can be shown, nor a PDF.")
    return kind, data


@dataclass(frozen=True)
class FilePreview:
    """The preview of a file: ``content`` of this kind, or the beginning of a ``text``, or nothing."""

    content: str | None = None
    text: str | None = None


def preview(home: Home, volume: str, path: str) -> FilePreview:
    """Returns the preview of a file, which is empty if the file cannot be read now."""
    try:
        size, file = _open(home, volume, path)
        with file:
            data = file.read(_BEGINNING)
    except (VolstreamError, OSError):
        return FilePreview()
    kind = _kind(data)
    return (
        FilePreview(kind) if kind is not None and size <= _MAX_BYTES else FilePreview(text=_text(data, whole=size <= len(data)))
    )


def _kind(data: bytes) -> str | None:
    return PDF if data.startswith(b"%PDF-") else media_type(data)


def _text(data: bytes, *, whole: bool) -> str | None:
    """Returns UTF-8 text, whose last character may be cut, or None if it is not text."""
    try:
        text, _ = codecs.utf_8_decode(data, "strict", whole)
    except UnicodeDecodeError:
        return None
    if not text or any(char < " " and char not in _IN_TEXTS for char in text):
        return None
    return text if whole else f"{text} ..."


def _open(home: Home, volume: str, path: str) -> tuple[int, BinaryIO]:
    definition = home.catalog.volumes.get(Name.parse(volume))
    directory = VolumeSource(home.catalog, home.warehouse, definition.id).find()
    rows = [] if directory is None else directory.find([path]).to_pylist()
    if not rows:
        raise NotFoundError(f"There is no file {printable(path)} in volume {definition.name}.")
    try:
        return rows[0]["size"], store_of(definition, home.catalog, home.settings).open(path)
    except FileNotFoundError:
        raise NotFoundError(f"The file {printable(path)} no longer exists in the store.") from None

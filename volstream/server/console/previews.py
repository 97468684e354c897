"""What pages show of a file of a volume: a picture, a PDF, or how a text begins. Recognised by content, of a limited size."""

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

#: A larger file is not shown; and bytes that are shown of a text.
_MAX_BYTES, _BEGINNING = 16 << 20, 4 << 10

#: Characters of texts below the space.
_IN_TEXTS = frozenset("\t\n\r\f")

PDF = "application/pdf"


def content(home: Home, volume: str, path: str) -> tuple[str, bytes]:
    """Returns the media type and the content of a picture or a PDF.

    Raises:
        NotFoundError: it is not in the volume's directory, or gone from the store.
        InvalidValueError: it is neither, or too large.
    """
    size, file = _opened(home, volume, path)
    with file:
        if size > _MAX_BYTES:
            raise InvalidValueError(f"The file is larger than {format_size(_MAX_BYTES)}.")
        found = file.read(_MAX_BYTES + 1)
    kind = _kind(found)
    if kind is None or len(found) > _MAX_BYTES:
        raise InvalidValueError(f"The file {printable(path)} is not a picture that can be shown, nor a PDF.")
    return kind, found


@dataclass(frozen=True)
class FilePreview:
    """What can be shown of a file: ``content`` of this kind, or how a ``text`` begins; or nothing."""

    content: str | None = None
    text: str | None = None


def preview(home: Home, volume: str, path: str) -> FilePreview:
    """Returns what can be shown of a file: nothing if it cannot be read now, either."""
    try:
        size, file = _opened(home, volume, path)
        with file:
            found = file.read(_BEGINNING)
    except (VolstreamError, OSError):
        return FilePreview()
    kind = _kind(found)
    return (
        FilePreview(kind) if kind is not None and size <= _MAX_BYTES else FilePreview(text=_text(found, whole=size <= len(found)))
    )


def _kind(found: bytes) -> str | None:
    return PDF if found.startswith(b"%PDF-") else media_type(found)


def _text(found: bytes, *, whole: bool) -> str | None:
    """Returns text in UTF-8, of which the last character may be cut; None: it is none."""
    try:
        text, _ = codecs.utf_8_decode(found, "strict", whole)
    except UnicodeDecodeError:
        return None
    if not text or any(char < " " and char not in _IN_TEXTS for char in text):
        return None
    return text if whole else f"{text} ..."


def _opened(home: Home, volume: str, path: str) -> tuple[int, BinaryIO]:
    definition = home.catalog.volumes.get(Name.parse(volume))
    directory = VolumeSource(home.catalog, home.warehouse, definition.id).find()
    rows = [] if directory is None else directory.find([path]).to_pylist()
    if not rows:
        raise NotFoundError(f"There is no file {printable(path)} in volume {definition.name}.")
    try:
        return rows[0]["size"], store_of(definition, home.catalog, home.settings).open(path)
    except FileNotFoundError:
        raise NotFoundError(f"The file {printable(path)} no longer exists in the store.") from None

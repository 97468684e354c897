"""Recognizes pictures that browsers show by their first bytes: in files, and in values of tables."""

from __future__ import annotations

#: Not SVG, which can contain scripts.
_BEGIN = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF87a": "image/gif", b"GIF89a": "image/gif"}

#: Names of files that are likely pictures.
_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif")


def media_type(content: bytes) -> str | None:
    """Returns the type of a picture by its first bytes; None if it is not a picture that browsers show."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return next((kind for begin, kind in _BEGIN.items() if content.startswith(begin)), None)


def may_be_picture(path: str) -> bool:
    """True if a file's name is that of a picture."""
    return path.lower().endswith(_SUFFIXES)

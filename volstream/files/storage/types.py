"""Content types by file name."""

from __future__ import annotations

import mimetypes
from functools import lru_cache

#: A separate instance: the module-level functions also read the machine's mime.types, so hosts would disagree.
_TYPES = mimetypes.MimeTypes()


def content_type(path: str) -> str | None:
    """Returns the type of the bytes at ``path``; for a compressed file, that of the compression."""
    # Like os.path.splitext, which is three times slower: leading dots do not begin an extension.
    _, dot, extension = path[path.rfind("/") + 1 :].lstrip(".").rpartition(".")
    return _of_extension(extension) if dot else None


@lru_cache(maxsize=4096)
def _of_extension(extension: str) -> str | None:
    content_type, encoding = _TYPES.guess_type("name." + extension)
    if encoding is None:
        return content_type
    return "application/gzip" if encoding == "gzip" else f"application/x-{encoding}"

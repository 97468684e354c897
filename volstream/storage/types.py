"""The content type of a file by its name."""

from __future__ import annotations

import mimetypes
import os
from functools import lru_cache

#: An instance of its own: the module's functions also read the machine's mime.types, and hosts would disagree.
_TYPES = mimetypes.MimeTypes()


def content_type(path: str) -> str | None:
    """The type of the bytes at ``path``: of a compressed file that of the compression, whatever is inside."""
    return _of_extension(os.path.splitext(path)[1])


@lru_cache(maxsize=4096)
def _of_extension(extension: str) -> str | None:
    found, encoding = _TYPES.guess_type("name" + extension)
    if encoding is None:
        return found
    return "application/gzip" if encoding == "gzip" else f"application/x-{encoding}"

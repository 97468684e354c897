"""The content type of a file by its name."""

from __future__ import annotations

import mimetypes
import os
from functools import lru_cache

#: An instance of its own: the module's functions also read the machine's mime.types, and hosts would disagree.
_TYPES = mimetypes.MimeTypes()


def content_type(path: str) -> str | None:
    """The type of the bytes at ``path``: of a compressed file that of the compression, whatever is inside."""
    name = path[path.rfind("/") + 1 :]
    if name.startswith("."):  # dots that a name begins with begin no extension
        return _of_extension(os.path.splitext(name)[1])
    dot = name.rfind(".")
    return None if dot < 0 else _of_extension(name[dot:])


@lru_cache(maxsize=4096)
def _of_extension(extension: str) -> str | None:
    found, encoding = _TYPES.guess_type("name" + extension)
    if encoding is None:
        return found
    return "application/gzip" if encoding == "gzip" else f"application/x-{encoding}"

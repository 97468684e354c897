"""volstream: run a Python function on every new or changed file of a bucket or directory, exactly once.

Names are imported when they are first used: ``import volstream`` in a per-file function costs an executor nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from volstream.api.dbapi import connect
    from volstream.api.session import Session, run
    from volstream.errors import VolstreamError
    from volstream.functions.file import File, FileSet
    from volstream.functions.output import OutputFile
    from volstream.functions.signature import function
    from volstream.functions.steps import step

__all__ = ["File", "FileSet", "OutputFile", "RetryLater", "Session", "VolstreamError", "connect", "function", "run", "step"]

_HOMES = {
    "File": "volstream.functions.file",
    "FileSet": "volstream.functions.file",
    "OutputFile": "volstream.functions.output",
    "RetryLater": "volstream.functions.rejection",
    "Session": "volstream.api.session",
    "VolstreamError": "volstream.errors",
    "connect": "volstream.api.dbapi",
    "function": "volstream.functions.signature",
    "run": "volstream.api.session",
    "step": "volstream.functions.steps",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    from volstream.base.model.text import like

    hint = "" if name.startswith("_") else like(name, __all__)
    raise AttributeError(f"module 'volstream' has no attribute {name!r}. {hint}".rstrip())


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})

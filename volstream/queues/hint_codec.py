"""Hints as JSON: the bodies of messages that volstream makes itself (local, poll, memory).

The providers' formats have parsers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from volstream.model.hints import Hint, KeyHint, Rejection, SubtreeHint

#: Of a body that cannot be read, this much is kept.
_SUBJECT_CHARACTERS = 4096


def encode(hint: Hint) -> bytes:
    """The body that :func:`parse` reads back. File names that are not UTF-8 survive as JSON escapes."""
    if isinstance(hint, KeyHint):
        return json.dumps({"key": hint.path}).encode("ascii")
    return json.dumps({"subtree": hint.prefix, "reason": hint.reason}).encode("ascii")


def parse(body: bytes) -> Sequence[Hint] | Rejection:
    """See :class:`~volstream.queues.base.Parser`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return _reject(body, "The message is not JSON.")
    match document:
        case {"key": str(path)} if path and _is_name(path):
            return (KeyHint(path),)
        case {"subtree": str(prefix), "reason": str(reason)} if _is_name(prefix) and prefix[-1:] in {"", "/"}:
            return (SubtreeHint(prefix, reason),)
        case _:
            return _reject(body, f"The message is JSON, but not a hint: {_shape(document)}.")


def _is_name(path: str) -> bool:
    """Whether ``path`` could be a name at all: JSON can spell surrogates that stand for no byte."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _reject(body: bytes, reason: str) -> Rejection:
    return Rejection(body.decode("utf-8", "backslashreplace")[:_SUBJECT_CHARACTERS], reason)


def _shape(document: Any) -> str:
    if isinstance(document, dict):
        keys = ", ".join(repr(key)[:40] for key in sorted(document)[:5])
        return f"an object with the keys {keys}" if keys else "an empty object"
    return f"a value of the type {type(document).__name__}"

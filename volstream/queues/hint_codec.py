"""Hints as JSON: the bodies of messages that volstream makes itself (local, poll, memory).

The providers' formats have parsers of their own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from volstream.model.hints import Hint, KeyHint, Rejection, SubtreeHint
from volstream.queues.bodies import NOT_JSON, read_json, reject, shape


def encode(hint: Hint) -> bytes:
    """The body that :func:`parse` reads back. File names that are not UTF-8 survive as JSON escapes."""
    if isinstance(hint, KeyHint):
        return json.dumps({"key": hint.path}).encode("ascii")
    return json.dumps({"subtree": hint.prefix, "reason": hint.reason}).encode("ascii")


def parse(body: bytes) -> Sequence[Hint] | Rejection:
    """See :class:`~volstream.queues.base.Parser`."""
    document = read_json(body)
    match document:
        case {"key": str(path)} if path and _is_name(path):
            return (KeyHint(path),)
        case {"subtree": str(prefix), "reason": str(reason)} if _is_name(prefix) and prefix[-1:] in {"", "/"}:
            return (SubtreeHint(prefix, reason),)
    if document is NOT_JSON:
        return reject(body, "The message is not JSON.")
    return reject(body, f"The message is JSON, but not a hint: {shape(document)}.")


def _is_name(path: str) -> bool:
    """Whether ``path`` could be a file's name at all: those that are not UTF-8 have surrogates, but not any."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True

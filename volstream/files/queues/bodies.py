"""Functions shared by the message parsers: reading JSON without exceptions, checking keys, storable
rejections.

The providers' formats are in ``events`` of their folders. Pure.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

from volstream.base.model.hints import Hint, KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.files.providers.base import own

#: Maximum length of an unreadable body in its rejection.
_SUBJECT_CHARACTERS = 4096

#: Result of :func:`read_json` for text that is not JSON; distinct from every JSON value.
NOT_JSON = object()


def read_json(text: str | bytes) -> Any:
    """Returns the JSON value in ``text``, or :data:`NOT_JSON`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # numbers with thousands of digits also raise ValueError
        return NOT_JSON


def read_json_or_base64(body: bytes) -> Any:
    """Returns the JSON value in ``body``, also in base64, or :data:`NOT_JSON`. Base64 of an object is never
    valid JSON."""
    document = read_json(body)
    if document is not NOT_JSON:
        return document
    try:
        return read_json(base64.b64decode(b"".join(body.split()), validate=True))
    except ValueError:
        return NOT_JSON


def is_key(value: object) -> bool:
    """True if ``value`` can be a bucket's key. JSON may contain lone surrogates, which are not characters."""
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def decoded(key: str) -> str:
    """Decodes a key that may be percent-encoded. Returns it unchanged if its escapes are not UTF-8."""
    try:
        return unquote(key, errors="strict")
    except UnicodeDecodeError:
        return key


def reject(body: bytes, reason: str) -> Rejection:
    """Returns the rejection of a whole body, truncated and printable."""
    return Rejection(body.decode("utf-8", "backslashreplace")[:_SUBJECT_CHARACTERS], reason)


def hints_in(events: Iterable[Sequence[ObjectHint] | None], missing: str) -> Sequence[ObjectHint] | Rejection:
    """Returns the hints of a message's events.

    An unreadable event (None) rejects the message: otherwise it would be lost silently. Keys that end in
    ``/`` are directories and give no hint, unless the hint covers everything below them.

    Args:
        missing: the reason for the rejection.
    """
    found = [*events]
    if None in found:
        return Rejection("", missing)
    return tuple(hint for hints in found for hint in hints or () if hint.below or not hint.key.endswith("/"))


def answer(
    body: bytes, document: Any, hints: Sequence[ObjectHint] | Rejection | None, kind: str
) -> Sequence[ObjectHint] | Rejection:
    """Returns the hints of a message or its rejection. ``hints`` is None for an unexpected kind of event."""
    if hints is None:
        return reject(body, f"The message is JSON, but not {kind}: {shape(document)}.")
    return reject(body, hints.reason) if isinstance(hints, Rejection) else hints


def shape(document: Any) -> str:
    """Describes a JSON value in a rejection's reason. Always printable."""
    if isinstance(document, dict):
        keys = ", ".join(ascii(key)[:40] for key in sorted(document)[:5])
        return f"an object with the keys {keys}" if keys else "an empty object"
    return f"a value of the type {type(document).__name__}"


# Parses events posted to a volume into hints: providers' events, CloudEvents that contain them, and plain
# paths. Pure.


def parse(body: bytes) -> Sequence[Hint | ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`. One unreadable event rejects the whole body.

    Paths are relative to the volume. A path that ends in ``/`` covers everything below it.
    """
    document = read_json(body)
    if document is NOT_JSON:
        return reject(body, "The body is not JSON.")
    found: list[Hint | ObjectHint] = []
    for event in document if isinstance(document, list) else [document]:
        hints = _hints(event)
        if isinstance(hints, Rejection):
            return reject(body, hints.reason)
        found += hints
    return found


def _hints(event: Any) -> Sequence[Hint | ObjectHint] | Rejection:
    match event:
        case {"path": path}:
            return _path_hints([path])
        case {"paths": list(paths)}:
            return _path_hints(paths)
        case {"specversion": str(), "data": {"path": path}}:
            return _path_hints([path])
        case {"specversion": str(), "data": {"paths": list(paths)}}:
            return _path_hints(paths)
    for provider in own():
        hints = provider.hints_of(event)
        if hints is not None:
            return hints
    return Rejection("", f"The body is JSON, but not an event that volstream knows: {shape(event)}.")


def _path_hints(paths: Sequence[Any]) -> Sequence[Hint] | Rejection:
    if not all(is_key(path) and path != "/" for path in paths):
        return Rejection("", "A path must be a non-empty string.")
    return [SubtreeHint(path, "posted") if path.endswith("/") else KeyHint(path) for path in paths]

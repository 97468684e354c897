"""What the parsers of messages share: JSON that cannot raise, keys that can be keys, rejections that can be kept.

The providers' formats are in the files beside this one. Pure.
"""

from __future__ import annotations

import json
from typing import Any

from volstream.model.hints import Rejection

#: Of a body that cannot be read, this much is kept.
_SUBJECT_CHARACTERS = 4096

#: What :func:`read_json` answers for text that is no JSON: every value of JSON is something else.
NOT_JSON = object()


def read_json(text: str | bytes) -> Any:
    """The value that ``text`` spells, or :data:`NOT_JSON`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # numbers of thousands of digits are ValueErrors too
        return NOT_JSON


def is_key(value: object) -> bool:
    """Whether ``value`` could be a bucket's key: JSON can spell surrogates that stand for no character."""
    if not isinstance(value, str) or not value:
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def reject(body: bytes, reason: str) -> Rejection:
    """The rejection of a whole body, cut and printable."""
    return Rejection(body.decode("utf-8", "backslashreplace")[:_SUBJECT_CHARACTERS], reason)


def shape(document: Any) -> str:
    """What a value of JSON is, for a reason: it is printable whatever the value."""
    if isinstance(document, dict):
        keys = ", ".join(ascii(key)[:40] for key in sorted(document)[:5])
        return f"an object with the keys {keys}" if keys else "an empty object"
    return f"a value of the type {type(document).__name__}"

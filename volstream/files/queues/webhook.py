"""Parses what senders post to a volume into hints: events of the providers' kinds, CloudEvents with these inside, and plain
paths. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volstream.base.model.hints import Hint, KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.files.providers import own
from volstream.files.queues.bodies import NOT_JSON, is_key, read_json, reject, shape


def parse(body: bytes) -> Sequence[Hint | ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`; one unreadable event rejects the whole body.

    Paths are relative to the volume; one that ends in ``/`` stands for all below it.
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
            return _of_paths([path])
        case {"paths": list(paths)}:
            return _of_paths(paths)
        case {"specversion": str(), "data": {"path": path}}:
            return _of_paths([path])
        case {"specversion": str(), "data": {"paths": list(paths)}}:
            return _of_paths(paths)
    for provider in own():
        hints = provider.hints_of(event)
        if hints is not None:
            return hints
    return Rejection("", f"The body is JSON, but not an event that volstream knows: {shape(event)}.")


def _of_paths(paths: Sequence[Any]) -> Sequence[Hint] | Rejection:
    if not all(is_key(path) and path != "/" for path in paths):
        return Rejection("", "A path must be a non-empty string.")
    return [SubtreeHint(path, "posted") if path.endswith("/") else KeyHint(path) for path in paths]

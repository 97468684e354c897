"""Parses messages that OSS sends to MNS into hints: plain JSON, in base64, or wrapped by a topic. Pure.

Events are identified by full name. Events for unfinished uploads and for reads are ignored. Every other
event, known or not, is a hint: checking an unchanged object costs one HEAD request, but a missed change
leaves the directory stale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volstream.base.model.hints import ObjectHint, Rejection
from volstream.files.queues.bodies import NOT_JSON, answer, decoded, hints_in, is_key, read_json_or_base64, reject

#: ``ObjectCreated:`` and ``ObjectRemoved:`` also cover uploads that are not objects yet.
_IGNORED = frozenset(
    {
        "ObjectCreated:InitiateMultipartUpload",
        "ObjectCreated:UploadPart",
        "ObjectCreated:UploadPartCopy",
        "ObjectRemoved:AbortMultipartUpload",
        "ObjectDownloaded:GetObject",
    }
)

#: Topics do not nest wrappers. This limits forged messages.
_WRAPPERS = 2


def parse(body: bytes) -> Sequence[ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`."""
    document = read_json_or_base64(body)
    for _ in range(_WRAPPERS):
        match document:
            case {"Message": str(text)}:
                document = read_json_or_base64(text.encode("utf-8", "surrogatepass"))
    if document is NOT_JSON and body.lstrip()[:1] == b"<":
        return reject(body, "The message is XML: set the NotifyContentFormat of the topic's subscription to SIMPLIFIED.")
    if document is NOT_JSON:
        return reject(body, "The message is neither JSON nor base64 of JSON.")
    return answer(body, document, hints_of(document), "an OSS event")


def hints_of(event: Any) -> Sequence[ObjectHint] | Rejection | None:
    """See :meth:`~volstream.files.providers.base.Provider.hints_of`. CloudEvents, such as EventBridge's,
    contain an OSS event."""
    match event:
        case {"events": list(events)}:
            spellings = [_hints(entry) for entry in events]
        case {"specversion": str(), "data": {"oss": _} as entry}:
            spellings = [_hints(entry)]
        case _:
            return None
    return hints_in(spellings, "An event in the message lacks its name, the bucket's name or the object's key.")


def _hints(event: Any) -> Sequence[ObjectHint] | None:
    """Returns the hints of one event, or None if it cannot be read.

    OSS's examples show unencoded keys, but its documentation does not promise that, so a decodable key gives
    both hints.
    """
    match event:
        case {"eventName": str(name)} if name in _IGNORED:
            return ()
        case {"eventName": str(), "oss": {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}}} if is_key(
            bucket
        ) and is_key(key):
            return [ObjectHint(bucket, spelling) for spelling in dict.fromkeys((key, decoded(key)))]
    return None

"""Parses messages that S3 sends to SQS, directly, through SNS or through EventBridge, into hints. Pure.

Every event with a bucket and a key is a hint, whatever its type: checking an unchanged object costs one HEAD
request, but a missed change leaves the directory stale. Not here: what hints mean for a volume
(``directory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

from volstream.base.model.hints import ObjectHint, Rejection
from volstream.files.queues.bodies import NOT_JSON, answer, hints_in, is_key, read_json, reject

#: SNS does not nest envelopes. This limits forged messages.
_ENVELOPES = 2


def parse(body: bytes) -> Sequence[ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`. S3 sends one record per message."""
    document = _unwrapped(read_json(body))
    if document is NOT_JSON:
        return reject(body, "The message is not JSON, or what SNS wrapped is not.")
    return answer(body, document, hints_of(document), "an S3 event")


def hints_of(event: Any) -> Sequence[ObjectHint] | Rejection | None:
    """See :meth:`~volstream.files.providers.base.Provider.hints_of`. CloudEvents may contain an S3 event."""
    match _unwrapped(event):
        case {"Records": list(records)} | {"specversion": str(), "data": {"Records": list(records)}}:
            spellings = [_record(record) for record in records]
        case {"specversion": str(), "data": {"s3": dict()} as record}:
            spellings = [_record(record)]
        case {"detail-type": str(), "detail": dict(detail)}:
            spellings = [_event(detail)]
        case {"s3Bucket": str(bucket), "s3ObjectKey": [*keys]} if all(isinstance(key, str) for key in keys):
            spellings = [_hints(bucket, key) for key in keys]  # CloudTrail delivered logs
        case {"Event": "s3:TestEvent"}:
            return ()
        case {"Type": "SubscriptionConfirmation" | "UnsubscribeConfirmation" as kind}:
            reason = f"SNS sent a {kind}: open its SubscribeURL, or subscribe the queue from its own account."
            return Rejection("", reason)
        case _:
            return None
    return hints_in(spellings, "A record in the message lacks the bucket's name or the object's key.")


def _unwrapped(document: Any) -> Any:
    for _ in range(_ENVELOPES):
        match document:
            case {"Type": "Notification", "Message": str(text)}:
                document = read_json(text)
    return document


def _record(record: Any) -> Sequence[ObjectHint] | None:
    """Returns the hints of one record in S3's own format."""
    match record:
        case {"s3": {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}}} if _decoded(key) is not None:
            return _hints(bucket, key, encodes=record.get("eventSource") != "ceph:s3")
    return None


def _event(detail: dict[str, Any]) -> Sequence[ObjectHint] | None:
    """Returns the hints of an EventBridge event: from S3, or for a call recorded by CloudTrail."""
    match detail:
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}} | {
            "requestParameters": {"bucketName": str(bucket), "key": str(key)}
        }:
            return _hints(bucket, key)
    return None


def _hints(bucket: str, key: str, *, encodes: bool = False) -> Sequence[ObjectHint] | None:
    """Returns a hint for each possible meaning of a key.

    S3 form-encodes keys (``+`` is a space), Ceph and CloudTrail do not, and AWS does not document
    EventBridge's encoding.

    Args:
        encodes: the sender may form-encode keys. A key with an encoded slash proves it (MinIO).
    """
    decoded = _decoded(key) or key
    spellings = dict.fromkeys((decoded, decoded if encodes and "%2F" in key.upper() else key))
    return [ObjectHint(bucket, spelling) for spelling in spellings] if is_key(bucket) and is_key(key) else None


def _decoded(key: str) -> str | None:
    """Decodes ``key`` once. Returns None if its escapes are not UTF-8: then the key is not encoded."""
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        return None

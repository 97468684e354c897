"""Parses messages that S3 sends to SQS, directly, through SNS or through EventBridge, into hints. Pure.

Every event that names a bucket and a key is a hint, whatever the event: checking an unchanged object costs one HEAD request,
whereas a missed change leaves the directory stale. What does not belong here: what hints mean for a volume (``directory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

from volstream.base.model.hints import ObjectHint, Rejection
from volstream.files.queues.bodies import NOT_JSON, is_key, read_json, reject, shape

#: Nested SNS envelopes do not occur; this bounds forged ones.
_ENVELOPES = 2


def parse(body: bytes) -> Sequence[ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`.

    One unreadable record rejects the whole message: otherwise the record would be lost silently. S3 sends one record per
    message. Keys that end in ``/`` stand for directories and give no hint.
    """
    document = read_json(body)
    for _ in range(_ENVELOPES):
        match document:
            case {"Type": "Notification", "Message": str(text)}:
                document = read_json(text)
    match document:
        case {"Records": list(records)}:
            spellings = [_record(record) for record in records]
        case {"detail-type": str(), "detail": dict(detail)}:
            spellings = [_event(detail)]
        case {"s3Bucket": str(bucket), "s3ObjectKey": [*keys]} if all(isinstance(key, str) for key in keys):
            spellings = [_hints(bucket, key) for key in keys]  # CloudTrail has delivered logs
        case {"Event": "s3:TestEvent"}:
            return ()
        case {"Type": "SubscriptionConfirmation" | "UnsubscribeConfirmation" as kind}:
            return reject(
                body, f"SNS sent a {kind}: open its SubscribeURL, or subscribe the queue from its own account."
            )
        case _ if document is NOT_JSON:
            return reject(body, "The message is not JSON, or what SNS wrapped is not.")
        case _:
            return reject(body, f"The message is JSON, but not an S3 event: {shape(document)}.")
    if not all(spellings):
        return reject(body, "A record in the message lacks the bucket's name or the object's key.")
    return tuple(hint for hints in spellings for hint in hints if not hint.key.endswith("/"))


def _record(record: Any) -> Sequence[ObjectHint]:
    """Returns the hints of one record of S3's own format."""
    match record:
        case {"s3": {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}}} if _decoded(key) is not None:
            return _hints(bucket, key)
    return ()


def _event(detail: dict[str, Any]) -> Sequence[ObjectHint]:
    """Returns the hints of an EventBridge event, of S3 or of a call that CloudTrail saw."""
    match detail:
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}}:
            return _hints(bucket, key)
        case {"requestParameters": {"bucketName": str(bucket), "key": str(key)}}:
            return _hints(bucket, key)
    return ()


def _hints(bucket: str, key: str) -> Sequence[ObjectHint]:
    """Returns a hint for each spelling that a key can stand for: S3 form-encodes it (``+`` is a space), Ceph and CloudTrail do
    not, and AWS does not document what EventBridge does. A sender that encodes even slashes does encode keys."""
    decoded = _decoded(key) or key
    spellings = dict.fromkeys((decoded, decoded if "%2F" in key.upper() else key))
    return [ObjectHint(bucket, spelling) for spelling in spellings] if _could_be(bucket, key) else ()


def _could_be(bucket: str, key: str) -> bool:
    return is_key(bucket) and is_key(key)


def _decoded(key: str) -> str | None:
    """Returns ``key`` decoded once; None if its escapes are not UTF-8, which those of real keys always are."""
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        return None

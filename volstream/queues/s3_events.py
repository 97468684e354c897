"""Messages that S3 sends to SQS, directly, through SNS or through EventBridge, as hints. Pure.

Every event that names a bucket and a key is a hint, whatever its name: a look at an object that did not change costs a
HEAD, one that was not looked at is missing. What hints mean for a volume is not here (``directory``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote_plus

from volstream.model.hints import ObjectHint, Rejection
from volstream.queues.bodies import NOT_JSON, is_key, read_json, reject, shape

#: SNS in SNS does not happen; a message made to look like it ends here.
_ENVELOPES = 2


def parse(body: bytes) -> Sequence[ObjectHint] | Rejection:
    """See :class:`~volstream.queues.base.Parser`.

    One record that cannot be read rejects the message: its hints would let the record vanish unseen. S3 sends one record a
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
        case {"Event": "s3:TestEvent"}:
            return ()
        case {"Type": "SubscriptionConfirmation" | "UnsubscribeConfirmation" as kind}:
            return reject(
                body, f"SNS sent a {kind}: open its SubscribeURL, or subscribe the queue from its own account."
            )
        case _ if document is NOT_JSON:
            return reject(body, "The message is not JSON, or what SNS wrapped is not.")
        case _:
            return reject(body, f"The message is JSON, but no event of S3: {shape(document)}.")
    if not all(spellings):
        return reject(body, "The message has a record without a bucket's name and an object's key.")
    return tuple(hint for hints in spellings for hint in hints if not hint.key.endswith("/"))


def _record(record: Any) -> Sequence[ObjectHint]:
    """The hint of one record of S3's own format, where keys are encoded as in a form: ``+`` is a space."""
    match record:
        case {"s3": {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}}} if _could_be(bucket, key):
            decoded = _decoded(key)
            return () if decoded is None else (ObjectHint(bucket, decoded),)
    return ()


def _event(detail: dict[str, Any]) -> Sequence[ObjectHint]:
    """The hints of an EventBridge event. Whether its key is encoded AWS does not say: as it is, and decoded."""
    match detail:
        case {"bucket": {"name": str(bucket)}, "object": {"key": str(key)}} if _could_be(bucket, key):
            spellings = dict.fromkeys((key, _decoded(key) or key))
            return [ObjectHint(bucket, spelling) for spelling in spellings]
    return ()


def _could_be(bucket: str, key: str) -> bool:
    return is_key(bucket) and is_key(key)


def _decoded(key: str) -> str | None:
    """``key`` decoded once; None where its escapes are no UTF-8, as those of a key always are."""
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError:
        return None

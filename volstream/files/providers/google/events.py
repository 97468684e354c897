"""Parses messages of Cloud Storage into hints: notifications of Pub/Sub, as its push requests have them, and
CloudEvents. Pure.

Every event with a bucket and an object is a hint, whatever its type: checking an unchanged object costs one
request, but a missed change leaves the directory stale. That also handles duplicates and events out of order:
each check finds a generation, which identifies the version of the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from volstream.base.model.hints import ObjectHint, Rejection
from volstream.files.queues.bodies import NOT_JSON, answer, hints_in, is_key, read_json, reject


def parse(body: bytes) -> Sequence[ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`. The body is a message as Pub/Sub pushes it."""
    document = read_json(body)
    if document is NOT_JSON:
        return reject(body, "The message is not JSON.")
    return answer(body, document, hints_of(document), "a notification of Cloud Storage")


def hints_of(event: Any) -> Sequence[ObjectHint] | Rejection | None:
    """See :meth:`~volstream.files.providers.base.Provider.hints_of`. CloudEvents are Eventarc's."""
    match event:
        case {"message": {"attributes": {"eventType": str()} as attributes}}:
            found = attributes.get("bucketId"), attributes.get("objectId")
        case {"specversion": str(), "type": str(kind), "data": dict(data)} if kind.startswith("google.cloud.storage.object."):
            found = data.get("bucket"), data.get("name")
        case {"kind": "storage#object", "bucket": bucket, "name": name}:
            found = bucket, name
        case _:
            return None
    bucket, key = found
    hints = [ObjectHint(str(bucket), str(key))] if is_key(bucket) and is_key(key) else None
    return hints_in([hints], "The notification lacks the bucket's name or the object's.")

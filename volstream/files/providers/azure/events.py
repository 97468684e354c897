"""Parses Event Grid's messages in a Storage Queue: its own schema or CloudEvents, plain or base64. Pure.

Every event with a blob is a hint, except for a file that was created but not written yet: checking an
unchanged blob costs one request, but a missed change leaves the directory stale. An event about a folder is a
hint for everything below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from volstream.base.model.hints import ObjectHint, Rejection
from volstream.files.queues.bodies import NOT_JSON, answer, decoded, hints_in, is_key, read_json_or_base64, reject

_SUBJECT = re.compile(r"/blobServices/default/containers/([^/]+)/blobs/(.+)", re.DOTALL)

#: The call that creates a file. Another call closes it; until then the file is empty or grows.
_CREATE = "CreateFile"

#: The fields with the locations of a moved file or folder.
_URLS = ("sourceUrl", "destinationUrl")


def parse(body: bytes) -> Sequence[ObjectHint] | Rejection:
    """See :class:`~volstream.files.queues.base.Parser`."""
    document = read_json_or_base64(body)
    if document is NOT_JSON:
        return reject(body, "The message is neither JSON nor base64 of JSON.")
    return answer(body, document, hints_of(document), "an event of Blob Storage")


def hints_of(event: Any) -> Sequence[ObjectHint] | Rejection | None:
    """See :meth:`~volstream.files.providers.base.Provider.hints_of`."""
    match event:
        case {"eventType": str(kind), "data": dict(data)} | {"specversion": str(), "type": str(kind), "data": dict(data)}:
            pass
        case _:
            return None
    if kind == "Microsoft.EventGrid.SubscriptionValidationEvent":
        return ()
    if not kind.startswith("Microsoft.Storage."):
        return None
    if data.get("api") == _CREATE:
        return ()
    below = kind.startswith("Microsoft.Storage.Directory")
    return hints_in([[*_hints(event.get("subject"), data, below=below)] or None], "The event lacks the container or the blob.")


def _hints(subject: Any, data: dict[str, Any], *, below: bool) -> Iterator[ObjectHint]:
    """Yields a hint for each possible spelling of each location in an event.

    Azure's examples have unencoded subjects and encoded URLs, but its documentation does not promise that.
    """
    named = _SUBJECT.fullmatch(subject) if isinstance(subject, str) else None
    places = [] if named is None else [(named[1], named[2])]
    for url in (data.get(name) for name in _URLS):
        if isinstance(url, str):
            with suppress(ValueError):  # it is not a URL
                container, _, key = urlsplit(url).path.lstrip("/").partition("/")
                places.append((container, key))
    for container, key in places:
        for spelling in (key, decoded(key)):
            if is_key(container) and is_key(spelling):
                yield ObjectHint(container, f"{spelling.rstrip('/')}/" if below else spelling, below=below)

"""Events that senders post to volumes with the queue type ``webhook``: each is noted in the catalog before it is answered."""

from __future__ import annotations

import hashlib
import hmac

from volstream.catalog import Catalog
from volstream.definitions import QueueType, Volume
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError
from volstream.model.hints import KeyHint, ObjectHint, Rejection, SubtreeHint, unusable
from volstream.model.names import Name
from volstream.queues.webhook import parse
from volstream.volumes.route import route

#: Bytes of a request's body: those of a million events would not fit.
MAX_BYTES = 1 << 20

#: While so many files of a volume wait to be looked at, its senders are asked to come again later.
MAX_WAITING = 100_000


class BehindError(InvalidStateError):
    """Too many files wait already; the sender should repeat its request later."""


def token_of(secret: str, volume: Volume) -> str:
    """Returns the token of a volume's senders, which opens nothing else."""
    return hmac.new(secret.encode(), f"events of {volume.id}".encode(), hashlib.sha256).hexdigest()


def accept(catalog: Catalog, volume: Volume, body: bytes) -> int:
    """Notes the files that events name, for the volume's daemon to look at; returns their number. Durable on return.

    Raises:
        InvalidValueError: the body is not understood. It is kept with the volume's rejected messages.
        BehindError: too many files wait.
    """
    hints = parse(body)
    if isinstance(hints, Rejection):
        catalog.refreshes.reject(volume.id, [hints])
        raise InvalidValueError(hints.reason, "docs/guides/buckets.md shows what is understood.")
    of_objects = any(isinstance(hint, ObjectHint) for hint in hints)
    routed = route(volume, catalog.volumes.list() if of_objects else (), hints)
    own = set[str]()
    for hint in routed.own:
        match hint:
            case KeyHint(path) if volume.selection.accepts(path):
                own.add(path)
            case SubtreeHint(prefix) if volume.selection.may_contain(prefix.rstrip("/")):
                own.add(prefix)
    rejected = [*routed.strays.values()]
    for volume_id, paths in ((volume.id, own), *routed.others.items()):
        if paths and catalog.refreshes.asked_count(volume_id) >= MAX_WAITING:
            raise BehindError(f"{MAX_WAITING:,} files wait to be looked at.", "Repeat the request later.")
        odd = unusable(paths)
        rejected += odd.values()
        catalog.refreshes.ask_check(volume_id, paths - odd.keys())
    catalog.refreshes.reject(volume.id, rejected)
    return len(own) + sum(map(len, routed.others.values()))


def posted_to(catalog: Catalog, name: str) -> Volume:
    """Returns the volume to which events are posted. Raises NotFoundError if there is none that takes them."""
    volume = catalog.volumes.get(Name.parse(name))
    if volume.queue_type is not QueueType.WEBHOOK:
        raise NotFoundError(f"The volume {volume.name} takes no posted events.", "Its queue type is not webhook.")
    return volume

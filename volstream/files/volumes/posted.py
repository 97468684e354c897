"""Events that senders post to volumes with the queue type ``webhook``: each is noted in the catalog before it is answered."""

from __future__ import annotations

import hashlib
import hmac

from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import HintSet, Rejection
from volstream.base.model.names import Name
from volstream.catalog import Catalog
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError
from volstream.files.queues.webhook import parse
from volstream.files.volumes.routing import Routing

#: Bytes of a request's body: those of a million events would not fit.
MAX_BYTES = 1 << 20

#: Events of a request: more would keep the senders of other volumes waiting.
MAX_EVENTS = 10_000

#: While so many files of a volume wait to be looked at, its senders are asked to come again later.
MAX_WAITING = 100_000


class BehindError(InvalidStateError):
    """Too many files wait already; the sender should repeat its request later."""


def token_of(secret: str, volume: Volume) -> str:
    """Returns the token of a volume's senders, which opens nothing else."""
    return hmac.new(secret.encode(), f"events of {volume.id}".encode(), hashlib.sha256).hexdigest()


class PostedEvents:
    """Takes what senders post to the volumes of a catalog. For use by one thread at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._routing = Routing(catalog)

    def accept(self, volume: Volume, body: bytes) -> int:
        """Notes the files that events name, for the volume's daemon to look at; returns their number. Durable on return.

        Raises:
            InvalidValueError: the body is not understood. It is kept with the volume's rejected messages.
            BehindError: too many files wait.
        """
        hints, refreshes = parse(body), self._catalog.refreshes
        if isinstance(hints, Rejection):
            refreshes.reject(volume.id, [hints])
            raise InvalidValueError(hints.reason, "Accepted formats: docs/guides/buckets.md.")
        if len(hints) > MAX_EVENTS:
            raise InvalidValueError(
                f"A request has at most {MAX_EVENTS:,} events, this one has {len(hints):,}.", "Send several requests."
            )
        routed = self._routing.route(volume, hints)
        own = HintSet(volume.selection)
        own.add(routed.own)
        asked = {volume.id: {*own.keys, *own.subtrees}, **routed.others}
        if any(paths and refreshes.asked_count(volume_id) >= MAX_WAITING for volume_id, paths in asked.items()):
            raise BehindError(f"{MAX_WAITING:,} posted files are waiting to be checked already.", "Repeat the request later.")
        refreshes.reject(volume.id, [*routed.strays.values(), *refreshes.ask_checks(asked)])
        return sum(map(len, asked.values()))


def posted_to(catalog: Catalog, name: str) -> Volume:
    """Returns the volume to which events are posted. Raises NotFoundError if there is none that takes them."""
    volume = catalog.volumes.get(Name.parse(name))
    if volume.queue_type is not QueueType.WEBHOOK:
        raise NotFoundError(f"The volume {volume.name} takes no posted events.", "Its queue type is not webhook.")
    return volume

"""Assigns events about a bucket's objects to the volumes that the catalog has now."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from volstream.base.definitions import QueueType, Volume
from volstream.base.model.hints import Hint, HintSet, KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.base.model.names import Name
from volstream.base.model.paths import scheme_of
from volstream.catalog import Catalog
from volstream.catalog.definitions import DefinitionCache
from volstream.errors import InvalidStateError, InvalidValueError, NotFoundError
from volstream.files.providers.base import BucketPlace, provider_by
from volstream.files.queues.bodies import parse

# Assigns events about a bucket's objects to volumes by their locations. Pure.


@dataclass
class RoutedHints:
    """Hints by destination.

    Attributes:
        own: hints for the volume whose queue delivered them.
        others: paths in other volumes of the home, by volume id.
        strays: objects outside all volumes, grouped by bucket and first part of the key.
    """

    own: list[Hint] = field(default_factory=list)
    others: dict[str, set[str]] = field(default_factory=dict)
    strays: dict[str, Rejection] = field(default_factory=dict)


class Router:
    """Divides hints about objects among volumes, which may share a queue. Each costs as much as its key is deep."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        self._roots: dict[tuple[str, str], dict[str, list[Volume]]] = {}  # by scheme and bucket, and the prefix of all keys
        for volume in volumes:
            if provider_by(scheme_of(volume.location)):
                place = BucketPlace.of(volume.location)
                self._roots.setdefault((place.scheme, place.bucket), {}).setdefault(place.root, []).append(volume)

    def has_neighbours(self, volume: Volume) -> bool:
        """Returns whether other volumes are in the bucket of ``volume``, so that its queue may have events for them."""
        if not provider_by(scheme_of(volume.location)):
            return False
        place = BucketPlace.of(volume.location)
        roots = self._roots.get((place.scheme, place.bucket), {})
        return len(roots) > 1 or any(len(inside) > 1 for inside in roots.values())

    def route(self, volume: Volume, hints: Iterable[Hint | ObjectHint]) -> RoutedHints:
        """Divides hints from the queue of ``volume``."""
        routed, scheme = RoutedHints(), scheme_of(volume.location)
        for hint in hints:
            if not isinstance(hint, ObjectHint):
                routed.own.append(hint)
                continue
            within = self._within(scheme, hint)
            for other, path in within:
                if other.id == volume.id:
                    routed.own.append(SubtreeHint(path, "moved") if hint.below else KeyHint(path))
                elif hint.below or other.selection.accepts(path):
                    routed.others.setdefault(other.id, set()).add(path)
            if not within:
                first, slash, _ = hint.key.partition("/")
                subject = f"{scheme}://{hint.bucket}/{first + slash if slash else ''}"
                routed.strays.setdefault(subject, Rejection(subject[:4096], "No volume covers this location."))
        return routed

    def _within(self, scheme: str, hint: ObjectHint) -> list[tuple[Volume, str]]:
        """Returns the volumes that a hint concerns, each with the path of its key, or of what is there below the key."""
        roots, key = self._roots.get((scheme, hint.bucket), {}), hint.key
        ends = [0, *(at + 1 for at, letter in enumerate(key[:-1]) if letter == "/")]
        within = [(volume, key[end:]) for end in ends for volume in roots.get(key[:end], ())]
        if hint.below:
            within += [(volume, "") for root, inside in roots.items() if root.startswith(key) for volume in inside]
        return within


class Routing:
    """Divides hints among all volumes of a catalog. Reads the catalog first, so that an event for a volume that another process
    has just created does not count as a stray. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._volumes = DefinitionCache(catalog.volumes)
        self._router = Router(())
        self._lock = threading.Lock()

    def follow(self) -> Router:
        """Reads what has changed. Raises CatalogError."""
        with self._lock:
            before = self._volumes.all
            self._volumes.follow()
            if self._volumes.all is not before:
                self._router = Router(self._volumes.all.values())
            return self._router

    def has_neighbours(self, volume: Volume) -> bool:
        """See :meth:`Router.has_neighbours`; as of when something was followed or divided last."""
        return self._router.has_neighbours(volume)

    def route(self, volume: Volume, hints: Sequence[Hint | ObjectHint]) -> RoutedHints:
        """See :meth:`Router.route`. Raises CatalogError."""
        are_objects = any(isinstance(hint, ObjectHint) for hint in hints)
        return (self.follow() if are_objects else self._router).route(volume, hints)


# Events that senders post to volumes with the queue type ``webhook``: each is noted in the catalog before it
# is answered.

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

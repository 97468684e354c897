"""Assigns events about a bucket's objects to the volumes that are currently in the catalog."""

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
    """Divides hints about objects among volumes that may share a queue. Deeper keys cost more."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        # by scheme and bucket, and the prefix of all keys
        self._roots: dict[tuple[str, str], dict[str, list[Volume]]] = {}
        for volume in volumes:
            if provider_by(scheme_of(volume.location)):
                place = BucketPlace.of(volume.location)
                self._roots.setdefault((place.scheme, place.bucket), {}).setdefault(place.root, []).append(volume)

    def has_neighbours(self, volume: Volume) -> bool:
        """True if other volumes share the bucket of ``volume``: its queue may have events for them."""
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
        """Returns the volumes that a hint concerns, with the path in each: of the key, or of what is below
        it."""
        roots, key = self._roots.get((scheme, hint.bucket), {}), hint.key
        ends = [0, *(at + 1 for at, letter in enumerate(key[:-1]) if letter == "/")]
        within = [(volume, key[end:]) for end in ends for volume in roots.get(key[:end], ())]
        if hint.below:
            within += [(volume, "") for root, inside in roots.items() if root.startswith(key) for volume in inside]
        return within


class Routing:
    """Divides hints among all volumes of a catalog. Thread-safe.

    Reads the catalog first, so that an event for a volume just created by another process does not count as a
    stray.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._volumes = DefinitionCache(catalog.volumes)
        self._router = Router(())
        self._lock = threading.Lock()

    def follow(self) -> Router:
        """Reads changed volumes from the catalog. Raises CatalogError."""
        with self._lock:
            before = self._volumes.all
            self._volumes.follow()
            if self._volumes.all is not before:
                self._router = Router(self._volumes.all.values())
            return self._router

    def has_neighbours(self, volume: Volume) -> bool:
        """See :meth:`Router.has_neighbours`. As of the last read of the catalog."""
        return self._router.has_neighbours(volume)

    def route(self, volume: Volume, hints: Sequence[Hint | ObjectHint]) -> RoutedHints:
        """See :meth:`Router.route`. Raises CatalogError."""
        are_objects = any(isinstance(hint, ObjectHint) for hint in hints)
        return (self.follow() if are_objects else self._router).route(volume, hints)


# Events that senders post to volumes with the queue type ``webhook``: each is recorded in the catalog before
# the response is sent.

#: Maximum bytes of a request's body. A million events would not fit.
MAX_BYTES = 1 << 20

#: Maximum number of events in a request: more would keep the senders of other volumes waiting.
MAX_EVENTS = 10_000

#: While this many files of a volume wait to be checked, its senders must try again later.
MAX_WAITING = 100_000


class BehindError(InvalidStateError):
    """Too many files are waiting already. The sender should repeat its request later."""


def token_of(secret: str, volume: Volume) -> str:
    """Returns the token of a volume's senders. It grants nothing else."""
    return hmac.new(secret.encode(), f"events of {volume.id}".encode(), hashlib.sha256).hexdigest()


class PostedEvents:
    """Accepts events posted to the volumes of a catalog. For use by one thread at a time."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._routing = Routing(catalog)

    def accept(self, volume: Volume, body: bytes) -> int:
        """Records the files in events for the volume's daemon to check. Returns their number. Durable.

        Raises:
            InvalidValueError: the body cannot be parsed. It is kept with the volume's rejected messages.
            BehindError: too many files are waiting.
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
        hint_set = HintSet(volume.selection)
        hint_set.add(routed.own)
        checks = {volume.id: {*hint_set.keys, *hint_set.subtrees}, **routed.others}
        if any(paths and refreshes.asked_count(volume_id) >= MAX_WAITING for volume_id, paths in checks.items()):
            raise BehindError(f"{MAX_WAITING:,} posted files are waiting to be checked already.", "Repeat the request later.")
        refreshes.reject(volume.id, [*routed.strays.values(), *refreshes.ask_checks(checks)])
        return sum(map(len, checks.values()))


def posted_to(catalog: Catalog, name: str) -> Volume:
    """Returns the volume to which events are posted. Raises NotFoundError if it takes no posted events."""
    volume = catalog.volumes.get(Name.parse(name))
    if volume.queue_type is not QueueType.WEBHOOK:
        raise NotFoundError(f"The volume {volume.name} takes no posted events.", "Its queue type is not webhook.")
    return volume

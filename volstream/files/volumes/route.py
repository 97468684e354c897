"""Assigns events about a bucket's objects to volumes by their locations. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from volstream.base.definitions import Volume
from volstream.base.model.hints import Hint, KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.base.model.paths import scheme_of
from volstream.files.providers import provider_by
from volstream.files.storage.bucket import BucketPlace


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

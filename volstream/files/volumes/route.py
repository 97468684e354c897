"""Assigns events about a bucket's objects to volumes by their locations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from volstream.base.definitions import Volume
from volstream.base.model.hints import Hint, KeyHint, ObjectHint, Rejection, SubtreeHint
from volstream.base.model.locations import scheme_of
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


def route(volume: Volume, volumes: Sequence[Volume], hints: Iterable[Hint | ObjectHint]) -> RoutedHints:
    """Divides hints from the queue of ``volume`` among ``volumes``, which may share it."""
    routed = RoutedHints()
    scheme = scheme_of(volume.location)
    same = [other for other in volumes if scheme_of(other.location) == scheme] if provider_by(scheme) else []
    places = [(other, BucketPlace.of(other.location)) for other in same]
    for hint in hints:
        if not isinstance(hint, ObjectHint):
            routed.own.append(hint)
            continue
        within = [
            (other, path) for other, place in places if place.bucket == hint.bucket and (path := _path(hint, place)) is not None
        ]
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


def _path(hint: ObjectHint, place: BucketPlace) -> str | None:
    """Returns the path of a hint in a volume, or of what it has below the hint's key; None: it is outside."""
    if hint.below and place.root.startswith(hint.key):
        return ""
    return place.path(hint.key) if hint.key.startswith(place.root) and hint.key != place.root else None

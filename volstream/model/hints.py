"""What an event says: that something may have changed. Never what it is now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from volstream.model.files import printable, why_no_row


@dataclass(frozen=True, slots=True)
class KeyHint:
    """The object at ``path`` (relative to the volume) may have appeared, changed or gone."""

    path: str


@dataclass(frozen=True, slots=True)
class SubtreeHint:
    """Anything below ``prefix`` may have changed; ``""`` is the whole volume.

    Attributes:
        prefix: empty, or a path that ends in ``/``.
        reason: why a listing is needed, for the record of the reconcile: ``overflow``, ``moved``, ``poll``, ...
    """

    prefix: str
    reason: str


Hint = KeyHint | SubtreeHint


@dataclass(frozen=True, slots=True)
class ObjectHint:
    """The object ``key`` of ``bucket`` may have appeared, changed or gone. Which volumes it belongs to, their locations say.

    Where a provider leaves open how a key is spelled, there is one hint for each spelling: a look decides.
    """

    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class Rejection:
    """A message or name that cannot be used, kept so that a user can see it.

    Attributes:
        subject: the message's body or the path, printable and cut to 4,096 characters.
        reason: one sentence.
    """

    subject: str
    reason: str


def unusable(paths: Iterable[str]) -> dict[str, Rejection]:
    """Those of some paths of which no row can be."""
    reasons = {path: why_no_row(path) for path in paths}
    return {path: Rejection(printable(path), reason) for path, reason in reasons.items() if reason is not None}

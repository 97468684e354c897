"""Contents of events: something may have changed. They never state the current state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from volstream.base.model.files import printable, why_no_row


@dataclass(frozen=True, slots=True)
class KeyHint:
    """The object at ``path`` (relative to the volume) may have appeared, changed or disappeared."""

    path: str


@dataclass(frozen=True, slots=True)
class SubtreeHint:
    """Anything below ``prefix`` may have changed; ``""`` is the whole volume.

    Attributes:
        prefix: empty, or a path that ends in ``/``.
        reason: why a listing is needed, recorded as the cause of the listing: ``overflow``, ``moved``, ``poll``, ...
    """

    prefix: str
    reason: str


Hint = KeyHint | SubtreeHint


@dataclass(frozen=True, slots=True)
class ObjectHint:
    """The object ``key`` of ``bucket`` may have appeared, changed or disappeared. Its volumes follow from their locations.

    If a provider leaves a key's spelling open, there is one hint per spelling; a check decides.

    Attributes:
        below: the key ends in ``/``, and anything below it may have changed.
    """

    bucket: str
    key: str
    below: bool = False


@dataclass(frozen=True, slots=True)
class Rejection:
    """An unusable message or name, kept for the user to see.

    Attributes:
        subject: the message's body or the path, printable and cut to 4,096 characters.
        reason: the reason, in one sentence.
    """

    subject: str
    reason: str


def unusable(paths: Iterable[str]) -> dict[str, Rejection]:
    """Returns the paths that cannot become rows, with the reason."""
    reasons = {path: why_no_row(path) for path in paths}
    return {path: Rejection(printable(path), reason) for path, reason in reasons.items() if reason is not None}

"""Contents of events: something may have changed. They never state the current state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from volstream.base.model.paths import Selection, printable, why_no_row


@dataclass(frozen=True, slots=True)
class KeyHint:
    """The object at ``path`` (relative to the volume) may have appeared, changed or disappeared."""

    path: str


@dataclass(frozen=True, slots=True)
class SubtreeHint:
    """Anything below ``prefix`` may have changed; ``""`` is the whole volume.

    Attributes:
        prefix: empty, or a path that ends in ``/``.
        reason: why a listing is needed, recorded as the cause of the listing: ``overflow``, ``moved``,
            ``poll``, ...
    """

    prefix: str
    reason: str


Hint = KeyHint | SubtreeHint


@dataclass(frozen=True, slots=True)
class ObjectHint:
    """The object ``key`` of ``bucket`` may have appeared, changed or disappeared. Its volumes follow from
    their locations.

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


# Folds a sequence of hints: each changed key once, each subtree once. Pure.


@dataclass
class HintSet:
    """Hints collected for one tick. A subtree's listing covers all keys and subtrees below it."""

    selection: Selection
    keys: dict[str, None] = field(default_factory=dict)
    subtrees: dict[str, str] = field(default_factory=dict)

    def add(self, hints: Iterable[Hint]) -> None:
        """Adds hints, ignoring paths outside the volume's selection."""
        for hint in hints:
            match hint:
                case KeyHint(path):
                    if self.selection.accepts(path):
                        self.keys[path] = None
                case SubtreeHint(prefix, reason):
                    if self.selection.may_contain(prefix.rstrip("/")):
                        self.subtrees.setdefault(prefix, reason)

    def __bool__(self) -> bool:
        return bool(self.keys or self.subtrees)

    def listings(self) -> Sequence[tuple[str, str]]:
        """Returns the subtrees to list, outermost only, with the reason."""
        outermost: list[tuple[str, str]] = []
        for prefix in sorted(self.subtrees):
            if not outermost or not prefix.startswith(outermost[-1][0]):  # what is below a prefix follows it
                outermost.append((prefix, self.subtrees[prefix]))
        return outermost

    def single_keys(self) -> list[str]:
        """Returns the keys that no listing covers, in order of arrival."""
        prefixes = tuple(prefix for prefix, _ in self.listings())
        return [key for key in self.keys if not key.startswith(prefixes)] if prefixes else list(self.keys)

"""Folds a sequence of hints: each changed key once, each subtree once. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from volstream.base.model.hints import Hint, KeyHint, SubtreeHint
from volstream.base.model.selection import Selection


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

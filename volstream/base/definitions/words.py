"""Words that providers and plug-ins may add to, such as types of queues."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Self

from volstream.base import plugins
from volstream.base.plugins import Group

#: Plug-ins' words: the catalog has room for twenty characters.
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,19}")


class OpenWords(StrEnum):
    """Words, to which those of plug-ins come by their names."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Returns a plug-in's word. Whether it is installed is a question of where the word is used."""
        if not isinstance(value, str) or not _WORD.fullmatch(value):
            return None
        other = str.__new__(cls, value)
        other._name_ = other._value_ = value
        return other

    @property
    def is_plugin(self) -> bool:
        """True if it is a plug-in's word."""
        return self not in type(self).__members__.values()


def of_plugins(group: Group) -> Callable[[], Sequence[str]]:
    """Returns what lists the words of the plug-ins that are installed here."""
    return lambda: [*filter(_WORD.fullmatch, plugins.names(group))]

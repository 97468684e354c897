"""Numbers that functions count, by name, and their sums. Pure."""

from __future__ import annotations

from collections.abc import Mapping

#: Maximum number of names in a sum; each is a series of metrics.
MOST_NAMES = 100

#: The name under which counts of further names are added.
OTHERS = "(other names)"


def add(sums: dict[str, float], counted: Mapping[str, float]) -> None:
    """Adds counts to sums, by name."""
    for name, number in counted.items():
        kept = name if name in sums or len(sums) < MOST_NAMES else OTHERS
        sums[kept] = sums.get(kept, 0.0) + number


def total(*parts: Mapping[str, float]) -> dict[str, float]:
    """Returns the sums of counts."""
    sums: dict[str, float] = {}
    for part in parts:
        add(sums, part)
    return sums


def shown(counted: Mapping[str, float]) -> str:
    """Returns counts for people, such as ``calls 12, 'unexpected: words < 8' 1``."""
    return ", ".join(f"{_name(name)} {_number(number)}" for name, number in sorted(counted.items()))


def _name(name: str) -> str:
    """Returns a name in quotes if it is more than a word, so that its number is not read as a part of it."""
    return f"'{name}'" if " " in name else name


def _number(number: float) -> str:
    """Returns a count for people: an integer if whole, else with its significant digits."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.6g}" if number < 1e5 else f"{number:,.2f}"

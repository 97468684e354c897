"""Differences between the outcomes of two codes for the same files: by column, number of rows, and error. Pure.

Outcomes are added and counted file by file; each kind of difference keeps a few shortened examples, so that memory does not
grow with the files. What does not belong here: running the codes, reading the tables (``compare``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from volstream.base.model.text import cause, json_document

#: A row from a function or the table: values by column.
Row = Mapping[str, Any]

#: Examples kept of each kind of difference.
_EXAMPLES = 3

#: Maximum number of groups of errors; further errors are counted under :data:`OTHERS`.
_GROUPS = 50

#: Characters of a text that an example shows, and how many precede the first difference.
_SHOWN, _BEFORE = 80, 20

#: Up to this many differing rows of a file are paired by likeness, in quadratic time; beyond that, in order.
_PAIRED = 100

_NOT_A_NUMBER = object()

#: The group of errors without a group of their own.
OTHERS = "other errors"


@dataclass
class CodeOutcome:
    """The outcome of a code for a file: rows, or an error.

    Attributes:
        rows: None: too many to compare.
        count: number of rows.
        kind, message: of the error; None: none.
    """

    rows: Sequence[Row] | None = ()
    count: int = 0
    kind: str | None = None
    message: str = ""


@dataclass(frozen=True)
class Example:
    """One difference. ``old`` and ``new`` are values, long ones cut around the first difference, or numbers of rows."""

    path: str
    old: Any
    new: Any


@dataclass
class Examples:
    """A number of files or rows, with the first few as examples."""

    count: int = 0
    examples: list[Example] = field(default_factory=list)

    def add(self, path: str, old: Any, new: Any) -> None:
        """Counts one difference."""
        self.count += 1
        if len(self.examples) < _EXAMPLES:
            self.examples.append(Example(path, *_cut(old, new)))


@dataclass
class ErrorGroup:
    """Failures with the same error, ignoring numbers and quoted text.

    Attributes:
        message: of the first failure.
        paths: the first few.
    """

    kind: str
    message: str
    files: int = 0
    paths: list[str] = field(default_factory=list)


@dataclass
class Differences:
    """What differs between an old and a new code's outcomes.

    Attributes:
        files: number compared, with ``old_rows`` and ``new_rows`` in total.
        same: files without differences.
        rows: differing rows, of ``differing`` files.
        columns: differing rows by column.
        more, fewer: files with more or fewer rows; examples show the numbers.
        new_failures, healed: files that fail only with the new code, or only with the old one, by error.
        still_failing: files that fail with both.
        uncompared: files with too many rows to compare; only their numbers were compared.
        changed: files that were removed or changed before the new code's turn; not in ``files``.
    """

    files: int = 0
    old_rows: int = 0
    new_rows: int = 0
    same: int = 0
    rows: int = 0
    differing: int = 0
    columns: dict[str, Examples] = field(default_factory=dict)
    more: Examples = field(default_factory=Examples)
    fewer: Examples = field(default_factory=Examples)
    new_failures: list[ErrorGroup] = field(default_factory=list)
    healed: list[ErrorGroup] = field(default_factory=list)
    still_failing: int = 0
    uncompared: int = 0
    changed: int = 0

    @property
    def none(self) -> bool:
        """Whether nothing differs."""
        return self.files == self.same


class Comparer:
    """Compares outcomes file by file.

    Args:
        columns: the columns that both codes have.
    """

    def __init__(self, columns: Collection[str]) -> None:
        self.found = Differences()
        self._columns = tuple(columns)
        self._groups: dict[tuple[str, str, str], ErrorGroup] = {}

    def changed(self) -> None:
        """Counts a file that could not be compared, because it was changed or removed."""
        self.found.changed += 1

    def add(self, path: str, old: CodeOutcome, new: CodeOutcome) -> None:
        """Compares the outcomes of one file."""
        differences = self.found
        differences.files += 1
        differences.old_rows += old.count
        differences.new_rows += new.count
        if old.kind is not None and new.kind is not None:
            differences.still_failing += 1
            differences.same += 1
        elif new.kind is not None:
            self._group("new", differences.new_failures, path, new)
        elif old.kind is not None:
            self._group("healed", differences.healed, path, old)
        elif not self._compare(path, old, new):
            differences.same += 1

    def _compare(self, path: str, old: CodeOutcome, new: CodeOutcome) -> bool:
        """Compares rows; returns whether any differ."""
        differences = self.found
        if old.count != new.count:
            (differences.more if new.count > old.count else differences.fewer).add(path, old.count, new.count)
        if old.rows is None or new.rows is None:
            differences.uncompared += 1
            return old.count != new.count
        pairs = _pairs(*_without_equal(old.rows, new.rows, self._columns), self._columns)
        for before, after in pairs:
            differences.rows += 1
            for name in _unlike(before, after, self._columns):
                differences.columns.setdefault(name, Examples()).add(path, before.get(name), after.get(name))
        differences.differing += bool(pairs)
        return bool(pairs) or old.count != new.count

    def _group(self, of: str, groups: list[ErrorGroup], path: str, outcome: CodeOutcome) -> None:
        kind = outcome.kind or ""
        key = (of, kind, cause(outcome.message))
        if key not in self._groups and len(groups) >= _GROUPS:
            kind, key = OTHERS, (of, OTHERS, "")
        if key not in self._groups:
            message = "" if kind == OTHERS else outcome.message
            self._groups[key] = ErrorGroup(kind, _short(message.partition("\n")[0], 0, 3 * _SHOWN))
            groups.append(self._groups[key])
        group = self._groups[key]
        group.files += 1
        if len(group.paths) < _EXAMPLES:
            group.paths.append(path)


@dataclass(frozen=True)
class Percentiles:
    """Median and 95th percentile of measurements."""

    median: float
    high: float

    @classmethod
    def of(cls, measured: Iterable[float]) -> Percentiles | None:
        """Computes them for measurements; None if there are none."""
        ordered = sorted(measured)
        if not ordered:
            return None
        return cls(ordered[(len(ordered) - 1) // 2], ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)])


def _without_equal(old: Sequence[Row], new: Sequence[Row], columns: Sequence[str]) -> tuple[Sequence[Row], Sequence[Row]]:
    """Returns the rows of each side without an equal one on the other, in order."""
    gone, came = (Counter(_key(row, columns) for row in rows) for rows in (old, new))
    return _beyond(old, came, columns), _beyond(new, gone, columns)


def _beyond(rows: Sequence[Row], others: Counter[Any], columns: Sequence[str]) -> Sequence[Row]:
    beyond: list[Row] = []
    for row in rows:
        key = _key(row, columns)
        if others[key]:
            others[key] -= 1
        else:
            beyond.append(row)
    return beyond


def _pairs(old: Sequence[Row], new: Sequence[Row], columns: Sequence[str]) -> list[tuple[Row, Row]]:
    """Pairs each old row with the new row that differs in the fewest columns (the first if several); the rest stay unpaired.

    A table does not keep the order of rows, so order says little about which row became which.
    """
    if max(len(old), len(new)) > _PAIRED:
        return list(zip(old, new, strict=False))
    unpaired, pairs = list(new), []
    for row in old[: len(unpaired)]:
        nearest = min(range(len(unpaired)), key=lambda at: len(_unlike(row, unpaired[at], columns)))
        pairs.append((row, unpaired.pop(nearest)))
    return pairs


def _unlike(old: Row, new: Row, columns: Sequence[str]) -> Sequence[str]:
    return [name for name in columns if _frozen(old.get(name)) != _frozen(new.get(name))]


def _key(row: Row, columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(_frozen(row.get(name)) for name in columns)


def _frozen(value: Any) -> Any:
    """Returns a hashable form of a value, in which NaN equals itself, as in SQL."""
    match value:
        case float():
            return _NOT_A_NUMBER if math.isnan(value) else value
        case list() | tuple():
            return tuple(map(_frozen, value))
        case Mapping():
            return tuple((name, _frozen(item)) for name, item in value.items())
        case bytearray():
            return bytes(value)
        case _:
            return value


def _cut(old: Any, new: Any) -> tuple[Any, Any]:
    """Returns two values for an example: long ones as text, cut to start shortly before their first difference."""
    texts = [_text(old), _text(new)]
    if max(map(len, texts)) <= _SHOWN:
        return _plain(old, texts[0]), _plain(new, texts[1])
    both = zip(*texts, strict=False)
    first = next((at for at, (one, other) in enumerate(both) if one != other), min(map(len, texts)))
    start = max(0, first - _BEFORE) if first > _SHOWN // 2 else 0
    before, after = (_short(text, start, _SHOWN) for text in texts)
    return before, after


def _plain(value: Any, text: str) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else text


def _text(value: Any) -> str:
    match value:
        case str():
            return value
        case bytes() | bytearray():
            return f"{len(value)} bytes {value[:_SHOWN].hex()}"
        case Mapping() | list() | tuple():
            return json_document(value, default=str)
        case _:
            return str(value)


def _short(text: str, start: int, length: int) -> str:
    more = "..." if len(text) > start + length else ""
    return f"{'...' if start else ''}{text[start : start + length]}{more}"

"""Mutations of real inputs, determined by the seed alone."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

#: What is odd to some parser: quotes, ends of comments, what regular expressions, cron, SQL, URLs and terminals care about.
_ODD = (
    "'",
    '"',
    "`",
    "``",
    "''",
    "\\",
    "\0",
    "\n",
    "\r\n",
    "\t",
    "\x1b[31m",
    "\udcff",
    "\\ud800",
    "ü",
    "İ",
    "ß",
    "\u2028",
    "\u202e",
    "😀",
    "--",
    "/*",
    "*/",
    ";",
    "(",
    ")",
    "((((((((",
    "))))))))",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ".",
    "..",
    "/",
    "//",
    "%",
    "%2",
    "%00",
    "${env:PATH}",
    "${x}",
    "$",
    "#",
    "?",
    "*",
    "**",
    "!",
    "[!",
    "[]",
    "[z-a]",
    "{a,",
    "@",
    ":",
    "::",
    "=",
    "==",
    "~",
    "^",
    "|",
    "&",
    "+",
    "-",
    "-1",
    "0",
    "00",
    "1e999",
    "nan",
    "inf",
    "0x1F",
    "9" * 30,
    "9" * 400,
    "9" * 5000,
    "1_000",
    "\u0661",
    "²",
    "null",
    "NULL",
    "true",
    " ",
    "  ",
    "AS",
    "SELECT",
    "FROM",
    "WITH",
    "VERSION",
    "TIMESTAMP AS OF",
    "DIRECTORY(VOLUME",
    "CHANGES",
    "PRIMARY KEY",
    "TBLPROPERTIES",
    "'change_tracking' =",
    "INSERT VALUES",
    "MERGE INTO",
    "CASE",
    "END",
    "BETWEEN",
    "LATERAL",
    "X'FF'",
    "r'\\'",
    "0001-01-01",
    "9999-12-31T23:59:59-14:00",
    "\ufeff",
    "\x7f",
    "\x85",
    "é",
    "e\u0301",
)

_WORDS = re.compile(r"\w+|\s+|[^\w\s]")

#: What is nested or repeated without end, as often.
_DEEP = (3, 3, 3, 3, 30, 30, 30, 300, 300, 3000)


class Mutator:
    """Inputs from a corpus.

    Args:
        corpus: real inputs.
    """

    def __init__(self, seed: str, corpus: Sequence[str]) -> None:
        self._chance = random.Random(seed)
        self._corpus = corpus
        self._acts = (
            self._insert,
            self._insert,
            self._delete,
            self._delete_words,
            self._swap_words,
            self._repeat,
            self._cross,
            self._number,
            self._case,
            self._nest,
            self._cut,
        )

    def next(self) -> str:
        """A real input after one to four mutations."""
        text = self._chance.choice(self._corpus)
        for _ in range(self._chance.choice((1, 1, 2, 2, 3, 4))):
            text = self._chance.choice(self._acts)(text)
        return text

    def _place(self, text: str) -> int:
        return self._chance.randrange(len(text) + 1)

    def _insert(self, text: str) -> str:
        place = self._place(text)
        return text[:place] + self._chance.choice(_ODD) + text[place:]

    def _delete(self, text: str) -> str:
        place = self._place(text)
        return text[:place] + text[place + self._chance.choice((1, 1, 2, 5)) :]

    def _cut(self, text: str) -> str:
        place = self._place(text)
        return text[:place] if self._chance.random() < 0.5 else text[place:]

    def _delete_words(self, text: str) -> str:
        words = _WORDS.findall(text)
        place = self._place(words)  # type: ignore[arg-type]  # it asks for the length alone
        del words[place : place + self._chance.choice((1, 1, 3))]
        return "".join(words)

    def _swap_words(self, text: str) -> str:
        words = _WORDS.findall(text)
        if len(words) < 2:
            return text
        first, second = self._chance.randrange(len(words)), self._chance.randrange(len(words))
        words[first], words[second] = words[second], words[first]
        return "".join(words)

    def _repeat(self, text: str) -> str:
        first, last = sorted((self._place(text), self._place(text)))
        return text[:last] + text[first:last] * self._chance.choice((1, 2, 5)) + text[last:]

    def _cross(self, text: str) -> str:
        other = self._chance.choice(self._corpus)
        first, last = sorted((self._place(other), self._place(other)))
        place = self._place(text)
        return text[:place] + other[first:last] + text[place:]

    def _number(self, text: str) -> str:
        numbers = list(re.finditer(r"\d+", text))
        if not numbers:
            return self._insert(text)
        found = self._chance.choice(numbers)
        new = self._chance.choice(("0", "-1", "1.5", "1e5", str(2**31), str(2**63), str(2**64), "9" * 40, "9" * 5000, ""))
        return text[: found.start()] + new + text[found.end() :]

    def _case(self, text: str) -> str:
        return self._chance.choice((text.upper, text.lower, text.swapcase, text.title))()

    def _nest(self, text: str) -> str:
        place = self._place(text)
        opened, closed = self._chance.choice(
            (
                ("(", ")"),
                ("[", "]"),
                ("{", "}"),
                ('{"a":', "}"),
                ("<", ">"),
                ("NOT ", ""),
                ("- ", ""),
                ("/*", "*/"),
                ("CASE WHEN 1 THEN ", " END"),
                ("a/", ""),
                ("*a", ""),
            )
        )
        depth = self._chance.choice(_DEEP)
        return text[:place] + opened * depth + (closed * depth if self._chance.random() < 0.7 else "") + text[place:]

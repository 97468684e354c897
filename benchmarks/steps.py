"""Documents whose paragraphs each have a value that takes 20 ms, as from a model's API; then 1 % of the paragraphs are edited.

Compares a loop that computes a changed document as a whole, a job whose function has a step, and CocoIndex with a memo.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from benchmarks.contenders import CocoIndex
from benchmarks.paragraphs import STATE, chunks_of, embed_slowly
from benchmarks.report import BASE, Figures
from volstream.api.session import Session

#: A document has this many paragraphs, and an edit changes one paragraph in this many.
_PARAGRAPHS, _PART = 50, 100

#: Seconds of a call after the first load, which would take minutes otherwise.
_SECONDS = 0.02

_FIRST, _EDITED, _NOTHING = "first load, calls of no time", "1 % of paragraphs edited", "nothing edited"


class _Contender(Protocol):
    name: str

    def update(self) -> object: ...

    def rows(self) -> Mapping[str, Sequence[float]]: ...


class _Loop:
    """Computes each changed document as a whole."""

    name = BASE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, list[float]]] = {}

    def update(self) -> None:
        async def one(path: Path) -> None:
            changed = path.stat().st_mtime_ns
            if self._seen.get(path.name, (0, []))[0] != changed:
                self._seen[path.name] = changed, [*await asyncio.gather(*map(embed_slowly, chunks_of(path.read_text())))]

        async def every() -> None:
            await asyncio.gather(*map(one, self._folder.iterdir()))

        asyncio.run(every())

    def rows(self) -> Mapping[str, Sequence[float]]:
        return {name: sorted(values) for name, (_, values) in self._seen.items()}


class _Job:
    """A job whose function has a step."""

    name = "volstream"

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        session.volumes.create("steps", str(folder), queue_type="none")
        session.jobs.create("steps", "benchmarks.embedding:chunks", "steps", volume="steps", returns="value DOUBLE")

    def update(self) -> None:
        self._session.volumes.refresh("steps")
        assert not self._session.jobs.run("steps").progress.failed

    def rows(self) -> Mapping[str, Sequence[float]]:
        found: dict[str, list[float]] = {}
        for row in self._session.sql("SELECT _file_path, value FROM steps").toArrow().to_pylist():
            found.setdefault(row["_file_path"], []).append(row["value"])
        return {name: sorted(values) for name, values in found.items()}


class _Memo(CocoIndex):
    """An app whose function for a paragraph has a memo."""

    def __init__(self, environments: Path, scratch: Path, folder: Path) -> None:
        super().__init__(environments, scratch)
        self._module = "benchmarks.others.with_cocoindex_memo"
        self.begin(folder)

    def update(self) -> Mapping[str, float]:
        super().update()
        return {}

    def rows(self) -> Mapping[str, Sequence[float]]:  # type: ignore[override]  # of another function
        found: dict[str, list[float]] = {}
        with closing(sqlite3.connect(self._state / "rows.sqlite")) as connection:
            for path, value in connection.execute("SELECT path, value FROM paragraphs"):
                found.setdefault(Path(path).name, []).append(value)
        return {name: sorted(values) for name, values in found.items()}


def measure(
    session: Session, folder: Path, count: int, rounds: int, figures: Figures, environments: Path | None
) -> dict[str, list[int]]:
    """Notes, in turns, what the contenders take; returns their calls in each turn, by name. Raises AssertionError for wrong rows.

    Args:
        count: of documents.
        environments: where CocoIndex is installed; None: without it.
    """
    chosen = random.Random(count)
    folder.mkdir()
    texts = [[_paragraph(chosen) for _ in range(_PARAGRAPHS)] for _ in range(count)]
    contenders: list[_Contender] = [_Loop(folder), _Job(session, folder)]
    if environments is not None:
        contenders.append(_Memo(environments, folder.parent, folder))
    calls: dict[str, list[int]] = {one.name: [] for one in contenders}

    def turn(scenario: str, seconds: float) -> None:
        for contender in contenders:
            STATE.mkdir(exist_ok=True)
            (STATE / "calls").write_text("")
            (STATE / "seconds").write_text(str(seconds))
            began = time.perf_counter()
            contender.update()
            figures.note(scenario, count, contender.name, time.perf_counter() - began)
            calls[contender.name].append(len((STATE / "calls").read_text()))
            assert contender.rows() == expected, f"{contender.name}: wrong rows"

    for scenario in (_FIRST, *[_EDITED] * rounds, _NOTHING):
        if scenario is not _NOTHING:
            changed = {*range(count)}
            if scenario is _EDITED:
                edited = chosen.sample(range(count * _PARAGRAPHS), count * _PARAGRAPHS // _PART)
                for at in edited:
                    texts[at // _PARAGRAPHS][at % _PARAGRAPHS] = _paragraph(chosen)
                changed = {at // _PARAGRAPHS for at in edited}
            for number in changed:
                (folder / f"{number}.txt").write_text("\n\n".join(texts[number]))
        expected = {f"{number}.txt": sorted(map(_value, paragraphs)) for number, paragraphs in enumerate(texts)}
        turn(scenario, 0.0 if scenario is _FIRST else _SECONDS)
    return calls


def _paragraph(chosen: random.Random) -> str:
    return " ".join(f"{chosen.randrange(10**6)}" for _ in range(40))


def _value(text: str) -> float:
    return float(sum(map(int, text.split())))

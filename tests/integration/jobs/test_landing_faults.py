"""Whatever is in the way of a landing zone: each version is in the volume or in the archive, and its rows are there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from tests.disks import mounted
from tests.integration.conftest import Place
from tests.interrupts import meanwhile
from volstream.errors import EngineLostError, VolstreamError
from volstream.ops.inspection.status import health, problems

_NAMES = ("a.csv", f"{'n' * 251}.csv")


@contextmanager
def _nothing(archive: Path) -> Iterator[Callable[[], object]]:
    yield archive.exists


@contextmanager
def _folders_of_the_names(archive: Path) -> Iterator[Callable[[], object]]:
    for name in _NAMES:
        (archive / name).mkdir(parents=True)
    yield archive.exists


@contextmanager
def _a_file_of_its_name(archive: Path) -> Iterator[Callable[[], object]]:
    archive.write_text("in the way")
    yield archive.unlink


@contextmanager
def _disk(archive: Path, *, state: str) -> Iterator[Callable[[], object]]:
    archive.mkdir()
    with mounted(archive, "1m") as disk:
        if disk.why_not:
            pytest.skip(f"no tmpfs can be mounted: {disk.why_not}")
        if state == "full":
            disk.fill()
        elif state == "read-only":
            disk.seal()
        yield {"full": disk.empty, "read-only": disk.unseal}.get(state, archive.exists)


_HURDLES: dict[str, Callable[[Path], AbstractContextManager[Callable[[], object]]]] = {
    "nothing": _nothing,
    "folders of the names": _folders_of_the_names,
    "a file of its name": _a_file_of_its_name,
    "another file system": lambda archive: _disk(archive, state="usable"),
    "a full disk": lambda archive: _disk(archive, state="full"),
    "a read-only disk": lambda archive: _disk(archive, state="read-only"),
}

#: Where a run is killed, or a producer writes the next file, in turn.
_STEPS = (
    "jobs.batches.outputs._set_aside",
    "files.storage.local.LocalStore.move",
    "jobs.batches.outputs._take_away",
    "jobs.batches.outputs._archive",
)
_EVENTS: tuple[Literal["call", "return"], ...] = ("call", "return")
_POINTS = [(event, f"volstream.{step}") for step in _STEPS for event in _EVENTS]


class Producer:
    """Writes files with consecutive numbers, each under one of two names if the former file of that name has left."""

    def __init__(self, place: Place) -> None:
        self._folder = place.folder
        self.made: list[int] = []

    def write(self, name: str) -> None:
        if not (self._folder / name).exists():
            self.made.append(len(self.made) + 1)
            (self._folder / ".new").write_text(f"n\n{self.made[-1]}\n")
            (self._folder / ".new").rename(self._folder / name)

    def check(self, point: str) -> None:
        found = [one.read_text().split() for one in self._folder.rglob("*.csv") if one.is_file()]
        assert {int(words[1]) for words in found} == {*self.made}, point


def _die() -> None:
    raise EngineLostError("The Spark engine was lost.")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("hurdle", [pytest.param(name, marks=pytest.mark.long if "disk" in name else ()) for name in _HURDLES])
def test_no_version_is_lost_or_loaded_twice_whatever_is_in_the_way_of_the_archive(place: Place, hurdle: str) -> None:
    producer = Producer(place)
    with _HURDLES[hurdle](place.folder / ".done") as clear:
        place.session.jobs.load("j", "v", "t", schema="n INT", write="append", after_load="archive:.done")
        for number, (event, point) in enumerate(_POINTS * 2):
            name = _NAMES[number % 2]
            producer.write(name)
            place.refresh()
            kills = number >= len(_POINTS)
            act = _die if kills else partial(producer.write, name)
            with pytest.raises(VolstreamError) if kills else nullcontext(), meanwhile(event, point, act):
                place.run()
            producer.check(f"{event} {point}, killed: {kills}")
        clear()
        for _ in range(2):
            place.refresh()
            place.run()
        producer.check("the end")
        left = [one.name for one in place.folder.rglob("*.csv") if one.is_file() and ".done" not in one.parts]
        assert left == []
    assert sorted(n for _, n in place.table()) == producer.made
    assert problems(health(place.session.home, streams=False), {}) == []

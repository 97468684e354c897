"""Many files at once: no number of files in a batch is too large for one statement, round or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Place
from volstream.base.definitions import OnMove

#: Half a minute each on two cores, and a machine may be busy.
pytestmark = pytest.mark.timeout(240)

COUNT = "def f(file):\n    return {'n': file.size}\n"


def names(count: int) -> list[str]:
    return [f"{number:05d}" for number in range(count)]


def put(place: Place, paths: list[str], content: str) -> None:
    for path in paths:
        place.put(path, content)


def sizes(place: Place) -> dict[str, int]:
    return dict(place.table())


def changes(place: Place, count: int, burst: int, content: str) -> None:
    """As many files as ``burst``, spread over all ``count``, change; their rows do, and no others."""
    expected = sizes(place)
    changed = names(count)[:: max(1, count // burst)][:burst]
    put(place, changed, content)
    place.refresh()
    assert place.run().progress.done_files == burst
    assert sizes(place) == expected | dict.fromkeys(changed, len(content))


@pytest.mark.long
def test_a_burst_of_changed_files_of_any_size_is_one_batch(place: Place) -> None:
    put(place, names(1999), "x")
    place.job(COUNT)
    place.run()
    for content, burst in enumerate((850, 1999), start=2):
        changes(place, 1999, burst, "x" * content)


@pytest.mark.long
def test_a_burst_of_deleted_files_of_any_size_is_one_batch(place: Place) -> None:
    left = names(1250)
    put(place, left, "x")
    place.job(COUNT)
    place.run()
    for burst in (1190,):
        for path in left[:burst]:
            place.delete(path)
        left = left[burst:]
        place.refresh()
        assert place.run().progress.removals == burst
        assert list(sizes(place)) == left


@pytest.mark.long
def test_a_burst_of_moved_files_of_any_size_is_one_batch(place: Place) -> None:
    left = names(1250)
    put(place, left, "x")
    place.job(COUNT, on_move=OnMove.REKEY)
    place.run()
    expected = set(left)
    for burst in (1190,):
        for path in left[:burst]:
            (place.folder / path).rename(place.folder / f"moved-{path}")
        expected = expected - set(left[:burst]) | {f"moved-{path}" for path in left[:burst]}
        left = left[burst:]
        place.refresh()
        assert place.run().progress.moves == burst
        assert set(sizes(place)) == expected


@pytest.mark.long
def test_a_burst_of_failed_files_of_any_size_is_retried(place: Place, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    put(place, names(1050), "x")
    place.job(f"import os\ndef f(file):\n    os.stat({str(flag)!r})\n    return {{'n': 1}}\n", pause_after=9)
    place.run()
    flag.touch()
    for paths in (names(1050)[:1000], names(1050)[1000:]):
        place.session.jobs.retry("j", paths)
        assert place.run().progress.done_files == len(paths)
        assert set(sizes(place)) == set(names(1050)[: len(sizes(place))])
    assert not place.session.jobs.failures("j")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_burst_of_ten_thousand_files_is_one_batch(place: Place) -> None:
    put(place, names(10_001), "x")
    place.job(COUNT)
    place.run()
    for content, burst in enumerate((9_999, 3_001, 2_001, 650), start=2):
        changes(place, 10_001, burst, "x" * content)

"""Jobs that are altered while a run works with their earlier definition: what that finds does not count against files or job."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.conftest import Place
from tests.waiting import eventually

WAITS = """
import pathlib, time
def wait():
    while pathlib.Path({0!r}).exists():
        time.sleep(0.05)
"""
GOOD = "def f(file):\n    return {'n': file.size}\n"
WRONG = f"{WAITS}def f(file):\n    wait()\n    return {{{{'n': 'no number'}}}}\n"
SLOW = f"{WAITS}def f(file):\n    wait()\n    return {{{{'n': file.size}}}}\n"
BROKEN = f"{WAITS}class f:\n    def __init__(self):\n        wait()\n        raise ValueError('no model')\n    def __call__(self, file): ...\n"


def edit(place: Place) -> None:
    (place.folder.parent / "code" / "job.py").write_text(GOOD)
    place.session.jobs.retry("j")


def replace(place: Place) -> None:
    good = place.folder.parent / "code" / "good.py"
    good.write_text(GOOD)
    place.session.jobs.alter("j", function=f"{good}:f")


def expect_others(place: Place) -> None:
    place.session.jobs.alter("j", expect=["n > 0"])


@pytest.mark.parametrize(
    ("code", "act"),
    [(WRONG, replace), (WRONG, edit), (SLOW, expect_others), (BROKEN, replace)],
    ids=["function", "file", "expectations", "set-up"],
)
def test_what_a_run_finds_with_an_earlier_definition_is_tried_with_the_new_one(
    place: Place, tmp_path: Path, code: str, act: Callable[[Place], None]
) -> None:
    latch = tmp_path / "latch"
    latch.touch()
    place.put("a.txt", "a")
    place.put("b.txt", "bb")
    place.refresh()
    place.job(code.format(str(latch)), max_files=1, retries=0, pause_after=1, expect=["n < 0"] if code is SLOW else [])
    job = place.session.jobs.get("j")
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(place.run)
        eventually(lambda: place.session.home.catalog.consumptions.open_intent(job.stream_id) is not None, 60)
        act(place)
        latch.unlink()
        report = run.result(120)
    assert place.table() == [("a.txt", 1), ("b.txt", 2)]
    assert place.session.jobs.failures("j") == []
    assert report.paused is None
    assert report.progress.done_files == report.progress.files

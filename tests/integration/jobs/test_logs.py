"""Output of a job's function is kept per batch and file, on a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Place
from volstream.errors import FunctionLoadError
from volstream.functions.printing import PRINTED_LAST

LOUD = """
import logging, sys
print("imported")
class f:
    def __init__(self):
        print("set up", file=sys.stderr)
    def __call__(self, file):
        text = file.read_text()
        print("read", text)
        logging.getLogger("mine").error("at %s", file.name)
        if text == "bad":
            raise ValueError("no good")
        return {"n": len(text)}
"""


def shown(place: Place, **options: str) -> list[tuple[str, str | None, str]]:
    """File, stream and text of the lines."""
    return [(" ".join(line.files), line.stream, line.text) for line in place.session.jobs.logs("j", **options)]  # type: ignore[arg-type]  # text


def of(name: str, text: str) -> list[tuple[str, str | None, str]]:
    return [(name, "stdout", f"read {text}"), (name, "log", f"ERROR mine: at {name}")]


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.long)])
def test_lines_are_returned_from_the_workers_with_their_files(place: Place, isolate: bool) -> None:
    place.put("a", "good")
    place.put("b", "bad")
    place.job(LOUD, isolate=isolate)
    assert shown(place) == []
    place.run()
    assert place.table() == [("a", 4)]
    found = shown(place)
    # There may be a worker for each file, and each sets up once.
    assert {("", "stdout", "imported"), ("", "stderr", "set up")} < {*found}
    assert [line for line in found if line[0]] == [*of("a", "good"), *of("b", "bad")] or [line for line in found if line[0]] == [
        *of("b", "bad"),
        *of("a", "good"),
    ]
    assert shown(place, path="b") == of("b", "bad")
    (failure,) = place.session.jobs.failures("j")
    assert f"{PRINTED_LAST}\n[stdout] read bad" in (failure.traceback or "")


@pytest.mark.long
def test_the_newest_batches_come_last_and_each_can_be_requested(place: Place) -> None:
    place.job(LOUD)
    for name in "abc":
        place.put(name, name)
        place.refresh()
        place.run()
    assert [line for line in shown(place) if line[0]] == [*of("a", "a"), *of("b", "b"), *of("c", "c")]
    assert [line.text for line in place.session.jobs.logs("j", lines=3)] == ["ERROR mine: at b", "read c", "ERROR mine: at c"]
    second = place.session.jobs.logs("j", path="b")[0].batch
    assert [line for line in shown(place, batch=second) if line[0]] == of("b", "b")
    place.session.jobs.drop("j")
    assert [*Path(place.session.home.warehouse, "_logs").iterdir()] == []


def test_output_of_a_failed_setup_is_kept(place: Place) -> None:
    place.put("a")
    place.job("class f:\n    def __init__(self): print('loading'); raise OSError('none')\n    def __call__(self, file): pass")
    with pytest.raises(FunctionLoadError, match="OSError: none"):
        place.run()
    assert ("", "stdout", "loading") in shown(place)


@pytest.mark.long
def test_output_of_a_file_that_kills_its_worker_is_shown(place: Place) -> None:
    place.put("a", "good")
    place.put("b", "bad")
    place.job("import os\ndef f(file):\n    print('page 1')\n    if file.read_text() == 'bad': os._exit(1)\n    return {'n': 1}")
    place.run()
    assert [text for _, _, text in shown(place, path="b")] == ["page 1"]
    assert [text for _, _, text in shown(place, path="a")] == ["page 1"]


@pytest.mark.long
def test_a_function_that_prints_nothing_leaves_no_logs(place: Place) -> None:
    place.put("a", "1")
    place.job("def f(file): return {'n': 1}")
    place.run()
    assert not Path(place.session.home.warehouse, "_logs").exists()


@pytest.mark.long
def test_excessive_output_is_bounded(place: Place) -> None:
    for number in range(300):
        place.put(f"{number:03}", "bad" if number == 5 else "x")
    place.refresh()
    place.job("def f(file):\n    print('x' * 15_000)\n    if file.read_text() == 'bad': raise ValueError\n    return {'n': 1}")
    place.run()
    (log,) = Path(place.session.home.warehouse, "_logs").glob("*/*")
    assert log.stat().st_size < 1.1 * (1 << 20)
    found = place.session.jobs.logs("j", lines=10_000)
    assert "calls printed more, which was not kept" in found[0].text
    # The output of the file that failed outlives that of the others.
    assert len(place.session.jobs.logs("j", path="005")) == 1

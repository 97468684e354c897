"""Small batches in tasks of the engine that wait for them: the same rows and failures, without a call of Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import psutil
import pyarrow as pa
import pytest

from tests.integration.conftest import Place
from tests.waiting import eventually
from volstream.errors import InterruptedByUserError
from volstream.jobs.batches.residents import ResidentDiedError, Residents
from volstream.spark.session import SparkGateway

#: Returns its process, or a negative number where Spark called it.
WHERE = """
import os, traceback
def f(file):
    if file.read_text() == "die":
        os._exit(1)
    if file.read_text() == "retire":
        from volstream.functions import worker
        worker.retire()
    here = any(frame.filename.endswith("residents.py") for frame in traceback.extract_stack())
    return {"n": os.getpid() if here else -os.getpid()}
"""

ROWS = pa.table({"a": list(range(10))})


@pytest.fixture
def residents(place: Place) -> Iterator[Residents]:
    made = Residents(lambda: SparkGateway.fresh(place.gateway), place.session.home.settings.run_directory, 2)
    place.session.home.settings.run_directory.mkdir(exist_ok=True, mode=0o700)
    thread = threading.Thread(target=made.run)
    thread.start()
    place.session.home.residents = made
    try:
        assert made.call("nothing", yielding(), ROWS, 1) is None, "they begin when they are wanted"
        eventually(lambda: made.waiting == 2, timeout=60)  # two processes begin, and import PySpark
        yield made
    finally:  # leaked tasks hold the engine's slots, and every later test hangs
        made.end()
        thread.join(30)
        assert not thread.is_alive()


Batches = Iterable[pa.RecordBatch]


def yielding(times: int = 1, seconds: float = 0.0, error: str = "") -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """A function that is pickled with its code: tasks cannot import tests."""

    def called(batches: Batches) -> Iterator[pa.RecordBatch]:
        import time

        for batch in batches:
            for _ in range(times):
                yield batch
        time.sleep(seconds)
        if error:
            raise ValueError(error)

    return called


def test_small_batches_run_in_waiting_tasks(place: Place, residents: Residents) -> None:
    place.put("a", "x")
    place.refresh()
    place.job(WHERE, returns="n BIGINT")
    place.run()
    [(_, first)] = place.table()
    assert isinstance(first, int)
    assert first > 0
    for name in "bcde":
        place.put(name, name)
    place.refresh()
    place.run()
    used = {number for _, number in place.table()}
    assert first in used
    assert len(used) == 2, "as many as there are slots"
    assert residents.waiting == 2
    for name in map(str, range(101)):
        place.put(name, name)
    place.refresh()
    place.run()
    assert sum(number < 0 for _, number in place.table()) == 101, "too many"


def test_a_file_that_kills_its_process_fails_alone_and_another_task_begins(place: Place, residents: Residents) -> None:
    for name, text in {"a": "x", "b": "die", "c": "y"}.items():
        place.put(name, text)
    place.refresh()
    place.job(WHERE, returns="n BIGINT", retries=0)
    progress = place.run().progress
    assert (progress.processed, progress.failed) == (2, 1)
    assert [failure.path for failure in place.session.jobs.failures("j")] == ["b"]
    eventually(lambda: residents.waiting == 2)
    place.put("d", "z")
    place.refresh()
    place.run()
    assert dict(place.table())["d"] > 0


def test_a_process_that_is_to_end_ends_after_its_answer(place: Place, residents: Residents) -> None:
    place.put("a", "retire")
    place.refresh()
    place.job(WHERE, returns="n BIGINT")
    place.run()
    [(_, ended)] = place.table()
    eventually(lambda: residents.waiting == 2)
    assert not psutil.pid_exists(ended)


def test_calls_are_answered_in_pieces_interrupted_and_fail_as_their_function_does(residents: Residents) -> None:
    replies = residents.call("x", yielding(300), ROWS, 2)
    assert replies is not None
    assert sorted(pa.concat_tables(replies)["a"].to_pylist()) == sorted([*range(10)] * 300)
    failing = residents.call("x", yielding(error="no, é"), ROWS, 1)
    assert failing is not None
    with pytest.raises(RuntimeError, match="no, é"):
        list(failing)
    eventually(lambda: residents.waiting == 2)
    sleeping = residents.call("y", yielding(seconds=600), ROWS, 2)
    assert sleeping is not None
    assert next(sleeping).num_rows == 5
    assert residents.call("z", yielding(), ROWS, 1) is None, "none waits"
    residents.interrupt("other")
    residents.interrupt("y")
    with pytest.raises(InterruptedByUserError):
        list(sleeping)
    eventually(lambda: residents.waiting == 2)


def test_a_process_that_is_killed_says_so(residents: Residents) -> None:
    sleeping = residents.call("y", yielding(seconds=600), ROWS, 1)
    assert sleeping is not None
    next(sleeping)
    for one in residents._busy["y"]:
        psutil.Process(one._process).kill()
    with pytest.raises(ResidentDiedError):
        list(sleeping)

"""A coroutine that blocks its event loop, or a call that nothing interrupts, fails alone: no other file, and no other job."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Place
from volstream.base.model.work import FailureKind

QUICK = "import asyncio, os\nasync def f(file):\n    await asyncio.sleep(0.01)\n    return {'n': os.getpid()}\n"

#: The file that blocks tells its process; a file that is timed out in vain would fail, too.
HOSTILE = """
import asyncio, os, threading, time, volstream
from pathlib import Path

{decorator}
{kind} f(file):
    if file.relative_path == "bad":
        Path({pids!r}, str(os.getpid())).touch()
        {body}
    {wait}
    return {{"n": os.getpid()}}
"""


@pytest.mark.long
@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("kind", "body", "wait"),
    [
        ("async def", "while True: time.sleep(0.1)", "await asyncio.sleep(0.05)"),
        pytest.param("async def", "threading.Event().wait()", "await asyncio.sleep(0.05)", marks=pytest.mark.long),
        pytest.param("def", "threading.Event().wait()", "time.sleep(0.05)", marks=pytest.mark.long),
    ],
    ids=["coroutine sleeps", "coroutine waits", "thread waits"],
)
def test_only_the_file_to_blame_fails_and_no_job_inherits_its_process(
    place: Place, kind: str, body: str, wait: str, isolate: bool
) -> None:
    for name in ("bad", *map(str, range(3))):
        place.put(name, name)
    place.refresh()
    pids = place.folder.parent / "pids"
    pids.mkdir()
    decorator = "@volstream.function(concurrency=4)" if kind == "def" else ""
    given = {"kind": kind, "body": body, "wait": wait, "decorator": decorator, "pids": str(pids)}
    place.job(HOSTILE.format(**given), timeout=0.5, retries=0, isolate=isolate, returns="n BIGINT")
    progress = place.run().progress
    assert (progress.processed, progress.failed) == (3, 1)
    [failure] = place.session.jobs.failures("j")
    assert (failure.path, failure.kind) == ("bad", FailureKind.TIMED_OUT)
    file = place.folder.parent / "code" / "quick.py"
    file.write_text(QUICK)
    for name in ("k", "l"):
        place.session.jobs.create(name, f"{file}:f", name, returns="n BIGINT", volume="v", timeout=5.0, retries=0)
        progress = place.session.jobs.run(name).progress
        assert (progress.processed, progress.failed) == (4, 0)
        rows = place.rows(f"SELECT n FROM delta.`{place.session.home.warehouse}/tables/public/{name}`")
        assert {row["n"] for row in rows}.isdisjoint(int(path.name) for path in pids.iterdir())

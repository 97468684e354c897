"""Jobs whose functions have several calls in flight."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Place
from volstream.definitions import FileJob

IN_FLIGHT = """
import asyncio
now = most = 0
async def f(file):
    global now, most
    now += 1
    most = max(most, now)
    await asyncio.sleep(0.1)
    now -= 1
    return {"n": most}
"""


@pytest.mark.parametrize("isolate", [False, True])
def test_a_job_limits_the_calls_in_flight(place: Place, isolate: bool) -> None:
    for at in range(40):
        place.put(f"{at}.txt", "x" * at)
    place.refresh()
    place.job(IN_FLIGHT, concurrency=6, isolate=isolate)
    report = place.run()
    assert (report.progress.done_files, report.progress.failed) == (40, 0)
    assert max(row[1] for row in place.table()) == (1 if isolate else 6)
    altered = place.session.jobs.alter("j", concurrency=2)
    assert isinstance(altered, FileJob)
    assert altered.concurrency == 2

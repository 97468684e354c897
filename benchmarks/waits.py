"""Files whose function waits 0.2 s, as for a model's API: a job with a coroutine function, and a plain loop of asyncio."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from benchmarks.contenders import function_named
from benchmarks.functions import WAIT_SECONDS
from benchmarks.report import BASE, Figures
from volstream.api.session import Session

_SCENARIO = "files that wait 0.2 s"

#: Calls in flight: of the job in each of two workers.
_CONCURRENCY = 64


def measure(session: Session, folder: Path, count: int, rounds: int, figures: Figures) -> None:
    """Notes, in turns, what the loop and the job take for ``count`` new files. Raises AssertionError for missing rows."""
    name = folder.name.replace("-", "_")
    folder.mkdir()
    session.volumes.create(name, str(folder), queue_type="none")
    session.jobs.create(name, function_named("waiting"), name, volume=name, returns="n BIGINT", concurrency=_CONCURRENCY)
    for number in range(rounds):
        files = [folder / f"{number}-{at}.txt" for at in range(count)]
        for file in files:
            file.write_text(file.name)
        began = time.perf_counter()
        asyncio.run(_loop(files, folder.with_suffix(".jsonl")))
        figures.note(_SCENARIO, count, BASE, time.perf_counter() - began)
        session.volumes.refresh(name)
        began = time.perf_counter()
        progress = session.jobs.run(name).progress
        figures.note(_SCENARIO, count, "volstream", time.perf_counter() - began)
        assert (progress.processed, progress.failed) == (count, 0)


async def _loop(files: list[Path], target: Path) -> None:
    free = asyncio.Semaphore(2 * _CONCURRENCY)

    async def call(file: Path) -> str:
        async with free:
            size = len(file.read_bytes())
            await asyncio.sleep(WAIT_SECONDS)
            return json.dumps({"path": str(file), "n": size})

    rows = await asyncio.gather(*map(call, files))
    target.write_text("\n".join(rows))

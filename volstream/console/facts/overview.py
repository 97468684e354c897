"""The overview of a home: whether all is well, and each volume, stream, job, table and source in a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from volstream.engine.control import engine_status
from volstream.errors import VolstreamError
from volstream.home import Home
from volstream.inspection import runs
from volstream.inspection.problems import problems
from volstream.inspection.status import status
from volstream.jobs import sizing
from volstream.model.objects import Job, Stream

#: Objects of a kind that are shown.
_MAX_SHOWN = 200


def overview(home: Home, probed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state of all objects of the home, and what is wrong.

    Args:
        probed: what the daemon says about itself; see ``/readyz``.
    """
    found = status(home)
    wrong = problems(found, probed)
    now = datetime.now(UTC)
    jobs = home.catalog.jobs.list()[:_MAX_SHOWN]
    running = runs.running_jobs(home)
    return {
        "home": found["home"],
        "well": not wrong,
        "problems": wrong,
        "engine": probed.get("engine") or _engine(home),
        "counts": {kind: len(found[kind]) for kind in ("volumes", "streams", "jobs", "tables", "sources")},
        "volumes": [_volume(one, now) for one in found["volumes"][:_MAX_SHOWN]],
        "streams": _streams(home, found["streams"][:_MAX_SHOWN]),
        "jobs": _jobs(home, jobs, found["jobs"][:_MAX_SHOWN], running, probed.get("failing_jobs", {})),
        "tables": found["tables"][:_MAX_SHOWN],
        "sources": found["sources"][:_MAX_SHOWN],
    }


def _engine(home: Home) -> dict[str, Any]:
    engine = engine_status(home.settings)
    return {"state": "not running" if engine is None else engine.state}


def _volume(one: dict[str, Any], now: datetime) -> dict[str, Any]:
    """Adds the age of the last full listing, and how many events it missed."""
    reconciled = one["reconciled"]
    counts = [one["missing"], one["changed"], one["phantom"]]
    # What is late may still have been on its way.
    missed = None if None in counts else max(0, sum(counts) - (one["late"] or 0))
    lag = None if reconciled is None else (now - reconciled).total_seconds()
    return {**one, "missed_events": missed, "lag_seconds": lag}


def _streams(home: Home, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds when changes that were not read may begin to be deleted."""
    by_name = {str(stream.name): stream for stream in home.catalog.streams.list()}
    return [{**one, "stale_after": _stale_after(home, by_name.get(one["stream"]))} for one in found]


def _stale_after(home: Home, stream: Stream | None) -> datetime | None:
    try:
        return None if stream is None else home.reader.stale_after(stream)
    except VolstreamError:  # the stream's note has the reason
        return None


def _jobs(
    home: Home,
    jobs: Sequence[Job],
    found: Sequence[dict[str, Any]],
    running: Mapping[str, str],
    failing: Mapping[str, str],
) -> list[dict[str, Any]]:
    return [
        {**{key.replace(" ", "_"): value for key, value in one.items()}, **_run(home, job, running, failing)}
        for job, one in zip(jobs, found, strict=False)
    ]


def _run(home: Home, job: Job, running: Mapping[str, str], failing: Mapping[str, str]) -> dict[str, Any]:
    """Returns what a job does now, how fast it is, and when it runs next."""
    measured = home.catalog.consumptions.measured(job.id)
    rate = sizing.usual(measured)
    due, says = runs.next_run(home, job)
    work = runs.open_run(home, job, measured)
    return {
        "into": str(job.into),
        "running": job.id in running,
        "failing": failing.get(str(job.name)),
        "last_ended": job.last_ended,
        "files_per_second": None if rate is None else rate.files,
        "next_run": due,
        "runs": says,
        "done": None if work is None else work.done,
        "seconds_left": None if work is None else work.seconds_left,
    }
